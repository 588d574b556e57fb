"""Tests on pairs: runs of the last accepted build (A) and of another (B), on one node, within an hour, in turns.

Pairs share the night and the node, so neither explains their difference. The order is A B, B A, A B: a steady drift of
the machine cancels. After three to seven pairs a one-sided t test on the differences of costs decides. Its error of
.001 is spread over the five looks (Bonferroni), with most at the last one.

What is proven may still be the arms: a checkout or a cache that makes B's side slower whatever its build. Null pairs
have one build on both sides, so their mean is the arms' bias. A regression stands where the difference less the bias is
above the floor, and its one-sided bound excludes 0: a t test with the scatter of both, because pairs that show a
regression often scatter less than others by chance. Its error is .0025 at each look.
Where the bias excludes 0 it is .0003, because there every suspicion leads to pairs that show a difference.

A bisection knows the difference of both ends. So a build only has to be told from the middle between them, by a t test
after each pair from the second on. Its error of .01 at each look is small beside that of a wrong end, because the last
good and the first bad build are both tried.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from levelfield.measure.student import t_quantile
from levelfield.series.level import MIN_CHANGE, Level
from levelfield.series.segments import cost_of
from levelfield.series.trigger import SUSPICION_Z
from levelfield.specs.record import GatedFigure

MIN_PAIRS, MAX_PAIRS = 3, 7
# Null pairs before a regression is named: three often do not show the arms' bias.
MIN_NULL_PAIRS = 7
# Null pairs of a series in a night: with 7 a fall of 2 % is found less often than without any.
MAX_NULL_PAIRS_PER_NIGHT = 14
# One-sided errors (alpha) of the tests.
ALPHA_BY_PAIRS = {3: 0.00001, 4: 0.00003, 5: 0.00006, 6: 0.0001, 7: 0.0008}  # by the number of pairs; in all .001
NO_CHANGE_TAIL = 0.05
ALPHA_OF_BISECTION = 0.01  # of a bisection, at each look from MIN_BISECTION_PAIRS pairs on
ALPHA_OF_PART = 0.005  # of a part that is subtracted: the arms' bias, or the build's share of a step
ALPHA_LESS_SHOWN_BIAS = 0.0003  # where the bias excludes 0: each suspicion then looks like a regression
ALPHA_LESS_BIAS = 0.0025  # at each look, after MIN_NULL_PAIRS to MAX_NULL_PAIRS_PER_NIGHT null pairs
MIN_BISECTION_PAIRS = 2
_POWER = 0.9  # of the test for which further pairs are counted
MIN_STANDARD_ERROR = 1e-4  # standard error of a mean: smaller ones are rounding


@dataclass(frozen=True)
class Looks:
    """When a test on pairs may decide."""

    alpha: Mapping[int, float]  # its one-sided error after so many pairs, from the fewest to the most
    min_change: float = MIN_CHANGE  # as a cost; a smaller one does not count
    no_change: float | None = None  # one-sided error of the word `no change`; None: that of the look
    interval: float | None = None  # one-sided error of the interval; None: that of the look

    def error_at(self, pairs: int) -> float:
        return self.alpha[min(max(pairs, min(self.alpha)), max(self.alpha))]


NIGHTLY_LOOKS = Looks(ALPHA_BY_PAIRS, no_change=NO_CHANGE_TAIL, interval=0.025)

Pair = tuple[float | None, float | None]  # one figure of A and of B; only positive numbers count
PairWord = Literal["regression", "improvement", "no change", "bad night", "inconclusive", "more pairs"]
BuildVerdict = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class PairRuling:
    """What pairs show so far: B - A as costs. Figures are None before there are two pairs."""

    word: PairWord
    pairs: int  # how many counted
    excess: float | None = None  # mean of B - A, with its 95 % interval from `low` to `high`
    low: float | None = None
    high: float | None = None
    more_pairs: int | None = None  # about how many more are needed
    mean_cost_a: float | None = None
    standard_error: float | None = None  # of `excess`
    bias: ArmBias | None = None  # by null pairs
    is_bias_removed: bool = False  # excess and interval are without the bias
    build_word: PairWord = "more pairs"  # the word by B - A alone, whatever the level of A
    is_reconfirmed: bool = False  # one pair shows a named regression again: its word stays, and no further pair is run

    @property
    def proven_excess(self) -> float:
        """How much worse B is, as a cost, where the pairs show that it is worse or better; else 0."""
        if self.excess is None or self.standard_error is None or self.pairs < MIN_PAIRS:
            return 0.0
        half_width = t_quantile(ALPHA_OF_PART, self.pairs - 1) * self.standard_error
        return self.excess if abs(self.excess) > max(MIN_CHANGE, half_width) else 0.0

    @property
    def is_decided(self) -> bool:
        """Whether it says which build is worse, or that neither is."""
        return self.build_word not in ("inconclusive", "more pairs")


def pairs_so_far(
    pairs: Sequence[Pair],
    figure: GatedFigure,
    direction: int = 1,
    level: Level | None = None,
    looks: Looks = NIGHTLY_LOOKS,
    is_last: bool = False,
) -> PairRuling:
    """Return what pairs show. direction: 1 where tonight looked worse, -1 where it looked better.

    Direction 0: both are possible, and the pairs' own direction is tested; each error is then of either direction.
    level: of the series on the pairs' node: an A outside of it shows that the night is bad. None: A is not checked.
    is_last: no more pairs can be run, so the word is not `more pairs`.
    """
    costs = _pair_costs(pairs, figure)
    n = len(costs)
    if n < 2:
        open_word: PairWord = "inconclusive" if is_last else "more pairs"
        return PairRuling(open_word, n, more_pairs=min(looks.alpha) - n, build_word=open_word)
    excesses = [b - a for a, b in costs]
    sign = direction or (1 if statistics.fmean(excesses) > 0 else -1)
    differences = [sign * excess for excess in excesses]
    mean, error = statistics.fmean(differences), _standard_error(differences)
    word = build_word = _difference_word(mean, error, n, is_last, looks)
    mean_a = statistics.fmean(a for a, _ in costs)
    is_bad = level is not None and level.is_of_node and abs(mean_a - level.cost) > level.threshold(SUSPICION_Z)
    if word in ("no change", "inconclusive") and is_bad:
        word = "bad night"
    elif word == "regression" and sign < 0:
        word = build_word = "improvement"
    half_width = t_quantile(looks.interval or looks.error_at(n), n - 1) * error
    low, high = sorted((sign * (mean - half_width), sign * (mean + half_width)))
    effect = looks.min_change if direction else max(looks.min_change, mean)
    more_pairs = _pairs_needed(error, n, effect, looks) if build_word in ("inconclusive", "more pairs") else None
    return PairRuling(word, n, sign * mean, low, high, more_pairs, mean_a, error, build_word=build_word)


def is_reconfirmed(pairs: Sequence[Pair], figure: GatedFigure, limit: float | None) -> bool:
    """Whether the first pair shows a named regression again: its B is worse by more than the limit, as a cost."""
    costs = _pair_costs(pairs[:1], figure)
    return limit is not None and bool(costs) and costs[0][1] - costs[0][0] > limit


def judge_pairs(
    pairs: Sequence[Pair],
    figure: GatedFigure,
    direction: int,
    level: Level | None,
    limit: float | None = None,
) -> PairRuling:
    """Return the ruling over pairs that were run, at the first look that decides. limit: as in is_reconfirmed."""
    if is_reconfirmed(pairs, figure, limit):
        ((a, b),) = _pair_costs(pairs[:1], figure)
        return PairRuling("inconclusive", 1, b - a, build_word="inconclusive", is_reconfirmed=True)
    for n in range(1, len(pairs)):
        if (ruling := pairs_so_far(pairs[:n], figure, direction, level)).word != "more pairs":
            return ruling
    return pairs_so_far(pairs, figure, direction, level, is_last=True)


@dataclass(frozen=True)
class ArmBias:
    """How much worse the second arm is with one build in both: the mean cost with its 95 % interval, of null pairs."""

    pairs: int
    excess: float
    standard_error: float  # of the mean

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return t_quantile(0.025, self.pairs - 1) * self.standard_error

    @property
    def is_a_fault(self) -> bool:
        """Whether the bias is beyond the floor, and its 99 % interval excludes 0."""
        return abs(self.excess) > max(MIN_CHANGE, t_quantile(ALPHA_OF_PART, self.pairs - 1) * self.standard_error)


def arm_bias(pairs: Iterable[Pair], figure: GatedFigure) -> ArmBias | None:
    """Return the bias that null pairs show; None below MIN_PAIRS. Only a pair of positive numbers counts."""
    differences = [b - a for a, b in _pair_costs(pairs, figure)]
    if len(differences) < MIN_PAIRS:
        return None
    return ArmBias(len(differences), statistics.fmean(differences), _standard_error(differences))


def correct_by_null_pairs(
    ruling: PairRuling,
    null_pairs: Iterable[Pair],
    more_null_pairs: Iterable[Pair],
    figure: GatedFigure,
    is_open: bool = False,
) -> PairRuling:
    """Return a regression as it is without the arms' bias; another ruling unchanged.

    null_pairs: those that have run. more_null_pairs: runs further ones; no more are taken than are needed. is_open: an
    earlier night named a regression; pairs that do not decide may then show, without the bias, that it is gone.
    """
    if ruling.is_reconfirmed:
        return ruling
    if is_open and ruling.build_word == "inconclusive" and ruling.pairs >= MIN_PAIRS:
        # all null pairs at once: each further look may take chance for a fault
        bias = arm_bias([*null_pairs, *more_null_pairs], figure)
        if bias is None or not bias.is_a_fault or (reduced := _subtract_bias(ruling, bias)).word != "no change":
            return ruling
        return reduced if ruling.word == "inconclusive" else replace(reduced, word=ruling.word)
    if ruling.word != "regression":
        return ruling
    stored_pairs, new_pairs, further_pairs = list(null_pairs), list[Pair](), iter(more_null_pairs)
    while True:
        # tonight's alone as soon as they are enough: those of an earlier, noisy night would hide what they show
        pairs = new_pairs if len(new_pairs) >= MIN_NULL_PAIRS else [*stored_pairs, *new_pairs]
        bias = arm_bias(pairs, figure)
        reduced = _subtract_bias(ruling, bias) if bias is not None else ruling
        if reduced.word == "regression" and len(pairs) >= MIN_NULL_PAIRS:
            return reduced
        if (pair := next(further_pairs, None)) is None:
            return reduced
        new_pairs.append(pair)


def _subtract_bias(ruling: PairRuling, bias: ArmBias) -> PairRuling:
    """Return the ruling on the difference less the bias. A bias whose interval holds 0 changes no figure."""
    assert ruling.excess is not None and ruling.standard_error is not None
    excess, freedom = ruling.excess - bias.excess, ruling.pairs + bias.pairs - 2
    squares = sum(
        error**2 * n * (n - 1)
        for error, n in ((ruling.standard_error, ruling.pairs), (bias.standard_error, bias.pairs))
    )
    error = math.sqrt(squares / freedom * (1 / ruling.pairs + 1 / bias.pairs))
    is_shown = abs(bias.excess) > bias.half_width
    tail = ALPHA_LESS_SHOWN_BIAS if is_shown else ALPHA_LESS_BIAS
    if excess > MIN_CHANGE and excess - t_quantile(tail, freedom) * error > 0:
        word: PairWord = "regression"
    else:
        word = "no change" if excess + t_quantile(NO_CHANGE_TAIL, freedom) * error < MIN_CHANGE else "inconclusive"
    if word == "regression" and not is_shown:
        return replace(ruling, bias=bias)
    half_width, more_pairs = t_quantile(0.025, freedom) * error, None
    if word == "inconclusive":
        more_pairs = _pairs_needed(ruling.standard_error, ruling.pairs, MIN_CHANGE, NIGHTLY_LOOKS)
    return replace(
        ruling, word=word, build_word=word, excess=excess, low=excess - half_width, high=excess + half_width,
        standard_error=error, bias=bias, is_bias_removed=True, more_pairs=more_pairs,
    )  # fmt: skip


def _difference_word(mean: float, error: float, n: int, is_last: bool, looks: Looks) -> PairWord:
    """Return `regression` for a mean difference that is proven, in the direction that is tested."""
    if n >= min(looks.alpha):
        if mean > looks.min_change and mean - t_quantile(looks.error_at(n), n - 1) * error > 0:
            return "regression"
        if mean + t_quantile(looks.no_change or looks.error_at(n), n - 1) * error < looks.min_change:
            return "no change"
    return "inconclusive" if is_last or n >= max(looks.alpha) else "more pairs"


def _standard_error(differences: list[float]) -> float:
    return max(MIN_STANDARD_ERROR, statistics.stdev(differences) / math.sqrt(len(differences)))


def _pair_costs(pairs: Iterable[Pair], figure: GatedFigure) -> list[tuple[float, float]]:
    """Return the costs of the pairs that have two positive numbers."""
    costs = ((cost_of(a, figure), cost_of(b, figure)) for a, b in pairs)
    return [(a, b) for a, b in costs if a is not None and b is not None]


def _pairs_needed(error: float, n: int, effect: float, looks: Looks) -> int:
    """Return about how many more pairs would show a change of this size: 2 ((z_a + z_b) s_run / effect)^2."""
    normal = statistics.NormalDist()
    run_deviation = error * math.sqrt(n / 2)  # a difference has the noise of two runs
    factor = normal.inv_cdf(1 - looks.error_at(max(looks.alpha))) + normal.inv_cdf(_POWER)
    return max(1, math.ceil(2 * (factor * run_deviation / effect) ** 2) - n)


def halfway_verdict(pairs: Iterable[Pair], figure: GatedFigure, effect: float) -> BuildVerdict:
    """Return whether a build of a bisection is like the good or the bad end, by its pairs with the good one so far.

    effect: mean cost of the bad end less that of the good one.
    """
    differences = [trial - good for good, trial in _pair_costs(pairs, figure)]
    n = len(differences)
    if n < MIN_BISECTION_PAIRS:
        return "unknown"
    mean, half_width = (
        statistics.fmean(differences),
        t_quantile(ALPHA_OF_BISECTION, n - 1) * _standard_error(differences),
    )
    if mean - half_width > effect / 2:
        return "bad"
    return "good" if mean + half_width < effect / 2 else "unknown"
