"""The load of the host's processors: of all programs, and of this run's own processes. Raw counters for telemetry."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TypedDict

import psutil


class HostCounters(TypedDict):
    """Processor seconds that only grow, at `time_ns`. busy: of all programs on the usable cores, with the time that a
    hypervisor took. own: of this platform and all processes that it started; None where they cannot be told apart."""

    time_ns: int
    busy_seconds: float
    own_seconds: float | None
    cores: int


def host_counters(are_children: bool) -> HostCounters | None:
    """Return the counters now; None where the operating system has none. are_children: whether the training's
    processes are descendants of this one; those of a container engine are not."""
    try:
        cores = _usable(psutil.cpu_times(percpu=True))
        busy = sum(c.user + c.nice + c.system + getattr(c, "steal", 0.0) for c in cores)
        own = _own() if are_children else None
        return {"time_ns": time.monotonic_ns(), "busy_seconds": busy, "own_seconds": own, "cores": len(cores)}
    except (psutil.Error, OSError, AttributeError, NotImplementedError):
        return None


def cores_of_others(before: HostCounters | None, after: HostCounters | None) -> float | None:
    """Return the cores that other programs kept busy between two counts; None where that is not known."""
    if before is None or after is None or before["own_seconds"] is None or after["own_seconds"] is None:
        return None
    seconds = (after["time_ns"] - before["time_ns"]) / 1e9
    busy, own = after["busy_seconds"] - before["busy_seconds"], after["own_seconds"] - before["own_seconds"]
    return max(0.0, busy - own) / seconds if seconds > 0 else None


def _usable(cores: list[psutil._ntuples.scputimes]) -> list[psutil._ntuples.scputimes]:
    """Return the times of the cores that this process may use; of all where the numbering has gaps."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(len(cores)))
    return [cores[number] for number in sorted(allowed)] if max(allowed) < len(cores) else cores


def _own() -> float:
    """Return the processor seconds of this process and all its descendants, with those that have ended."""
    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
