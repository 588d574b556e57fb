"""What telemetry read over the window, as a few numbers: means and maxima, by name and unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelfield.measure.raw_facts import NANOSECONDS
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.case import Window
from levelfield.specs.plan import Plan

_READ = ("power_watts", "memory_used_bytes", "utilisation", "temperature_celsius")


def telemetry_summary(plan: Plan, raw: RawRecords) -> dict[str, float]:
    """Return the mean and the maximum of each quantity over all devices and readings of the window.

    host_busy_cores: cores of a host that all programs kept busy; of several hosts their mean. What was never read is
    left out, and all of it where a machine lacks the window.
    """
    parts = node_parts(plan, raw)
    windows = [_window(part, raw, plan.work.window) for part in parts]
    known = [(part, window) for part, window in zip(parts, windows, strict=True) if window is not None]
    if len(known) < len(parts):
        return {}
    found: dict[str, float] = {}
    for name in _READ:
        readings = (
            getattr(r, name)
            for part, (begin, end) in known
            for r in part.read.readings
            if not r.before and begin <= r.time_ns <= end
        )
        if values := [float(value) for value in readings if value is not None and math.isfinite(value)]:
            found[f"{name}_mean"], found[f"{name}_max"] = sum(values) / len(values), max(values)
    if busy := [cores for part, window in known for cores in _busy(part, *window)]:
        found["host_busy_cores_mean"] = sum(busy) / len(busy)
    return found


def _window(part: NodePart, raw: RawRecords, window: Window) -> tuple[int, int] | None:
    begin = part.ends.get(window.first_step - 1, raw.begins.get(part.ranks.start))
    end = part.ends.get(window.last_step)
    return None if begin is None or end is None or not begin < end else (begin, end)


def _busy(part: NodePart, begin: int, end: int) -> Iterator[float]:
    inside = [reading for reading in part.read.host if not reading.before and begin <= reading.time_ns <= end]
    if len(inside) > 1 and inside[-1].time_ns > inside[0].time_ns:
        seconds = (inside[-1].time_ns - inside[0].time_ns) / NANOSECONDS
        busy = (inside[-1].busy_seconds - inside[0].busy_seconds) / seconds
        if math.isfinite(busy):
            yield busy
