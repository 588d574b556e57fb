"""Loss curves without a reference: spikes, curves of one run, and how far the tails of two groups differ.

One training with another seed ends at another loss. No single curve shows how far: neighbouring steps depend on each
other, and the seed's effect is constant along a curve. So where two groups of curves share no weights, the unit is the
run. Each run gives one number, the mean of its log loss over the tail. The interval has the degrees of freedom of the
smaller group (Hsu, 1938), which makes it never too narrow. Two one-sided tests (Schuirmann, 1987) compare the groups.

Many trainers leave a loss out of their logs that is no number: Megatron prints a line without it, tables have an empty
cell. So a curve with a missing step, or one that ends before the others, is broken: what is left of it shows nothing.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

MIN_RUNS = 2  # in each group: one run has no spread
MIN_STEPS = 20  # in a tail
# The largest share of a curve's whole fall that may lie in its tail. Before that, every model learns the same first
# things: in the first 100 steps of GPT tests, different models differ by less than equal ones do on other chips.
MAX_TAIL_FALL = 0.25
# One-sided 95 % quantiles of Student's t by degrees of freedom; between two of them, the fewer degrees count.
T_QUANTILES = {
    1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 5: 2.0150, 6: 1.9432, 7: 1.8946, 8: 1.8595, 9: 1.8331, 10: 1.8125,
    12: 1.7823, 15: 1.7531, 20: 1.7247, 30: 1.6973, 60: 1.6706, 120: 1.6577,
}  # fmt: skip
Curve = Mapping[int, float]
LoggedCurve = Mapping[int, float | None]  # None: the optimizer skipped the step, and its trainer prints no loss then
TailVerdict = Literal["within the margin", "beyond the margin", "inconclusive", "broken curve"]
MIN_STRETCH = 3  # as many equal distances of steps in a row make another logging interval, fewer are gaps
# The largest relative difference of two curves of one run, at every common step. A log with five digits rounds by less.
# Two seeds differ by a thousandth or more.
SAME_RUN_TOLERANCE = 2e-5
SPIKE_NEIGHBOURS = 5  # neighbours of a step on each side
# A spike is more than this multiple of the reference's median jump, and more than this part of the loss.
SPIKE_FACTOR, MIN_SPIKE = 10, 0.01


@dataclass(frozen=True)
class TailComparison:
    """How far the mean tail losses of two groups differ."""

    word: TailVerdict
    reason: str
    margin: float
    steps: tuple[int, int] | None = None  # first and last step of the tail
    difference: float | None = None  # relative
    spread: float | None = None  # the largest standard deviation of a group, relative
    low: float | None = None  # of the 90 % interval of the difference, if there is one
    high: float | None = None


class CurveBreak(NamedTuple):
    """The first step of a curve that cannot be compared, with what was found there and what was expected."""

    step: int
    reason: str


def compare_tails(
    ours: Sequence[LoggedCurve],
    theirs: Sequence[LoggedCurve],
    margin: float,
    from_step: int | None = None,
    names: Sequence[str] = (),
) -> TailComparison:
    """Compare the means over the common steps from `from_step` on (default: the second half). margin: relative.

    `inconclusive` where the tail is short or still falls fast, or where a group has one run. `broken curve` where one
    lacks a step; with `from_step` those before it do not count. names: of all curves, for the reason.
    """
    logged = [*ours, *theirs]
    if broken := first_break(logged, names or [f"curve {number}" for number in range(1, len(logged) + 1)], from_step):
        return TailComparison("broken curve", broken.reason, margin)
    curves = [{s: loss for s, loss in curve.items() if loss is not None and 0 < loss < math.inf} for curve in logged]
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    tail = [s for s in common if s >= from_step] if from_step is not None else common[len(common) // 2 :]
    if len(tail) < MIN_STEPS:
        reason = f"the curves share {len(tail)} steps in the tail, expected at least {MIN_STEPS}"
        return TailComparison("inconclusive", reason, margin)
    fall = max(tail_share_of_fall(curve, common, tail) for curve in curves)
    means = [[mean_log_loss(curve, tail) for curve in group] for group in (curves[: len(ours)], curves[len(ours) :])]
    return _compare_means(means[0], means[1], margin, (tail[0], tail[-1]), fall)


def first_break(curves: Sequence[LoggedCurve], names: Sequence[str], from_step: int | None = None) -> CurveBreak | None:
    """Return the earliest break of all curves from `from_step` on; None where each has every step of its interval."""
    parts = [{s: x for s, x in curve.items() if from_step is None or s >= from_step} for curve in curves]
    begin = min((max(1, min(part)) for part in parts if part), default=0)
    end = max(max(curve) for curve in curves)
    breaks = []
    for name, curve, part in zip(names, curves, parts, strict=True):
        # the first step that lacks a positive loss: by its value, or as one that the curve's interval has
        bad_losses = {step: loss for step, loss in part.items() if loss is not None and not 0 < loss < math.inf}
        bad_losses |= {before + usual_interval(part): math.nan for before, _ in _gaps(part)}
        for step, loss in sorted(bad_losses.items())[:1]:
            value = "no number as loss" if math.isnan(loss) else f"the loss {loss:g}"
            before = max((earlier for earlier in part if earlier < step), default=None)
            until = "" if before is None else f"; --to-step {before} compares what is before"
            expected = f"expected a positive number: the training diverged, or the file is not whole{until}"
            breaks.append(CurveBreak(step, f"{name}: found {value} at step {step}, {expected}"))
        if part and min(part) - begin >= _end_intervals(part)[0]:
            expected = f"expected step {begin} as in another curve; --from-step {min(part)} compares from there on"
            breaks.append(CurveBreak(begin, f"{name}: it begins at step {min(part)}, {expected}"))
        last, last_interval = max(curve), _end_intervals(curve)[1]
        if end - (last + (0 in curve)) >= last_interval:  # steps that count from 0 end one earlier
            expected = f"expected steps up to {end} as in another curve; --to-step {last} compares up to there"
            breaks.append(CurveBreak(last + last_interval, f"{name}: it ends at step {last}, {expected}"))
    return min(breaks, default=None, key=lambda gap: gap.step)


def usual_interval(steps: Collection[int]) -> int:
    """Return how many steps apart most of a curve's losses are; the largest distance where none has a majority."""
    ordered = sorted(steps)
    distances = Counter(b - a for a, b in pairwise(ordered))
    if not distances:
        return max((1, *ordered))
    usual, times = distances.most_common(1)[0]
    return usual if 2 * times > distances.total() else max(distances)


