"""The tests on pairs: runs of the last accepted build (A) and of another (B), on one node, in one hour, in turns.

Pairs share the night and the node, so neither explains their difference. The order is A B, B A, A B: a steady drift of
the machine cancels. After three to seven pairs a one-sided t test on the differences of costs decides. Its error of
.001 is spread over the five looks (Bonferroni), with most at the last one.

A bisection knows the difference of both ends. So a build only has to be told from the middle between them, by a t test
after each pair from the second on. Its error of .01 at each look is small beside that of a wrong end, because the last
good and the first bad build are both tried.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from levelfield.measure.student import t_quantile
from levelfield.series.level import FLOOR, Level
from levelfield.series.segments import cost_of
from levelfield.series.trigger import Z
from levelfield.specs.record import Gated

FEWEST_PAIRS, MOST_PAIRS = 3, 7
ALPHA = {3: 0.00001, 4: 0.00003, 5: 0.00006, 6: 0.0001, 7: 0.0008}  # in all .001
NO_CHANGE_TAIL = 0.05
_POWER = 0.9
FEWEST_HALFWAY, ALPHA_HALFWAY = 2, 0.01
LEAST_ERROR = 1e-4  # of a mean: equal differences are rounding

PairWord = Literal["regression", "improvement", "no change", "bad night", "inconclusive", "more pairs"]
Side = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class PairRuling:
    """excess, low, high: mean of B - A with its 95 % interval, as costs. first: the mean cost of A.

    pairs: how many counted; more: about how many more are needed. None before there are two pairs.
    """

    word: PairWord
    pairs: int
    excess: float | None = None
    low: float | None = None
    high: float | None = None
    more: int | None = None
    first: float | None = None

    @property
    def is_final(self) -> bool:
        return self.word != "more pairs"


class PairedTest:
    """The sequential test of one figure. direction: 1 where tonight looked worse, -1 where it looked better.

    level: of the series on the pairs' node: an A outside of it shows that the night is bad. None: A is not checked.
    """

    def __init__(self, figure: Gated, direction: int = 1, level: Level | None = None) -> None:
        self._figure, self._direction, self._level = figure, direction, level
        self._pairs: list[tuple[float, float]] = []

    def add(self, a: float | None, b: float | None) -> PairRuling:
        """Add the figures of A and B and return the ruling so far. Only a pair of positive numbers counts."""
        self._pairs += _costs(a, b, self._figure)
        return self.ruling()

    def ruling(self, is_last: bool = False) -> PairRuling:
        """Return what the pairs show. is_last: no more pairs can be run, so it is not `more pairs`."""
        n = len(self._pairs)
        if n < 2:
            return PairRuling("inconclusive" if is_last else "more pairs", n, more=FEWEST_PAIRS - n)
        differences = [self._direction * (b - a) for a, b in self._pairs]
        mean, error = statistics.fmean(differences), _error(differences)
        word = _word(mean, error, n, is_last)
        first = statistics.fmean(a for a, _ in self._pairs)
        level = self._level
        is_bad = level is not None and level.is_own and abs(first - level.cost) > level.threshold(Z)
        if word in ("no change", "inconclusive") and is_bad:
            word = "bad night"
        elif word == "regression" and self._direction < 0:
            word = "improvement"
        half = t_quantile(0.025, n - 1) * error
        low, high = sorted((self._direction * (mean - half), self._direction * (mean + half)))
        more = _more(error, n) if word in ("inconclusive", "more pairs") else None
        return PairRuling(word, n, self._direction * mean, low, high, more, first)


def judged_pairs(
    pairs: list[tuple[float | None, float | None]], figure: Gated, direction: int, level: Level | None
) -> PairRuling:
    """Return the ruling over pairs that were run, at the first look that decides."""
    test = PairedTest(figure, direction, level)
    for a, b in pairs[:-1]:
        if (found := test.add(a, b)).is_final:
            return found
    if pairs:
        test.add(*pairs[-1])
    return test.ruling(is_last=True)


def _word(mean: float, error: float, n: int, is_last: bool) -> PairWord:
    """Return `regression` for a mean difference that is proven, in the direction that is tested."""
    if n >= FEWEST_PAIRS:
        if mean > FLOOR and mean - t_quantile(ALPHA[min(n, MOST_PAIRS)], n - 1) * error > 0:
            return "regression"
        if mean + t_quantile(NO_CHANGE_TAIL, n - 1) * error < FLOOR:
            return "no change"
    return "inconclusive" if is_last or n >= MOST_PAIRS else "more pairs"


def _error(differences: list[float]) -> float:
    return max(LEAST_ERROR, statistics.stdev(differences) / math.sqrt(len(differences)))


def _costs(a: float | None, b: float | None, figure: Gated) -> list[tuple[float, float]]:
    """Return the costs of a pair; nothing for one without two positive numbers."""
    first, second = cost_of(a, figure), cost_of(b, figure)
    return [(first, second)] if first is not None and second is not None else []


def _more(error: float, n: int) -> int:
    """Return about how many more pairs a change of the floor's size needs: 2 ((z_a + z_b) s_run / delta)^2."""
    normal = statistics.NormalDist()
    run = error * math.sqrt(n / 2)  # a difference has the noise of two runs
    factor = normal.inv_cdf(1 - ALPHA[MOST_PAIRS]) + normal.inv_cdf(_POWER)
    return max(1, math.ceil(2 * (factor * run / FLOOR) ** 2) - n)


@dataclass
class HalfwayTest:
    """The sequential test of one build of a bisection. effect: mean cost of the bad end less that of the good one."""

    figure: Gated
    effect: float
    _differences: list[float] = field(default_factory=list)

    def add(self, good: float | None, tried: float | None) -> Side:
        """Add the figures of a pair and return the side so far. A pair without two positive numbers does not count."""
        self._differences += [second - first for first, second in _costs(good, tried, self.figure)]
        n = len(self._differences)
        if n < FEWEST_HALFWAY:
            return "unknown"
        mean = statistics.fmean(self._differences)
        reach = t_quantile(ALPHA_HALFWAY, n - 1) * _error(self._differences)
        if mean - reach > self.effect / 2:
            return "bad"
        return "good" if mean + reach < self.effect / 2 else "unknown"
