"""The energy of the window, from the chips' counters or from sampled power. See docs/decisions/energy.md.

Boundary: the chip (what its counter or power reading covers). Host, network and cooling are outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from levelfield.measure.raw_facts import NANOSECONDS, Reading
from levelfield.measure.readings import coverage, too_little

BOUNDARY = "chip"
# No chip uses so much power. Milliwatts read as watts, or millijoules read as joules, exceed this limit.
IMPLAUSIBLE_WATTS = 10_000.0
Column = NDArray[np.float64]
Method = Literal["counter", "trapezoid"]


@dataclass(frozen=True)
class DeviceEnergy:
    """The energy of one device. coverage: the part of the window whose readings are at most five seconds apart."""

    device: str
    joules: float | None
    method: Method | None
    coverage: float
    reason: str | None = None


@dataclass(frozen=True)
class EnergyUse:
    """The energy of all devices over the window; None, with the reason, when one device has none."""

    joules: float | None
    joules_per_token: float | None
    mean_watts: float | None
    per_device: tuple[DeviceEnergy, ...]
    reason: str | None
    boundary: str = BOUNDARY


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
        return EnergyUse(None, None, None, (), "no window, no tokens or no device to measure over")
    kept = sorted(readings, key=lambda r: r.time_ns)
    each = tuple(_device_energy(d, [r for r in kept if r.device == d], begin_ns, end_ns, least_watts) for d in devices)
    missing = [e for e in each if e.joules is None]
    if missing:
        return EnergyUse(None, None, None, each, f"device {missing[0].device}: {missing[0].reason}")
    joules = math.fsum(e.joules for e in each if e.joules is not None)
    return EnergyUse(joules, joules / tokens, joules * NANOSECONDS / (end_ns - begin_ns), each, None)


def over_nodes(nodes: Mapping[str, EnergyUse]) -> EnergyUse:
    """Return the energy of several nodes, each measured over the window on its own clock, with the same tokens.

    When one node has no energy there is no sum: the reason names the first such node.
    """
    each = tuple(replace(d, device=f"{name}/{d.device}") for name, use in nodes.items() for d in use.per_device)
    missing = {name: use.reason for name, use in nodes.items() if use.joules is None}
    if missing or not nodes:
        first = next((f"{name}: {reason}" for name, reason in missing.items()), "no node")
        return EnergyUse(None, None, None, each, first)
    joules, per_token, watts = (
        math.fsum(getattr(use, figure) for use in nodes.values())
        for figure in ("joules", "joules_per_token", "mean_watts")
    )
    return EnergyUse(joules, per_token, watts, each, None)


def _device_energy(
    device: str, readings: Sequence[Reading], begin_ns: int, end_ns: int, least_watts: float
) -> DeviceEnergy:
    """Return the counter's energy when every reading has a counter, else the integral of power."""
    counters = [(r.time_ns, r.energy_joules) for r in readings if r.energy_joules is not None]
    powers = [(r.time_ns, r.power_watts) for r in readings if r.power_watts is not None]
    if counters and len(counters) == len(readings):
        return _judged(device, "counter", counters, begin_ns, end_ns, least_watts)
    if powers:
        return _judged(device, "trapezoid", powers, begin_ns, end_ns, least_watts)
    return DeviceEnergy(device, None, None, 0.0, "neither power nor an energy counter could be read")


def _judged(
    device: str, method: Method, points: Sequence[tuple[int, float]], begin_ns: int, end_ns: int, least_watts: float
) -> DeviceEnergy:
    covered = coverage([time for time, _ in points], begin_ns, end_ns)
    if reason := too_little(covered):
        return DeviceEnergy(device, None, method, covered, reason)
    joules = counted_joules(points, begin_ns, end_ns) if method == "counter" else integral(points, begin_ns, end_ns)
    watts = joules / ((end_ns - begin_ns) / NANOSECONDS)
    fault = _implausible([v for _, v in points], watts, method, least_watts)
    return DeviceEnergy(device, None if fault else joules, method, covered, fault)


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


def _implausible(values: Sequence[float], mean_watts: float, method: Method, least_watts: float) -> str | None:
    if not all(math.isfinite(v) and v >= 0 for v in values):
        return f"the {method} has a value that is negative or not finite"
    if method == "counter" and any(b < a for a, b in pairwise(values)):
        return "the energy counter went backward"
    if not least_watts < mean_watts <= IMPLAUSIBLE_WATTS:
        return f"{mean_watts:.6g} W on average is no chip's power: units differ"
    return None
