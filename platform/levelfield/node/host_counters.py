"""Counters of the host's processors from /proc: of all programs, and of this process with all that it started.

They are those of run/host_load.py, without its library. Source of the fields: proc(5).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from levelfield.node.rank_processes import stat_of

_PARENT, _TIMES = 1, slice(11, 15)  # places among the fields of stat_of: the last are utime, stime, cutime, cstime
_BUSY = (0, 1, 2, 7)  # user, nice, system, steal
_PROC = Path("/proc")


def host_counters() -> dict[str, Any] | None:
    """Return processor seconds that only grow, at `time_ns`: busy, of all programs; own, of this process and all its
    descendants. None where the kernel shows none."""
    try:
        allowed, ticks = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
        cores = _cores()
        used = [times for number, times in cores.items() if number in allowed] or list(cores.values())
        busy = sum(times[place] for times in used for place in _BUSY if place < len(times)) / ticks
        own = _own_ticks() / ticks
    except (OSError, ValueError):
        return None
    return {"time_ns": time.monotonic_ns(), "busy_seconds": busy, "own_seconds": own, "cores": len(used)}


def _cores() -> dict[int, list[int]]:
    """Return the ticks of each core by its number."""
    lines = (line.split() for line in (_PROC / "stat").read_text(encoding="ascii").splitlines())
    named = (fields for fields in lines if fields and fields[0].startswith("cpu") and fields[0] != "cpu")
    return {int(fields[0][3:]): [int(text) for text in fields[1:]] for fields in named}


def _own_ticks() -> int:
    """Return the ticks of this process and all its descendants, with those of children that have ended."""
    numbers = (int(place.name) for place in _PROC.iterdir() if place.name.isdigit())
    found = {number: fields for number, fields in ((n, stat_of(n)) for n in numbers) if len(fields) > _TIMES.stop}
    children: dict[int, list[int]] = {}
    for number, fields in found.items():
        children.setdefault(int(fields[_PARENT]), []).append(number)
    total, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        left += children.get(number, [])
        total += sum(int(text) for text in found[number][_TIMES]) if number in found else 0
    return total
