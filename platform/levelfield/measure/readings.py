"""Readings over a window: the part of it that they cover, of which figures need nearly all, and the mean load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from levelfield.measure.raw_facts import NANOSECONDS, Reading

LEAST_COVERAGE = 0.95
LONGEST_GAP_SECONDS = 5.0


def coverage(times_ns: Sequence[int], begin_ns: int, end_ns: int, longest_gap: float = LONGEST_GAP_SECONDS) -> float:
    """Return the part of the window between readings that are at most `longest_gap` seconds apart. The times ascend."""
    near = [(a, b) for a, b in pairwise(times_ns) if (b - a) / NANOSECONDS <= longest_gap]
    covered = sum(max(0, min(b, end_ns) - max(a, begin_ns)) for a, b in near)
    return covered / (end_ns - begin_ns)


def too_little(covered: float) -> str | None:
    """Return why a coverage is not enough, or None."""
    if covered >= LEAST_COVERAGE:
        return None
    return f"readings cover {covered:.0%} of the window, at least {LEAST_COVERAGE:.0%} is needed"


def mean_load(readings: Iterable[Reading], devices: Sequence[str], begin_ns: int, end_ns: int) -> float | str:
    """Return the mean over the devices of each one's mean in the window, 0 to 1; or the reason why there is none.

    It is what the tool calls utilisation: the share of time in which the device did anything. A device without a
    reading has no mean, so that idle devices are not left out.
    """
    inside = [r for r in readings if not r.before and begin_ns <= r.time_ns <= end_ns]
    means = []
    for device in devices:
        found = [r.utilisation for r in inside if r.device == device and r.utilisation is not None]
        if not found or not all(0 <= value <= 1 for value in found):
            return f"device {device}: {'a reading outside of 0 to 1' if found else 'no reading in the window'}"
        means.append(sum(found) / len(found))
    return sum(means) / len(means) if means else "no device"
