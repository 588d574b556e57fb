"""The README's first command on a fresh clone, with no environment there, and what a user does next."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import SHORT, copy_checkout

pytestmark = pytest.mark.e2e


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "levelfield"
    copy_checkout(folder)
    yield folder
    shutil.rmtree(folder)  # two environments with a framework each


def start(clone: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With the Python that a newcomer has, not with the tests' environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LEVELFIELD_") and k != "PYTHONPATH"}
    base = Path(sys.base_prefix) / "bin" / "python3"
    argv = [str(base), "run_benchmarks.py", *arguments]
    environment |= {"XDG_CACHE_HOME": str(cache), "XDG_DATA_HOME": str(cache / "data")}  # not the developer's own store
    return subprocess.run(argv, cwd=clone, env=environment, capture_output=True, text=True, timeout=900)


# A dozen of its forty steps: they have no reference, and the loss has fallen less.
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_first_command_ends_valid_and_the_second_start_makes_nothing(
    is_whole: bool, clone: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = start(clone, cache, "--case", "gpt3_6.7B:torch", *(() if is_whole else ("--steps", "12")))
    assert first.returncode == 0, first.stderr
    assert "making .venv" in first.stderr and "making .venvs/torch-cpu" in first.stderr
    assert "smoke scale:" in first.stderr and "6,658,596,864 parameters" in first.stderr
    assert "result   valid" in first.stdout
    (run,) = (clone / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    assert (result["scale"], result["alignment"]["verdict"]) == ("smoke", "aligned" if is_whole else "unchecked")
    assert result["loss"]["tail_mean"] < (0.6 if is_whole else 0.9) * result["loss"]["first"]
    assert result["throughput"]["tokens_per_second_per_device"] > 0

    again = start(clone, cache, "--case", "short:torch", *SHORT, "--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    (other,) = json.loads(again.stdout)
    assert other["status"]["word"] == "valid" and other["case"] == "short"

    for name in sorted(p.name for p in (clone / "runs").iterdir()):
        check = start(clone, cache, "evidence", "collect", name, "--check")
        assert check.returncode == 0, check.stderr
