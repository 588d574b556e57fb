"""Output that cannot be written: a reader that leaves, a full disk, closed streams. No command ends by it."""

from __future__ import annotations

import errno
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
    variables = {"LEVELFIELD_NO_BOOTSTRAP": "1", "LEVELFIELD_RUNS": str(runs), "FAKE_DEVICES": "1"}
    argv = ["bash", "-c", f"{command}\nexit ${{PIPESTATUS[0]}}"]
    return subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("to", "repeats"),
    [
        pytest.param("2>&1 | head -1", 2, marks=pytest.mark.thorough),  # further ones of a kind
        pytest.param("2>&1 | true", 1, marks=pytest.mark.thorough),
        pytest.param("2>&1 | (sleep 0.5; head -c 20)", 1, marks=[pytest.mark.drill, pytest.mark.thorough]),
        pytest.param(">/dev/full 2>/dev/full", 2, marks=pytest.mark.drill),
        pytest.param(">&- 2>&-", 1, marks=pytest.mark.thorough),
        ("<&- >&- 2>&-", 1),
    ],
)
def test_lost_output_neither_ends_a_run_nor_changes_its_word_and_code(to: str, repeats: int, tmp_path: Path) -> None:
    """Nor is it written into a run's file: one opened first would get number 1 where standard output is closed."""
    done = shell(f"{BENCHMARKS} {TRAINING} --repeat {repeats} {to}", tmp_path)
    words = [json.loads(path.read_text())["status"]["word"] for path in tmp_path.glob("*/result.json")]
    assert (done.returncode, words) == (0, ["valid"] * repeats)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"levelfield: " in path.read_bytes()[:11]] == []
    assert [json.loads(path.read_text())["case"] for path in tmp_path.glob("*/plan.json")] == ["tiny"] * repeats


def test_a_run_that_fails_keeps_its_code(tmp_path: Path) -> None:
    done = shell(f"{BENCHMARKS} {TRAINING} --env FAKE_FAULT=exit 2>&1 | true", tmp_path)
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param("show cases | head -1", 0, marks=pytest.mark.thorough),
        ("show cases | true", 0),
        ("show cases >&-", 0),
        # The next test has it, with its words.
        *(pytest.param(f"show cases >/dev/full{more}", 5, marks=pytest.mark.thorough) for more in ("", " 2>&1")),
        ("show nothing 2>&-", 2),
        pytest.param("show nothing >/dev/full", 2, marks=pytest.mark.thorough),
        pytest.param("--help | true", 0, marks=pytest.mark.thorough),
    ],
)
def test_a_listing_that_is_lost_on_a_full_disk_is_an_error_and_one_that_nobody_reads_is_none(
    command: str, code: int, tmp_path: Path
) -> None:
    done = shell(f"{BENCHMARKS} {command}", tmp_path)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_the_error_says_why_the_output_is_lost(tmp_path: Path) -> None:
    done = shell(f"{BENCHMARKS} show cases >/dev/full", tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 5
    assert "standard output" in line and line.endswith(f": {os.strerror(errno.ENOSPC)}")


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what is printed would be written into that file."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import os, run_benchmarks\n"
        f"run_benchmarks.occupy_standard_streams()\nwith open({str(tmp_path / 'opened')!r}, 'w') as opened:\n"
        "    opened.write(f'{opened.fileno()} {[os.readlink(f\"/proc/self/fd/{each}\") for each in range(3)]}')\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    done = shell(f"{sys.executable} {path} <&- >&- 2>&-", tmp_path)
    number, targets = (tmp_path / "opened").read_text().split(" ", 1)
    assert done.returncode == 0 and int(number) > 2 and targets == f"{['/dev/null'] * 3}"
