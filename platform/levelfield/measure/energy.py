"""The energy of the window, from the chips' counters or from sampled power. See docs/decisions/energy.md.

Boundary: the chip (what its counter or power reading covers). Host, network and cooling are outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from levelfield.measure.raw_facts import NANOSECONDS, Reading
from levelfield.measure.readings import coverage, too_little

BOUNDARY = "chip"
# No chip uses so much power. Milliwatts read as watts, or millijoules read as joules, exceed this limit.
IMPLAUSIBLE_WATTS = 10_000.0
Column = NDArray[np.float64]


@dataclass(frozen=True)
class EnergyUse:
    """The energy of all devices over the window; None, with the reason, when one device has none."""

    joules: float | None
    joules_per_token: float | None
    mean_watts: float | None
    reason: str | None


def energy(
    readings: Iterable[Reading],
    devices: Sequence[str],
    begin_ns: int,
    end_ns: int,
    tokens: int,
    least_watts: float = 0.0,
) -> EnergyUse:
    """Return the energy from begin_ns to end_ns on the readings' clock. mean_watts: of all devices together.

    least_watts: the mean power that one device exceeds at least; less has another unit.
    """
    if not end_ns > begin_ns or not tokens > 0 or not devices:
        return EnergyUse(None, None, None, "no window, no tokens or no device to measure over")
    kept = sorted(readings, key=lambda r: r.time_ns)
    each = []
    for device in devices:
        found = _device_joules([r for r in kept if r.device == device], begin_ns, end_ns, least_watts)
        if isinstance(found, str):
            return EnergyUse(None, None, None, f"device {device}: {found}")
        each.append(found)
    joules = math.fsum(each)
    return EnergyUse(joules, joules / tokens, joules * NANOSECONDS / (end_ns - begin_ns), None)


def over_nodes(nodes: Mapping[str, EnergyUse]) -> EnergyUse:
    """Return the energy of several nodes, each measured over the window on its own clock, with the same tokens.

    When one node has no energy there is no sum: the reason names the first such node.
    """
    missing = [f"{name}: {use.reason}" for name, use in nodes.items() if use.joules is None]
    if missing or not nodes:
        return EnergyUse(None, None, None, missing[0] if missing else "no node")
    joules, per_token, watts = (
        math.fsum(getattr(use, figure) for use in nodes.values())
        for figure in ("joules", "joules_per_token", "mean_watts")
    )
    return EnergyUse(joules, per_token, watts, None)


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
    if reason := too_little(coverage([time for time, _ in points], begin_ns, end_ns)):
        return reason
    joules = (counted_joules if is_counted else integral)(points, begin_ns, end_ns)
    watts = joules / ((end_ns - begin_ns) / NANOSECONDS)
    return _implausible([value for _, value in points], is_counted, watts, least_watts) or joules


def counted_joules(points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float:
    """Return the counter's rise over the window, interpolated linearly at its ends; points: (ns, joules) by time."""
    times, values = _columns(points, begin_ns)
    start, stop = np.interp([0.0, (end_ns - begin_ns) / NANOSECONDS], times, values)
    return float(stop - start)


def integral(points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float:
    """Return joules: trapezoids under the power, interpolated linearly at the window's ends; points: (ns, watts)."""
    times, values = _columns(points, begin_ns)
    last = (end_ns - begin_ns) / NANOSECONDS
    inside = (times > 0) & (times < last)
    grid = np.concatenate(([0.0], times[inside], [last]))
    return float(np.trapezoid(np.interp(grid, times, values), grid))


def _columns(points: Sequence[tuple[int, float]], begin_ns: int) -> tuple[Column, Column]:
    """Return seconds since the window's start, and values. Integers subtract exactly, floats of a clock do not."""
    return (
        np.array([(time - begin_ns) / NANOSECONDS for time, _ in points]),
        np.array([value for _, value in points], dtype=np.float64),
    )


def _implausible(values: Sequence[float], is_counted: bool, mean_watts: float, least_watts: float) -> str | None:
    if not all(math.isfinite(v) and v >= 0 for v in values):
        return f"the {'counter' if is_counted else 'trapezoid'} has a value that is negative or not finite"
    if is_counted and any(b < a for a, b in pairwise(values)):
        return "the energy counter went backward"
    if not least_watts < mean_watts <= IMPLAUSIBLE_WATTS:
        return f"{mean_watts:.6g} W on average is no chip's power: units differ"
    return None
