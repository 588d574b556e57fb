"""The energy of the window, from the chips' counters or from sampled power. See docs/decisions/energy.md.

Boundary: the chip (what its counter or power reading covers). Host, network and cooling are outside. The energy of
whole nodes, as the site's command reads it, stands beside it: docs/node-power.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from levelfield.measure.raw_facts import LONGEST_GAP_SECONDS, NANOSECONDS, PowerReading, Reading, coverage_shortfall

BOUNDARY = "chip"
# No chip draws more. Milliwatts read as watts, or millijoules read as joules, exceed this limit.
IMPLAUSIBLE_WATTS = 10_000.0
# A source has an interval of its own, a second to a minute long, and the window's ends are known no better than that.
MIN_READINGS = 10
# A counter may be so far from the power beside it, which tools sample or average: one in another unit is further.
COUNTER_FACTOR = 1.5
MIN_POWER_READINGS = 5  # in the window: of fewer, those at its ends, while the load changes, are too large a part
IMPLAUSIBLE_NODE_WATTS = 50_000.0  # three times the largest node; milliwatts exceed it
Column = NDArray[np.float64]


@dataclass(frozen=True)
class DeviceEnergyUse:
    """The energy of all devices over the window; None, with the reason, when one device has none."""

    joules: float | None = None
    joules_per_token: float | None = None
    mean_watts: float | None = None  # of all devices together
    reason: str | None = None


def device_energy(
    readings: Iterable[Reading],
    devices: Sequence[str],
    begin_ns: int,
    end_ns: int,
    tokens: int,
    least_watts: float = 0.0,
) -> DeviceEnergyUse:
    """Return the energy of the devices from begin_ns to end_ns on the readings' clock.

    least_watts: any working device draws more on average; a lower figure is in another unit.
    """
    if not end_ns > begin_ns or not tokens > 0 or not devices:
        return DeviceEnergyUse(reason="no window, no tokens or no device to measure over")
    ordered = sorted(readings, key=lambda r: r.time_ns)
    parts = []
    for device in devices:
        part = _device_joules([r for r in ordered if r.device == device], begin_ns, end_ns, least_watts)
        if isinstance(part, str):
            return DeviceEnergyUse(reason=f"device {device}: {part}")
        parts.append(part)
    joules = math.fsum(parts)
    return DeviceEnergyUse(joules, joules / tokens, joules * NANOSECONDS / (end_ns - begin_ns))


@dataclass(frozen=True)
class NodeEnergyUse:
    """The energy of one whole node over the window; None, with the reason."""

    joules: float | None
    reason: str | None = None
    readings: int = 0  # distinct ones in the window
    # The median time between two readings, or the longest time over which the source averages one.
    resolution_seconds: float | None = None


def node_energy(readings: Iterable[PowerReading], begin_ns: int, end_ns: int) -> NodeEnergyUse:
    """Return the energy of a node from begin_ns to end_ns on the readings' clock."""
    ordered = sorted(readings, key=lambda r: r.time_ns)
    # a reading with the same stamp as the one before it is a repetition
    fresh = [
        b for a, b in zip([None, *ordered[:-1]], ordered, strict=True) if not (a and a.stamp and a.stamp == b.stamp)
    ]
    window_readings = [r for r in fresh if begin_ns <= r.time_ns <= end_ns]
    gaps = [(b.time_ns - a.time_ns) / NANOSECONDS for a, b in pairwise(window_readings)]
    periods = [r.period_seconds for r in window_readings if r.period_seconds is not None]
    resolution = max([median(gaps), *periods]) if gaps else None
    window, repeated_count = (end_ns - begin_ns) / NANOSECONDS, len(ordered) - len(fresh)
    joules: float | None = None
    reason: str | None = None
    if not all(math.isfinite(r.watts) and r.watts > 0 for r in fresh):
        reason = "a reading is zero, negative or not finite"
    elif ordered and (ordered[-1].time_ns < begin_ns or ordered[0].time_ns > end_ns):
        reason = "no reading falls near the window: the clocks of the node and of this machine differ"
    elif len(window_readings) < MIN_READINGS or resolution is None:
        repeated = f" ({repeated_count} had the time of the one before)" if repeated_count else ""
        count = f"{len(window_readings)} readings in a window of {window:.3g} s{repeated}"
        reason = f"{count}, at least {MIN_READINGS} are needed"
    elif not resolution <= window / (MIN_READINGS - 1):
        most = f"a tenth of the window of {window:.3g} s at most is needed"
        reason = f"readings are averages over {resolution:.3g} s, {most}"
    elif len({r.watts for r in window_readings}) == 1:
        reason = (
            f"all {len(window_readings)} readings are {window_readings[0].watts:g} W: the source repeats an old one"
        )
    else:
        longest_gap = max(3 * resolution, min(LONGEST_GAP_SECONDS, window / MIN_READINGS))
        if not (reason := coverage_shortfall([r.time_ns for r in fresh], begin_ns, end_ns, longest_gap)):
            joules = integrate_power([(r.time_ns, r.watts) for r in fresh], begin_ns, end_ns)
            if not 0 < (watts := joules / window) <= IMPLAUSIBLE_NODE_WATTS:
                joules, reason = None, f"{watts:.6g} W on average is no node's power: units differ"
    return NodeEnergyUse(joules, reason, len(window_readings), resolution)


