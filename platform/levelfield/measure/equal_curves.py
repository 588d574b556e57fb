"""Which loss curves are of one run: copies, other formats and shorter pieces of it, or the same seed again.

The unit of `tail_comparison` is the run. A curve that counts twice would narrow the interval without a new run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Relative, at every common step. A log with five digits rounds by less. Two seeds differ by a thousandth or more.
SAME = 2e-5

Curve = Mapping[int, float]


def is_one_run(one: Curve, other: Curve) -> bool:
    """Return whether two curves agree at every common step. Curves without a common step are of two runs."""
    common = one.keys() & other.keys()
    return bool(common) and all(_agree(one[step], other[step]) for step in common)


def first_of_each_run(curves: Sequence[Curve]) -> list[int]:
    """Return for each curve the number of the first curve of the same run; its own number where it is the first."""
    firsts: list[int] = []
    for number, curve in enumerate(curves):
        same = (first for first in dict.fromkeys(firsts) if is_one_run(curves[first], curve))
        firsts.append(next(same, number))
    return firsts


def _agree(one: float, other: float) -> bool:
    """Return whether two losses are the same one. Two that are no number are the same."""
    return one == other or (one != one and other != other) or abs(one - other) <= SAME * abs(one)
