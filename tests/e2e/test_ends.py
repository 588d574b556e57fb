"""Ends that a user meets on a bad day, by the command line: a rank that cannot be killed, a killed platform.

`make drills` repeats them under load.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from driving import LONG, PRETENDING, Benchmark, all_ended, begun, finished, trainings
from freezer import Freezer

pytestmark = [pytest.mark.e2e, pytest.mark.drill]
TINY = ("--case", "tiny:fake:fake:1:2", *PRETENDING, "--python", sys.executable, "--scale", "smoke", "--json")


def named_in_the_locks(benchmark: Benchmark, rank: int) -> bool:
    """Whether the locks come to name this rank. On a busy machine it can do some steps before they do."""
    deadline = time.monotonic() + 60
    locks = Path(benchmark.variables["LEVELFIELD_LOCKS"])
    while time.monotonic() < deadline:
        if any(f"/{rank}/" in path.read_text() for path in locks.glob("*.lock")):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    "pressed", [pytest.param(False, marks=pytest.mark.thorough, id="hang"), pytest.param(True, id="ctrl-c")]
)
def test_a_rank_that_cannot_be_killed_gives_a_result_and_keeps_its_devices(benchmark: Benchmark, pressed: bool) -> None:
    freezer = Freezer()
    try:
        process = begun(benchmark, LONG)
        frozen = trainings(benchmark.runs)[1].pid
        freezer.freeze(frozen)
        if pressed:
            process.send_signal(signal.SIGINT)
        done = finished(process)
        status = benchmark.result()["status"]
        assert done.returncode == (130 if pressed else 3)
        assert (status["word"], status["failure"]) == ("failed", "unkillable")
        assert f"(process {frozen}," in status["evidence"] and "SIGKILL" in status["evidence"]
        assert list(trainings(benchmark.runs)) == [1]
        refused = benchmark.run(*TINY)
        (result,) = json.loads(refused.stdout)
        assert (refused.returncode, result["status"]["word"]) == (3, "not-run")
        assert f"process {frozen}," in result["status"]["evidence"]
    finally:
        freezer.remove()
    assert all_ended(benchmark.runs)
    again = benchmark.run(*TINY)
    assert (again.returncode, json.loads(again.stdout)[0]["status"]["word"]) == (0, "valid")


def test_a_stopped_rank_of_a_killed_platform_is_ended_before_the_next_run(benchmark: Benchmark) -> None:
    """Beside it the next run on the same device was valid: a stopped process does not notice that it is an orphan."""
    process = begun(benchmark, LONG)
    rank = trainings(benchmark.runs)[1].pid
    os.kill(rank, signal.SIGSTOP)
    assert named_in_the_locks(benchmark, rank), "the locks name the ranks while they run"
    process.kill()
    process.communicate()
    again = benchmark.run(*TINY)
    assert (again.returncode, json.loads(again.stdout)[0]["status"]["word"]) == (0, "valid")
    assert trainings(benchmark.runs) == {}


@pytest.mark.thorough  # tests/core has each part of it
def test_a_run_is_called_running_while_it_does_and_no_longer_when_its_platform_was_killed(benchmark: Benchmark) -> None:
    process = begun(benchmark, LONG)
    name = benchmark.only_run().name
    done = benchmark.run("evidence", "collect", "latest")
    assert done.returncode == 2 and name in done.stderr and f"(process {process.pid} of" in done.stderr
    assert not (benchmark.only_run() / "result.json").exists()
    process.kill()
    process.communicate()
    assert benchmark.run("report", "latest").returncode == 0
    assert all_ended(benchmark.runs)
    assert benchmark.run(*TINY).returncode == 0
    status = json.loads((benchmark.runs / name / "status.json").read_text())
    assert (status["phase"], status["state"]) == ("ended", "failed")


@pytest.mark.thorough  # tests/core has it by a clock of the test's
def test_a_platform_that_stands_still_for_longer_than_the_limit_ends_no_run(benchmark: Benchmark) -> None:
    """A machine that is paused for eight seconds; five without a heartbeat are the limit of this case."""
    process = begun(benchmark, LONG)
    ranks = trainings(benchmark.runs)
    everyone = [*[rank.pid for rank in ranks.values()], process.pid]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(0.3)  # it looks at the old files first
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    time.sleep(3)
    assert process.poll() is None, finished(process).stderr
    process.send_signal(signal.SIGINT)
    assert finished(process).returncode == 130
    assert benchmark.result()["status"]["failure"] == "interrupted"