def sum_over_nodes(nodes: Mapping[str, DeviceEnergyUse]) -> DeviceEnergyUse:
    """Return the energy of the devices of several nodes, each measured over the window on its own clock.

    All figures are over the same tokens. Without the energy of one node there is no sum; the reason names the first.
    """
    if missing := [f"{name}: {use.reason}" for name, use in nodes.items() if use.joules is None]:
        return DeviceEnergyUse(reason=missing[0])
    figures = ("joules", "joules_per_token", "mean_watts")
    joules, per_token, watts = (math.fsum(getattr(use, figure) for use in nodes.values()) for figure in figures)
    return DeviceEnergyUse(joules, per_token, watts)


def _device_joules(readings: Sequence[Reading], begin_ns: int, end_ns: int, least_watts: float) -> float | str:
    """Return the counter's energy when every reading has a counter, else the integral of power; or why there is none.

    The readings ascend.
    """
    points = [(r.time_ns, r.energy_joules) for r in readings if r.energy_joules is not None]
    is_counted = bool(points) and len(points) == len(readings)
    if not is_counted:
        points = [(r.time_ns, r.power_watts) for r in readings if r.power_watts is not None]
    if not points:
        return "neither power nor an energy counter could be read"
    if reason := coverage_shortfall([time for time, _ in points], begin_ns, end_ns):
        return reason
    joules = (counter_joules if is_counted else integrate_power)(points, begin_ns, end_ns)
    watts = joules / ((end_ns - begin_ns) / NANOSECONDS)
    values = [value for _, value in points]
    if not all(math.isfinite(v) and v >= 0 for v in values):
        return f"the {'counter' if is_counted else 'trapezoid'} has a value that is negative or not finite"
    if is_counted and any(b < a for a, b in pairwise(values)):
        return "the energy counter went backward"
    if not least_watts < watts <= IMPLAUSIBLE_WATTS:
        return f"{watts:.6g} W on average is no chip's power: units differ"
    return (_counter_fault(joules, readings, begin_ns, end_ns) if is_counted else None) or joules


def _counter_fault(joules: float, readings: Sequence[Reading], begin_ns: int, end_ns: int) -> str | None:
    """Return why a counter's energy is not that of the power beside it; None where too little power was read."""
    points = [(r.time_ns, r.power_watts) for r in readings if r.power_watts is not None]
    if sum(begin_ns <= time <= end_ns for time, _ in points) < MIN_POWER_READINGS:
        return None
    if coverage_shortfall([time for time, _ in points], begin_ns, end_ns):
        return None
    by_power = integrate_power(points, begin_ns, end_ns)
    if by_power / COUNTER_FACTOR <= joules <= by_power * COUNTER_FACTOR:
        return None
    return f"the energy counter gives {joules:.4g} J, and the power beside it {by_power:.4g} J: one of them is wrong"


def counter_joules(points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float:
    """Return the counter's rise over the window, interpolated linearly at its ends; points: (ns, joules) by time.

    Time in the window before the first point or after the last one counts at the mean power between them.
    """
    times, values = _relative_columns(points, begin_ns)
    window_seconds = (end_ns - begin_ns) / NANOSECONDS
    ends = np.clip([0.0, window_seconds], times[0], times[-1])
    start, stop = np.interp(ends, times, values)
    return float((stop - start) * window_seconds / (ends[1] - ends[0]))


def integrate_power(points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float:
    """Return joules: trapezoids under the power, interpolated linearly at the window's ends; points: (ns, watts)."""
    times, values = _relative_columns(points, begin_ns)
    window_seconds = (end_ns - begin_ns) / NANOSECONDS
    inside = (times > 0) & (times < window_seconds)
    grid = np.concatenate(([0.0], times[inside], [window_seconds]))
    return float(np.trapezoid(np.interp(grid, times, values), grid))


def _relative_columns(points: Sequence[tuple[int, float]], begin_ns: int) -> tuple[Column, Column]:
    """Return seconds since the window's start, and values. Nanoseconds are subtracted as integers, which is exact."""
    return (
        np.array([(time - begin_ns) / NANOSECONDS for time, _ in points]),
        np.array([value for _, value in points], dtype=np.float64),
    )
