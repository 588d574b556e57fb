"""The counters of the host's load: which processes are the platform's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from levelfield.run.host_load import HostCounters, host_counters

SPIN_SECONDS = 0.4
SPIN = f"import time\nwhile time.process_time() < {SPIN_SECONDS}: pass\n"


def counters(are_children: bool = True) -> HostCounters:
    found = host_counters(are_children)
    assert found is not None
    return found


def own(found: HostCounters) -> float:
    assert found["own_seconds"] is not None
    return found["own_seconds"]


def test_a_child_that_has_ended_is_ones_own_time() -> None:
    before = counters()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = counters()
    assert own(after) - own(before) >= 0.9 * SPIN_SECONDS  # the kernel counts in hundredths
    assert after["busy_seconds"] - before["busy_seconds"] >= 0.9 * SPIN_SECONDS
    assert after["cores"] == len(os.sched_getaffinity(0)) and after["time_ns"] > before["time_ns"]


def test_a_grandchild_that_still_runs_is_ones_own_time() -> None:
    with subprocess.Popen(["/bin/sh", "-c", f'"{sys.executable}" -c "import time\nwhile 1: pass"; :']) as shell:
        before = counters()
        deadline = time.monotonic() + 30
        while own(counters()) - own(before) < SPIN_SECONDS and time.monotonic() < deadline:
            time.sleep(0.05)
        risen = own(counters()) - own(before)
        for process in (*psutil.Process(shell.pid).children(recursive=True), shell):
            process.kill()
    assert risen >= SPIN_SECONDS


@contextmanager
def stranger(folder: Path) -> Iterator[None]:
    """A program that spins and is no descendant of this process: its parent has ended."""
    spin = f'"{sys.executable}" -c "while 1: pass"'
    subprocess.run(["/bin/sh", "-c", f"{spin} & echo $! > {folder}/pid"], check=True, start_new_session=True)
    pid = int((folder / "pid").read_text())
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_program_of_others_is_busy_time_and_not_ones_own(tmp_path: Path) -> None:
    with stranger(tmp_path):
        before = counters()
        time.sleep(1.0)
        after = counters()
    busy, mine = after["busy_seconds"] - before["busy_seconds"], own(after) - own(before)
    assert mine < 0.3 and busy - mine > 0.2


def test_processes_of_an_engine_are_not_told_apart() -> None:
    assert counters(are_children=False)["own_seconds"] is None


def test_a_system_without_counters_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> None:
        raise OSError(2, "no /proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", refused)
    assert host_counters(True) is None