def _end_intervals(steps: Collection[int]) -> tuple[int, int]:
    """Return the intervals at the begin and at the end of a curve; both may differ from its usual one."""
    ordered, usual = sorted(steps), usual_interval(steps)
    distances = [b - a for a, b in pairwise(ordered)]
    first, last = ({*part} for part in (distances[:MIN_STRETCH], distances[-MIN_STRETCH:]))
    return (first.pop() if len(first) == 1 else usual, last.pop() if len(last) == 1 else usual)


def _gaps(steps: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the two steps around each gap. A change of the logging interval is no gap."""
    ordered, interval, position = sorted(steps), usual_interval(steps), 0
    for apart, group in groupby(b - a for a, b in pairwise(ordered)):
        run_length = len(list(group))
        if apart >= 2 * interval and run_length < MIN_STRETCH:
            yield from pairwise(ordered[position : position + run_length + 1])
        position += run_length


def lost_steps(losses: Collection[int], logged: Collection[int]) -> list[int]:
    """Return the logged steps that should have a loss: in a gap, or an interval or more outside of both ends.

    losses: the steps that have one. A loss at step 0 is from before the training.
    """
    (first, last), steps, holes = _end_intervals(losses), sorted(losses), dict(_gaps(losses))
    begin, end = steps[0] - first, steps[-1] + last
    steps_without_loss = sorted(step for step in {*logged}.difference(losses) if step > 0)
    return [
        s for s in steps_without_loss if not begin < s < end or (s > steps[0] and steps[bisect(steps, s) - 1] in holes)
    ]


def fill_lost_steps(losses: Curve, logged: Collection[int], skipped: Collection[int] = ()) -> dict[int, float | None]:
    """Return the losses with NaN at each logged step that lost its loss, and None at steps without an update.

    skipped: the steps that the optimizer skipped, as in fp16 where gradients overflow; their trainer prints no loss.
    A training that skips all steps to the end has no loss there, whatever its log calls it.
    """
    if not losses:
        return {}
    left_out: dict[int, float | None] = dict.fromkeys(step for step in skipped if step < max(losses))
    no_loss = dict.fromkeys(lost_steps({*losses, *left_out}, logged), math.nan)
    return {**left_out, **no_loss, **losses}


def mean_log_loss(curve: Curve, tail: Sequence[int]) -> float:
    """Return the mean of the log loss over the tail. Differences of such means are relative differences of losses."""
    return statistics.fmean(math.log(curve[step]) for step in tail)


def tail_share_of_fall(curve: Curve, steps: Sequence[int], tail: Sequence[int]) -> float:
    """Return the share of the loss's fall, from the first step to the end, that lies within the tail.

    The ends of the tail are means over a quarter of it. 1 where the curve does not fall at all.
    """
    quarter = max(1, len(tail) // 4)
    begin, end = (statistics.fmean(curve[s] for s in part) for part in (tail[:quarter], tail[-quarter:]))
    total_fall = curve[steps[0]] - end
    return max(0.0, begin - end) / total_fall if total_fall > 0 else 1.0


def _compare_means(
    ours: list[float], theirs: list[float], margin: float, steps: tuple[int, int], tail_fall_share: float
) -> TailComparison:
    difference = math.expm1(statistics.fmean(ours) - statistics.fmean(theirs))
    if tail_fall_share > MAX_TAIL_FALL:
        expected = f"expected at most {MAX_TAIL_FALL:.0%}"
        reason = f"the loss still falls: {tail_fall_share:.0%} of its fall lies in the tail, {expected}"
        return TailComparison("inconclusive", reason, margin, steps, difference)
    if min(len(ours), len(theirs)) < MIN_RUNS:
        reason = f"one curve does not show how far seeds differ; give at least {MIN_RUNS} runs of each side"
        return TailComparison("inconclusive", reason, margin, steps, difference)
    degrees_of_freedom = min(len(ours), len(theirs)) - 1
    quantile = T_QUANTILES[max(degrees for degrees in T_QUANTILES if degrees <= degrees_of_freedom)]
    half_width = quantile * math.sqrt(sum(statistics.variance(group) / len(group) for group in (ours, theirs)))
    spread = max(statistics.stdev(ours), statistics.stdev(theirs))
    low, high = difference - half_width, difference + half_width
    word: TailVerdict = "inconclusive"
    reason = f"between {low:+.2%} and {high:+.2%} (90 % interval), margin {margin:.2%}"
    if -margin < low and high < margin:
        word = "within the margin"
    elif low > margin or high < -margin:
        word = "beyond the margin"
    else:
        reason += "; more runs narrow the interval"
    return TailComparison(word, reason, margin, steps, difference, spread, low, high)


def is_same_run(curve: LoggedCurve, other: LoggedCurve) -> bool:
    """Return whether two curves agree at every common step. Curves without a common step are of two runs."""
    common = curve.keys() & other.keys()
    for step in common:
        loss, other_loss = curve[step], other[step]
        if loss is None or other_loss is None:  # the optimizer skipped the step: in one run it is skipped in both
            is_same = loss is other_loss
        else:  # two that are no number are the same one
            is_same = (
                loss == other_loss
                or (loss != loss and other_loss != other_loss)
                or abs(loss - other_loss) <= SAME_RUN_TOLERANCE * abs(loss)
            )
        if not is_same:
            return False
    return bool(common)


def first_curve_of_each_run(curves: Sequence[LoggedCurve]) -> list[int]:
    """Return for each curve the number of the first curve of the same run; its own number where it is the first.

    Copies, other formats and shorter pieces of one run, or the same seed again, would narrow the interval without a
    new run.
    """
    firsts: list[int] = []
    for number, curve in enumerate(curves):
        same = (first for first in dict.fromkeys(firsts) if is_same_run(curves[first], curve))
        firsts.append(next(same, number))
    return firsts


def spike_steps(losses: Curve, reference: Curve) -> dict[int, float]:
    """Return the jump of each step that is a spike, where the reference has no jump of half that size."""
    ours, theirs, threshold = loss_jumps(losses), loss_jumps(reference), spike_threshold(reference)
    return {s: jump for s, jump in ours.items() if jump > threshold and not theirs.get(s, 0.0) > jump / 2}


def spike_threshold(reference: Curve) -> float:
    """Return the jump above which a step is a spike."""
    sizes = sorted(loss_jumps(reference).values())
    return max(SPIKE_FACTOR * sizes[len(sizes) // 2] if sizes else 0.0, MIN_SPIKE)


def loss_jumps(losses: Curve) -> dict[int, float]:
    """Return the jump of each step, relative to the median of its neighbours.

    It is the smaller of two differences: from that median, and from the farther of the two steps beside it. So a steady
    fall of the loss is no jump.
    """
    steps, sizes = sorted(losses), {}
    for index, step in enumerate(steps):
        neighbours = [
            losses[s] for s in steps[max(0, index - SPIKE_NEIGHBOURS) : index + SPIKE_NEIGHBOURS + 1] if s != step
        ]
        neighbour_median = sorted(neighbours)[len(neighbours) // 2] if neighbours else losses[step]
        adjacent_steps = steps[max(0, index - 1) : index + 2]
        slope = max((abs(losses[b] - losses[a]) for a, b in pairwise(adjacent_steps)), default=0.0)
        sizes[step] = min(abs(losses[step] - neighbour_median), slope) / max(abs(neighbour_median), 1e-300)
    return sizes


def largest_rise(losses: Curve) -> tuple[int, float]:
    """Return the step whose loss rises most from the step before it, of two or more, and that rise relative to it."""
    rises = {b: (losses[b] - losses[a]) / max(abs(losses[a]), 1e-300) for a, b in pairwise(sorted(losses))}
    step = max(rises, key=lambda step: rises[step])
    return step, rises[step]
