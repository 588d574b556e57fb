"""Entries of a suite at once, as jobs of a real Slurm."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import PRETENDED, site
from driving import Benchmark, finished, trainings

pytestmark = pytest.mark.machines


def suite(folder: Path, case: str, seconds: float, *faults: str) -> tuple[str, ...]:
    """The arguments of a suite with one entry on one node for each fault."""
    variables = [{"FAKE_STEP_SECONDS": str(seconds), **({"FAKE_FAULT": fault} if fault else {})} for fault in faults]
    entries = [
        {
            "name": f"entry {number}",
            "case": f"{case}:fake:fake:1:1",
            "set": {"environment": values, **({"micro_batch": 1} if "FAKE_FAULT" in values else {})},  # another series
        }
        for number, values in enumerate(variables)
    ]
    content = {"schema": "levelfield.suite/1", "title": "Entries at once", "entries": entries}
    (folder / "suite.json").write_text(json.dumps(content))
    return (
        "--suite",
        str(folder / "suite.json"),
        *PRETENDED,
        "--python",
        sys.executable,
        *site(folder, exclusive=True),
    )


def results(benchmark: Benchmark) -> list[dict[str, Any]]:
    """The results of the runs, by their entries."""
    contents = [json.loads(path.read_text()) for path in benchmark.runs.glob("*/result.json")]
    return sorted(contents, key=lambda content: str(content["entry"]["name"]))


def test_entries_run_at_once_and_one_failure_stops_no_other(benchmark: Benchmark, tmp_path: Path) -> None:
    done = benchmark.run(*suite(tmp_path, "tiny", 0.3, "", "nan", ""), "--parallel", "2", "--no-certificate")
    assert done.returncode == 3, done.stderr
    words = [result["status"]["word"] for result in results(benchmark)]
    assert words == ["valid", "invalid", "valid"]
    assert [done.stdout.count(f"\nentry {number} ") for number in range(3)] == [1, 1, 1]  # in one table
    lines = done.stderr.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"entry 0", "entry 1", "entry 2"}
    assert max(map(len, lines)) <= 80
    order = [line for line in lines if "step 1/" in line or "was submitted" in line]
    assert order[2].startswith(("entry 0: step", "entry 1: step")), order  # two are submitted before one has a step


def test_an_interrupt_judges_what_all_have_measured(benchmark: Benchmark, tmp_path: Path) -> None:
    process = benchmark.start(*suite(tmp_path, "long", 0.2, "", "", ""), "--parallel", "2", "--no-certificate")
    deadline = time.monotonic() + 120
    while len([p for p in benchmark.runs.glob("*/events/rank0.jsonl") if '"step":3,' in p.read_text()]) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.returncode == 130 and trainings(benchmark.runs) == {}, done.stderr
    assert [result["status"]["failure"] for result in results(benchmark)] == ["interrupted"] * 2
    assert done.stdout.count("interrupted") >= 2


def test_a_night_runs_its_entries_at_once_and_prints_its_findings_once(benchmark: Benchmark, tmp_path: Path) -> None:
    night = ("--night", "2026-01-02", "--no-confirm", "--store", str(tmp_path / "r.sqlite"), "--progress")
    command = ("nightly", "run", *suite(tmp_path, "tiny", 0.3, "", "nan", ""), *night, "--parallel", "2")
    done = benchmark.run(*command)
    assert done.returncode == 3, done.stdout
    assert [result["status"]["word"] for result in results(benchmark)] == ["valid", "invalid", "valid"]
    state = json.loads((benchmark.runs / "nightly_suite_2026-01-02.json").read_text())
    assert [entry["state"] for entry in state["entries"]] == ["done"] * 3
    assert done.stdout.count("in all: 1 invalid run, 1 new series") == 1  # one table
    lines = done.stderr.splitlines()
    order = [line for line in lines if ": step 1/" in line or "was submitted" in line]
    assert "was submitted" in order[1] and max(map(len, lines)) <= 80, lines
    assert benchmark.run(*command).stdout == done.stdout and len(results(benchmark)) == 3  # nothing runs again
