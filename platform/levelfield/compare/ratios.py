"""The ratio of a figure between two sides, with its interval, and whether it can be told from noise.

The unit is the run, because steps of one run share what differs between runs: an interval over the steps of one run
calls identical pairs different. The figures are compared by their logarithms, so the interval is of a ratio and is the
same whichever side is the base. It is Welch's (1947), with Satterthwaite's degrees of freedom (1946) rounded down.
Where the sides have different numbers of runs, the smaller number caps them: without that cap the interval is too
narrow, as the simulation in benchmarks/comparison_coverage.py shows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEAST_RUNS = 3  # of a side that has to show its own noise
LEAST_HISTORY = 7  # runs of a series whose history shows its noise
# Of the logarithm. Readings are rounded, so equal readings of some runs do not show that there is no noise.
LEAST_DEVIATION = 0.001
COVERAGE = 0.95
MOST_MORE = 100  # runs that more_runs looks ahead
# Two-sided 95 % quantiles of Student's t by degrees of freedom; between two of them, the fewer degrees count.
QUANTILES = {
    1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622, 10: 2.2281,
    12: 2.1788, 15: 2.1314, 20: 2.0860, 30: 2.0423, 60: 2.0003, 120: 1.9799,
}  # fmt: skip

Standing = Literal["higher", "lower", "within noise", "inconclusive", "see alignment", "no ratio"]


@dataclass(frozen=True)
class HistoricNoise:
    """How far runs of one series differed: the standard deviation of the logarithm over `runs` runs of its history."""

    deviation: float
    runs: int


@dataclass(frozen=True)
class SideValues:
    """The values of one side, one of each run. history: of the side's series, where the store knows it."""

    values: tuple[float, ...]
    history: HistoricNoise | None = None


@dataclass(frozen=True)
class Ratio:
    """A side's geometric mean over the base's. low, high: the 95 % interval; None where there is none.

    standing: the side against the base, and whether that can be told from noise. reason: how, or why not.
    """

    value: float | None
    low: float | None
    high: float | None
    standing: Standing
    reason: str


@dataclass(frozen=True)
class _Mean:
    """The mean of logarithms with its variance; freedom: of that variance."""

    value: float
    variance: float
    freedom: int


def ratio(side: SideValues, base: SideValues) -> Ratio:
    """Return side over base. A value that is not a positive number gives no ratio; too few runs give no interval."""
    for values in (side.values, base.values):
        if not values or not all(0 < value < math.inf for value in values):  # NaN fails this too
            return Ratio(None, None, None, "no ratio", f"found {list(values)}, expected positive numbers")
    difference = statistics.fmean(map(math.log, side.values)) - statistics.fmean(map(math.log, base.values))
    means = _mean(side), _mean(base)
    if means[0] is None or means[1] is None:
        return Ratio(_exp(difference), None, None, "inconclusive", _too_few(side, base))
    half, freedom = _half_width(means[0], means[1])
    low, high = _exp(difference - half), _exp(difference + half)
    return Ratio(_exp(difference), low, high, _standing(low, high), _described(side, base, freedom))


def exact(value: float) -> SideValues:
    """Return a stated number as a side: it has no noise but that of its rounding."""
    return SideValues((value,), HistoricNoise(0.0, max(QUANTILES) + 1))


def more_runs(side: SideValues, base: SideValues, limit: float) -> int | None:
    """Return how many more runs of each side tell the ratio from the limit, if they come out as those so far.

    None: more than MOST_MORE. Raises ValueError where a value is no positive number.
    """
    means = _mean(side), _mean(base)
    if means[0] is None or means[1] is None:
        return max(LEAST_RUNS - len(each.values) for each in (side, base) if not each.history)
    apart = abs(means[0].value - means[1].value - math.log(limit))
    for more in range(1, MOST_MORE + 1):
        of_side, of_base = _mean(side, more), _mean(base, more)
        if of_side and of_base and _half_width(of_side, of_base)[0] < apart:
            return more
    return None


def historic_noise(values: Sequence[float]) -> HistoricNoise | None:
    """Return the noise of a series by the values of its earlier runs; None where they are too few."""
    known = [math.log(value) for value in values if 0 < value < math.inf]
    return HistoricNoise(statistics.stdev(known), len(known)) if len(known) >= LEAST_HISTORY else None


def _exp(logarithm: float) -> float:
    """Return e to this power, within the numbers that a document can hold."""
    return math.exp(max(-700.0, min(logarithm, 700.0)))


def _mean(of: SideValues, more: int = 0) -> _Mean | None:
    """Return the mean of the logarithms, as with `more` such runs; None where nothing shows how far runs differ."""
    logs, runs = [math.log(value) for value in of.values], len(of.values) + more
    if len(of.values) >= LEAST_RUNS:
        deviation, known = statistics.stdev(logs), runs
    elif of.history:
        deviation, known = of.history.deviation, of.history.runs
    else:
        return None
    return _Mean(statistics.fmean(logs), max(deviation, LEAST_DEVIATION) ** 2 / runs, known - 1)


def _half_width(side: _Mean, base: _Mean) -> tuple[float, int]:
    """Return half of the interval of the difference of two means, and its degrees of freedom."""
    both = side.variance + base.variance
    freedom = both**2 / (side.variance**2 / side.freedom + base.variance**2 / base.freedom)
    if side.freedom != base.freedom:
        freedom = min(freedom, min(side.freedom, base.freedom) + 1)
    whole = int(freedom + 1e-9)  # equal variances give a whole number, less a rounding error
    return QUANTILES[max(known for known in QUANTILES if known <= whole)] * math.sqrt(both), whole


def _standing(low: float, high: float) -> Standing:
    if low > 1:
        return "higher"
    return "lower" if high < 1 else "within noise"


def _too_few(side: SideValues, base: SideValues) -> str:
    counts = f"{len(base.values)} and {len(side.values)} run(s)"
    return (
        f"{counts}, expected at least {LEAST_RUNS} of each side, or a stored history of {LEAST_HISTORY} runs of the "
        "series: one run does not show how far runs differ. Run each with --repeat 3, then compare --repeats"
    )


def _described(side: SideValues, base: SideValues, freedom: int) -> str:
    known = ["their history" if len(each.values) < LEAST_RUNS else "the runs" for each in (base, side)]
    origin = " and ".join(dict.fromkeys(known))
    return f"95 %, Welch on logarithms, {freedom} degrees of freedom, noise of {origin}"
