"""The part of a window that readings cover. Figures over a window need nearly all of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from levelfield.measure.raw_facts import NANOSECONDS

LEAST_COVERAGE = 0.95
LONGEST_GAP_SECONDS = 5.0


def coverage(times_ns: Sequence[int], begin_ns: int, end_ns: int) -> float:
    """Return the part of the window between readings that are at most five seconds apart. The times ascend."""
    near = [(a, b) for a, b in pairwise(times_ns) if (b - a) / NANOSECONDS <= LONGEST_GAP_SECONDS]
    covered = sum(max(0, min(b, end_ns) - max(a, begin_ns)) for a, b in near)
    return covered / (end_ns - begin_ns)


def too_little(covered: float) -> str | None:
    """Return why a coverage is not enough, or None."""
    if covered >= LEAST_COVERAGE:
        return None
    return f"readings cover {covered:.0%} of the window, at least {LEAST_COVERAGE:.0%} is needed"
