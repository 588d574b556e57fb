"""Output that cannot be written: a reader that leaves, a full disk, closed streams. No command ends by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plans import PLUGINS, ROOT

BENCHMARKS = f"{sys.executable} {ROOT / 'run_benchmarks.py'}"
TRAINING = f"--case tiny:fake --plugins {PLUGINS} --python {sys.executable}"  # a training that pretends, on one device


def shell(command: str, runs: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; the code is that of the first command of a pipeline."""
    own = {"LEVELFIELD_NO_BOOTSTRAP": "1", "LEVELFIELD_RUNS": str(runs), "FAKE_DEVICES": "1"}
    argv = ["bash", "-c", f"{command}\nexit ${{PIPESTATUS[0]}}"]
    return subprocess.run(argv, env={**os.environ, **own}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "to",
    [
        pytest.param("2>&1 | head -1", marks=pytest.mark.drill),
        "2>&1 | true",
        pytest.param("2>&1 | (sleep 0.5; head -c 20)", marks=pytest.mark.drill),
        pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.drill),
        ">&- 2>&-",
        "<&- >&- 2>&-",
    ],
)
def test_lost_output_neither_ends_a_run_nor_changes_its_word_and_code(to: str, tmp_path: Path) -> None:
    done = shell(f"{BENCHMARKS} {TRAINING} --repeat 2 {to}", tmp_path)
    words = [json.loads(path.read_text())["status"]["word"] for path in tmp_path.glob("*/result.json")]
    assert (done.returncode, words) == (0, ["valid", "valid"])


def test_a_run_that_fails_keeps_its_code(tmp_path: Path) -> None:
    done = shell(f"{BENCHMARKS} {TRAINING} --env FAKE_FAULT=exit 2>&1 | true", tmp_path)
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("list cases | head -1", 0),
        ("list cases | true", 0),
        ("list cases >&-", 0),
        ("list cases >/dev/full", 5),
        ("list cases >/dev/full 2>&1", 5),
        ("list nothing 2>&-", 2),
        ("list nothing >/dev/full", 2),
        ("--help | true", 0),
    ],
)
def test_a_listing_that_is_lost_on_a_full_disk_is_an_error_and_one_that_nobody_reads_is_none(
    command: str, code: int, tmp_path: Path
) -> None:
    done = shell(f"{BENCHMARKS} {command}", tmp_path)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_the_error_says_why_the_output_is_lost(tmp_path: Path) -> None:
    done = shell(f"{BENCHMARKS} list cases >/dev/full", tmp_path)
    assert done.stderr == "levelfield: error: standard output could not be written: No space left on device\n"


def test_closed_streams_are_not_taken_by_the_files_of_a_run(tmp_path: Path) -> None:
    """A file opened first would get number 1, and every print would go into it."""
    shell(f"{BENCHMARKS} {TRAINING} <&- >&- 2>&-", tmp_path)
    (run,) = tmp_path.glob("*/plan.json")
    assert not [path for path in run.parent.rglob("*") if path.is_file() and b"levelfield: " in path.read_bytes()[:11]]
    assert json.loads(run.read_text())["case"] == "tiny"
