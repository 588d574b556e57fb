"""Two groups of loss curves that share no weights: how far their tails differ, with an interval over the runs.

One training with another seed ends at another loss. No single curve shows how far: neighbouring steps depend on each
other, and the seed's effect is constant along a curve. So the unit here is the run. Each run gives one number, the mean
of its log loss over the tail. The interval has the degrees of freedom of the smaller group (Hsu, 1938), which makes it
never too narrow. Two one-sided tests (Schuirmann, 1987) compare the groups.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
