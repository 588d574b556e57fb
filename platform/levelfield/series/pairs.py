"""The tests on pairs: runs of the last accepted build (A) and of another (B), on one node, in one hour, in turns.

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
MIN_NULLS = 7  # before a regression is named: after three the arms' bias is often not shown
MAX_NULLS_OF_A_NIGHT = 14  # of a series: with 7 a fall of 2 % is found less often than without null pairs
ALPHA = {3: 0.00001, 4: 0.00003, 5: 0.00006, 6: 0.0001, 7: 0.0008}  # in all .001
NO_CHANGE_TAIL = 0.05
_POWER = 0.9
MIN_HALFWAY, ALPHA_HALFWAY = 2, 0.01
ALPHA_OF_PART = 0.005  # of what is taken off: the arms' bias, or the build's part of a step
ALPHA_LESS_SHOWN_BIAS = 0.0003  # where the bias excludes 0: each suspicion then looks like a regression
ALPHA_LESS_BIAS = 0.0025  # at each look, after MIN_NULLS to MAX_NULLS_OF_A_NIGHT null pairs
MIN_ERROR = 1e-4  # of a mean: equal differences are rounding


@dataclass(frozen=True)
class Looks:
    """When a test on pairs may decide."""

    alpha: Mapping[int, float]  # its one-sided error after so many pairs, from the fewest to the most
    least_change: float = MIN_CHANGE  # of the cost
    no_change: float | None = None  # one-sided error of the word `no change`; None: that of the look
    interval: float | None = None  # one-sided error of the interval; None: that of the look

    def error_at(self, pairs: int) -> float:
        return self.alpha[min(max(pairs, min(self.alpha)), max(self.alpha))]


NIGHTLY = Looks(ALPHA, no_change=NO_CHANGE_TAIL, interval=0.025)

Pair = tuple[float | None, float | None]  # the figures of A and of B; only positive numbers count
PairWord = Literal["regression", "improvement", "no change", "bad night", "inconclusive", "more pairs"]
Side = Literal["good", "bad", "unknown"]


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
    error: float | None = None  # of the mean
    bias: ArmBias | None = None  # of the arms, by null pairs
    is_bias_removed: bool = False  # whether the bias is taken from excess and interval
    build_word: PairWord = "more pairs"  # the word whatever A's level is
    is_reconfirmed: bool = False  # one pair shows a named regression again: its word stays, and no further pair is run

    @property
    def proven_excess(self) -> float:
        """How much worse B is, as a cost, where the pairs show that it is worse or better; else 0."""
        if self.excess is None or self.error is None or self.pairs < MIN_PAIRS:
            return 0.0
        half_width = t_quantile(ALPHA_OF_PART, self.pairs - 1) * self.error
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
    looks: Looks = NIGHTLY,
    is_last: bool = False,
) -> PairRuling:
    """Return what pairs show. direction: 1 where tonight looked worse, -1 where it looked better.

    0: both are possible, and the test is of the direction that the pairs have; then each error is of either direction.
    level: of the series on the pairs' node: an A outside of it shows that the night is bad. None: A is not checked.
    is_last: no more pairs can be run, so it is not `more pairs`.
    """
    costs = _costs(pairs, figure)
    n = len(costs)
    if n < 2:
        open_word: PairWord = "inconclusive" if is_last else "more pairs"
        return PairRuling(open_word, n, more_pairs=min(looks.alpha) - n, build_word=open_word)
    excesses = [b - a for a, b in costs]
    sign = direction or (1 if statistics.fmean(excesses) > 0 else -1)
    differences = [sign * excess for excess in excesses]
    mean, error = statistics.fmean(differences), _error(differences)
    word = build_word = _word(mean, error, n, is_last, looks)
    first = statistics.fmean(a for a, _ in costs)
    is_bad = level is not None and level.is_own and abs(first - level.cost) > level.threshold(SUSPICION_Z)
    if word in ("no change", "inconclusive") and is_bad:
        word = "bad night"
    elif word == "regression" and sign < 0:
        word = build_word = "improvement"
    half = t_quantile(looks.interval or looks.error_at(n), n - 1) * error
    low, high = sorted((sign * (mean - half), sign * (mean + half)))
    effect = looks.least_change if direction else max(looks.least_change, mean)
    more = _more(error, n, effect, looks) if build_word in ("inconclusive", "more pairs") else None
    return PairRuling(word, n, sign * mean, low, high, more, first, error, build_word=build_word)


def is_reconfirmed(pairs: Sequence[Pair], figure: GatedFigure, limit: float | None) -> bool:
    """Whether the first pair shows a named regression again: its B is worse by more than the limit, as a cost."""
    costs = _costs(pairs[:1], figure)
    return limit is not None and bool(costs) and costs[0][1] - costs[0][0] > limit


def judged_pairs(
    pairs: Sequence[Pair],
    figure: GatedFigure,
    direction: int,
    level: Level | None,
    limit: float | None = None,
) -> PairRuling:
    """Return the ruling over pairs that were run, at the first look that decides. limit: as in is_reconfirmed."""
    if is_reconfirmed(pairs, figure, limit):
        ((a, b),) = _costs(pairs[:1], figure)
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
    error: float

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return t_quantile(0.025, self.pairs - 1) * self.error

    @property
    def is_a_fault(self) -> bool:
        """Whether the bias is beyond the floor, and its 99 % interval excludes 0."""
        return abs(self.excess) > max(MIN_CHANGE, t_quantile(ALPHA_OF_PART, self.pairs - 1) * self.error)


def arm_bias(pairs: Iterable[Pair], figure: GatedFigure) -> ArmBias | None:
    """Return the bias that null pairs show; None below MIN_PAIRS. Only a pair of positive numbers counts."""
    differences = [b - a for a, b in _costs(pairs, figure)]
    if len(differences) < MIN_PAIRS:
        return None
    return ArmBias(len(differences), statistics.fmean(differences), _error(differences))


def checked_by_nulls(
    ruling: PairRuling, nulls: Iterable[Pair], more: Iterable[Pair], figure: GatedFigure, is_open: bool = False
) -> PairRuling:
    """Return a regression that stands against the arms' bias, or what is left of it; another ruling as it is.

    nulls, more: null pairs that have run, and further ones, of which no more are taken than are needed. is_open:
    whether an earlier night named a regression; then pairs that do not decide may show by the bias that it is gone.
    """
    if ruling.is_reconfirmed:
        return ruling
    if is_open and ruling.build_word == "inconclusive" and ruling.pairs >= MIN_PAIRS:
        bias = arm_bias([*nulls, *more], figure)  # one look: each further one may take chance for a fault
        if bias is None or not bias.is_a_fault or (reduced := _less(ruling, bias)).word != "no change":
            return ruling
        return reduced if ruling.word == "inconclusive" else replace(reduced, word=ruling.word)
    if ruling.word != "regression":
        return ruling
    stored, new_pairs, further = list(nulls), list[Pair](), iter(more)
    while True:
        # tonight's alone once they are enough: those of a noisy night would hide what they show
        pairs = new_pairs if len(new_pairs) >= MIN_NULLS else [*stored, *new_pairs]
        bias = arm_bias(pairs, figure)
        reduced = _less(ruling, bias) if bias is not None else ruling
        if reduced.word == "regression" and len(pairs) >= MIN_NULLS:
            return reduced
        if (pair := next(further, None)) is None:
            return reduced
        new_pairs.append(pair)


def _less(ruling: PairRuling, bias: ArmBias) -> PairRuling:
    """Return the ruling on the difference less the bias. A bias that is not shown changes no figure."""
    assert ruling.excess is not None and ruling.error is not None
    excess, freedom = ruling.excess - bias.excess, ruling.pairs + bias.pairs - 2
    squares = sum(error**2 * n * (n - 1) for error, n in ((ruling.error, ruling.pairs), (bias.error, bias.pairs)))
    error = math.sqrt(squares / freedom * (1 / ruling.pairs + 1 / bias.pairs))
    is_shown = abs(bias.excess) > bias.half_width
    tail = ALPHA_LESS_SHOWN_BIAS if is_shown else ALPHA_LESS_BIAS
    if excess > MIN_CHANGE and excess - t_quantile(tail, freedom) * error > 0:
        word: PairWord = "regression"
    else:
        word = "no change" if excess + t_quantile(NO_CHANGE_TAIL, freedom) * error < MIN_CHANGE else "inconclusive"
    if word == "regression" and not is_shown:
        return replace(ruling, bias=bias)
    half = t_quantile(0.025, freedom) * error
    return replace(
        ruling, word=word, build_word=word, excess=excess, low=excess - half, high=excess + half, error=error,
        bias=bias, is_bias_removed=True,
        more_pairs=_more(ruling.error, ruling.pairs, MIN_CHANGE, NIGHTLY) if word == "inconclusive" else None,
    )  # fmt: skip


def _word(mean: float, error: float, n: int, is_last: bool, looks: Looks) -> PairWord:
    """Return `regression` for a mean difference that is proven, in the direction that is tested."""
    if n >= min(looks.alpha):
        if mean > looks.least_change and mean - t_quantile(looks.error_at(n), n - 1) * error > 0:
            return "regression"
        if mean + t_quantile(looks.no_change or looks.error_at(n), n - 1) * error < looks.least_change:
            return "no change"
    return "inconclusive" if is_last or n >= max(looks.alpha) else "more pairs"


def _error(differences: list[float]) -> float:
    return max(MIN_ERROR, statistics.stdev(differences) / math.sqrt(len(differences)))


def _costs(pairs: Iterable[Pair], figure: GatedFigure) -> list[tuple[float, float]]:
    """Return the costs of the pairs that have two positive numbers."""
    costs = ((cost_of(a, figure), cost_of(b, figure)) for a, b in pairs)
    return [(a, b) for a, b in costs if a is not None and b is not None]


def _more(error: float, n: int, effect: float, looks: Looks) -> int:
    """Return about how many more pairs a change of this size needs: 2 ((z_a + z_b) s_run / effect)^2."""
    normal = statistics.NormalDist()
    run = error * math.sqrt(n / 2)  # a difference has the noise of two runs
    factor = normal.inv_cdf(1 - looks.error_at(max(looks.alpha))) + normal.inv_cdf(_POWER)
    return max(1, math.ceil(2 * (factor * run / effect) ** 2) - n)


def halfway_side(pairs: Iterable[Pair], figure: GatedFigure, effect: float) -> Side:
    """Return on which side a build of a bisection is, by its pairs with the good end so far.

    effect: mean cost of the bad end less that of the good one.
    """
    differences = [trial - good for good, trial in _costs(pairs, figure)]
    n = len(differences)
    if n < MIN_HALFWAY:
        return "unknown"
    mean, half_width = statistics.fmean(differences), t_quantile(ALPHA_HALFWAY, n - 1) * _error(differences)
    if mean - half_width > effect / 2:
        return "bad"
    return "good" if mean + half_width < effect / 2 else "unknown"
