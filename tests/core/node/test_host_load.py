"""The counters of the host's load: which processes are the platform's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import spinners
from levelfield.node import node_facts
from levelfield.node.node_facts import host_counters

SPIN_SECONDS = 0.4
SPIN = f"import time\nwhile time.process_time() < {SPIN_SECONDS}: pass\n"


def counters(ranks_are_children: bool = True) -> dict[str, Any]:
    values = host_counters(ranks_are_children)
    assert values is not None
    return values


def own_seconds(values: dict[str, Any]) -> float:
    return float(values["own_seconds"])


def test_a_child_that_has_ended_is_ones_own_time() -> None:
    before = counters()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = counters()
    assert own_seconds(after) - own_seconds(before) >= 0.9 * SPIN_SECONDS  # the kernel counts in hundredths
    assert after["busy_seconds"] - before["busy_seconds"] >= 0.9 * SPIN_SECONDS
    assert after["cores"] == len(os.sched_getaffinity(0)) and after["time_ns"] > before["time_ns"]


def test_a_grandchild_that_still_runs_is_ones_own_time() -> None:
    with spinners.child():
        before, began, deadline, risen = counters(), time.process_time(), time.monotonic() + 30, 0.0
        while risen < SPIN_SECONDS and time.monotonic() < deadline:
            time.sleep(0.05)
            risen = (
                own_seconds(counters()) - own_seconds(before) - (time.process_time() - began)
            )  # without the time of this test
    assert risen >= SPIN_SECONDS


def test_a_program_of_others_is_busy_time_and_not_ones_own() -> None:
    with spinners.stranger() as pid:
        before = counters()
        until_used(pid, SPIN_SECONDS)
        after = counters()
    busy, mine = after["busy_seconds"] - before["busy_seconds"], own_seconds(after) - own_seconds(before)
    assert mine < 0.3 and busy - mine > 0.2


def until_used(pid: int, seconds: float) -> None:
    """Until the process has used that much more processor time, on a busy machine too."""
    process = psutil.Process(pid)
    goal, deadline = process.cpu_times().user + seconds, time.monotonic() + 30
    while process.cpu_times().user < goal and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["child", "stranger"])
def test_a_killed_run_of_the_tests_leaves_no_program_that_spins(kind: str) -> None:
    script = f"import spinners, time\nwith spinners.{kind}():\n    print('up', flush=True)\n    time.sleep(600)"
    marked = {"PYTHONPATH": str(Path(spinners.__file__).parent), "SPINNERS_OF": f"{os.getpid()} {kind}"}
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, env={**os.environ, **marked}, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        spinning = until(lambda: len(those_with(marked["SPINNERS_OF"])) > 1)
        killed.kill()
    ended = until(lambda: not those_with(marked["SPINNERS_OF"]))
    for left in those_with(marked["SPINNERS_OF"]):
        left.kill()
    assert spinning and ended


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not (done := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done


def those_with(mark: str) -> list[psutil.Process]:
    """Processes that have the mark in their environment."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SPINNERS_OF") == mark:
                processes.append(process)
    return processes


def test_a_process_that_is_none_has_no_time() -> None:
    assert node_facts._tree_ticks(2**30) == 0, "everything is others' load"


def test_processes_of_an_engine_are_not_told_apart() -> None:
    assert counters(ranks_are_children=False)["own_seconds"] is None


def test_a_system_without_counters_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(places: object) -> None:
        raise OSError(2, "no /proc/stat")

    monkeypatch.setattr(node_facts, "_core_ticks", refused)
    assert host_counters(True) is None
