"""What telemetry read over the window, as a few numbers: means and maxima, by name and unit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from levelfield.measure.raw_facts import NANOSECONDS
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.case import Window

_READ = ("power_watts", "memory_used_bytes", "utilisation", "temperature_celsius")


def telemetry_summary(raw: RawRecords, window: Window) -> dict[str, float]:
    """Return the mean and the maximum of each quantity over all devices and readings of the window.

    host_busy_cores: cores of the host that all programs kept busy. What was never read is left out.
    """
    ends = {record.step: record.end_ns for record in raw.steps if record.rank == 0}
    begin, end = ends.get(window.first_step - 1, raw.begins.get(0)), ends.get(window.last_step)
    if begin is None or end is None or not begin < end:
        return {}
    found: dict[str, float] = {}
    for name in _READ:
        readings = (getattr(r, name) for r in raw.readings if not r.before and begin <= r.time_ns <= end)
        if values := [float(value) for value in readings if value is not None and math.isfinite(value)]:
            found[f"{name}_mean"], found[f"{name}_max"] = sum(values) / len(values), max(values)
    return {**found, **dict(_host(raw, begin, end))}


def _host(raw: RawRecords, begin: int, end: int) -> Iterator[tuple[str, float]]:
    inside = [reading for reading in raw.host if not reading.before and begin <= reading.time_ns <= end]
    if len(inside) > 1 and inside[-1].time_ns > inside[0].time_ns:
        seconds = (inside[-1].time_ns - inside[0].time_ns) / NANOSECONDS
        busy = (inside[-1].busy_seconds - inside[0].busy_seconds) / seconds
        if math.isfinite(busy):
            yield "host_busy_cores_mean", busy
