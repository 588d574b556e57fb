"""Every Python that pyproject.toml promises makes the platform's environment and plans a case."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from driving import ROOT, copy_checkout

pytestmark = pytest.mark.e2e

OLDEST, NEWEST = "3.10", "3.13"  # the tests themselves run on 3.11


# The oldest; .github/workflows/ci.yml starts each of them, and so does `make thorough`.
@pytest.mark.parametrize(
    "version", [OLDEST, *(pytest.param(version, marks=pytest.mark.thorough) for version in ("3.12", NEWEST))]
)
def test_a_promised_python_plans_a_case(version: str, tmp_path: Path) -> None:
    python = next(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), None)
    if python is None:
        pytest.skip(f"no Python {version} lies in ~/.pyenv/versions")
    copy_checkout(tmp_path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LEVELFIELD_") and k != "PYTHONPATH"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LEVELFIELD_STORE": "none"}
    argv = [str(python), "run_benchmarks.py", "--case", "gpt3_6.7B:torch", "--dry-run"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".venv" / "lib" / f"python{version}").is_dir()


def test_the_oldest_promise_is_tried() -> None:
    oldest = re.search(r'requires-python = ">=(3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    assert oldest[1] == OLDEST
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == "3.11"
