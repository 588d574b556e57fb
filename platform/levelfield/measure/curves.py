"""Loss curves without a reference: spikes, curves of one run, and how far the tails of two groups differ.

One training with another seed ends at another loss. No single curve shows how far: neighbouring steps depend on each
other, and the seed's effect is constant along a curve. So where two groups of curves share no weights, the unit is the
run. Each run gives one number, the mean of its log loss over the tail. The interval has the degrees of freedom of the
smaller group (Hsu, 1938), which makes it never too narrow. Two one-sided tests (Schuirmann, 1987) compare the groups.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

LEAST_RUNS = 2  # of each group: one run has no spread
LEAST_STEPS = 20  # of a tail
# The largest share of a curve's whole fall that may lie in its tail. Before that, every model learns the same first
# things: in the first 100 steps of GPT tests, different models differ by less than equal ones do on other chips.
SETTLED = 0.25
# One-sided 95 % quantiles of Student's t by degrees of freedom; between two of them, the fewer degrees count.
QUANTILES = {
    1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 6: 1.9432, 7: 1.8946, 8: 1.8595, 9: 1.8331, 10: 1.8125,
    12: 1.7823, 15: 1.7531, 20: 1.7247, 30: 1.6973, 60: 1.6706, 120: 1.6577,
}  # fmt: skip
Curve = Mapping[int, float]
Word = Literal["within the margin", "beyond the margin", "inconclusive"]
# Of two curves of one run, relative, at every common step. A log with five digits rounds by less. Two seeds differ by a
# thousandth or more.
SAME = 2e-5
WIDTH = 5  # neighbours of a step on each side
# A spike is more than this multiple of the reference's median jump, and more than this part of the loss.
USUAL, LEAST = 10, 0.01


@dataclass(frozen=True)
class TailComparison:
    """The result. difference: of the groups' mean tail losses, relative. low, high: its 90 % interval, if there is one.

    steps: first and last step of the tail. spread: the largest standard deviation of a group, relative.
    """

    word: Word
    reason: str
    margin: float
    steps: tuple[int, int] | None = None
    difference: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None


def compare_tails(
    ours: Sequence[Curve], theirs: Sequence[Curve], margin: float, from_step: int | None = None
) -> TailComparison:
    """Compare the means over the common steps from `from_step` on (default: the second half). margin: relative.

    `inconclusive` where the tail is short or still falls fast, or where a group has one run.
    """
    curves = [*ours, *theirs]
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    tail = [s for s in common if s >= from_step] if from_step is not None else common[len(common) // 2 :]
    if broken := next((s for s in common for curve in curves if not 0 < curve[s] < math.inf), None):
        return TailComparison("beyond the margin", f"a loss at step {broken} is not a positive number", margin)
    if len(tail) < LEAST_STEPS:
        reason = f"the curves share {len(tail)} steps in the tail, expected at least {LEAST_STEPS}"
        return TailComparison("inconclusive", reason, margin)
    fall = max(share_of_fall(curve, common, tail) for curve in curves)
    means = [[tail_mean(curve, tail) for curve in group] for group in (ours, theirs)]
    return _of_means(means[0], means[1], margin, (tail[0], tail[-1]), fall)


def tail_mean(curve: Curve, tail: Sequence[int]) -> float:
    """Return the mean of the log loss: differences of these are relative differences of losses."""
    return statistics.fmean(math.log(curve[step]) for step in tail)


def share_of_fall(curve: Curve, steps: Sequence[int], tail: Sequence[int]) -> float:
    """Return which share of the fall of the loss, from the first step to the end, lies within the tail.

    The ends of the tail are means over a quarter of it. 1 where the curve does not fall at all.
    """
    quarter = max(1, len(tail) // 4)
    begin, end = (statistics.fmean(curve[s] for s in part) for part in (tail[:quarter], tail[-quarter:]))
    whole = curve[steps[0]] - end
    return max(0.0, begin - end) / whole if whole > 0 else 1.0


def _of_means(
    ours: list[float], theirs: list[float], margin: float, steps: tuple[int, int], fall: float
) -> TailComparison:
    difference = math.expm1(statistics.fmean(ours) - statistics.fmean(theirs))
    if fall > SETTLED:
        reason = f"the loss still falls: {fall:.0%} of its fall lies in the tail, expected at most {SETTLED:.0%}"
        return TailComparison("inconclusive", reason, margin, steps, difference)
    if min(len(ours), len(theirs)) < LEAST_RUNS:
        reason = f"one curve does not show how far seeds differ; give at least {LEAST_RUNS} runs of each side"
        return TailComparison("inconclusive", reason, margin, steps, difference)
    half = _half_width(ours, theirs)
    spread = max(statistics.stdev(ours), statistics.stdev(theirs))
    low, high = difference - half, difference + half
    return TailComparison(*_word(low, high, margin), margin, steps, difference, spread, low, high)


def _half_width(ours: list[float], theirs: list[float]) -> float:
    """Return half of the 90 % interval of the difference of two means."""
    freedom = min(len(ours), len(theirs)) - 1
    quantile = QUANTILES[max(known for known in QUANTILES if known <= freedom)]
    return quantile * math.sqrt(sum(statistics.variance(group) / len(group) for group in (ours, theirs)))


def _word(low: float, high: float, margin: float) -> tuple[Word, str]:
    found = f"between {low:+.2%} and {high:+.2%} (90 % interval), margin {margin:.2%}"
    if -margin < low and high < margin:
        return "within the margin", found
    if low > margin or high < -margin:
        return "beyond the margin", found
    return "inconclusive", f"{found}; more runs narrow the interval"


def is_one_run(one: Curve, other: Curve) -> bool:
    """Return whether two curves agree at every common step. Curves without a common step are of two runs."""
    common = one.keys() & other.keys()
    return bool(common) and all(_agree(one[step], other[step]) for step in common)


def first_of_each_run(curves: Sequence[Curve]) -> list[int]:
    """Return for each curve the number of the first curve of the same run; its own number where it is the first.

    Copies, other formats and shorter pieces of one run, or the same seed again, would narrow the interval without a
    new run.
    """
    firsts: list[int] = []
    for number, curve in enumerate(curves):
        same = (first for first in dict.fromkeys(firsts) if is_one_run(curves[first], curve))
        firsts.append(next(same, number))
    return firsts


def _agree(one: float, other: float) -> bool:
    """Return whether two losses are the same one. Two that are no number are the same."""
    return one == other or (one != one and other != other) or abs(one - other) <= SAME * abs(one)


def spike_steps(losses: Curve, reference: Curve) -> dict[int, float]:
    """Return the jump of each step that is a spike, where the reference has no jump of half that size."""
    ours, theirs, least = jumps(losses), jumps(reference), least_jump(reference)
    return {s: jump for s, jump in ours.items() if jump > least and not theirs.get(s, 0.0) > jump / 2}


def least_jump(reference: Curve) -> float:
    """Return the jump above which a step is a spike."""
    found = sorted(jumps(reference).values())
    return max(USUAL * found[len(found) // 2] if found else 0.0, LEAST)


def jumps(losses: Curve) -> dict[int, float]:
    """Return the jump of each step, relative to the median of its neighbours.

    It is the smaller of two differences: from that median, and from the farther of the two steps beside it. So a steady
    fall of the loss is no jump.
    """
    steps, found = sorted(losses), {}
    for place, step in enumerate(steps):
        near = [losses[s] for s in steps[max(0, place - WIDTH) : place + WIDTH + 1] if s != step]
        middle = sorted(near)[len(near) // 2] if near else losses[step]
        beside = steps[max(0, place - 1) : place + 2]
        slope = max((abs(losses[b] - losses[a]) for a, b in pairwise(beside)), default=0.0)
        found[step] = min(abs(losses[step] - middle), slope) / max(abs(middle), 1e-300)
    return found


def largest_rise(losses: Curve) -> tuple[int, float]:
    """Return the step whose loss rises most from the step before it, of two or more, and that rise relative to it."""
    rises = {b: (losses[b] - losses[a]) / max(abs(losses[a]), 1e-300) for a, b in pairwise(sorted(losses))}
    step = max(rises, key=lambda step: rises[step])
    return step, rises[step]
