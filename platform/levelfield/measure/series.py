"""Robust statistics of a series: trend, change point, spread, and intervals over repeats.

They do not assume normal distributions, because step times have long tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from levelfield.measure.student import t_quantile

Series = NDArray[np.float64]
MIN_FOR_INTERVAL = 3
_MIN_FOR_ORDER_STATISTICS = 6
_LARGEST_LOG = 700.0  # its exponential is still a float
MAX_PAIRED_VALUES = 2048  # two million pairs: 50 MB and a tenth of a second


@dataclass(frozen=True)
class Trend:
    """The trend of a series."""

    slope: float  # Theil-Sen, per step
    drift: float  # slope x length of the series / its median
    p: float  # Mann-Kendall


@dataclass(frozen=True)
class ChangePoint:
    """The most likely change of level in a series, by Pettitt's test."""

    index: int  # the first element after the change
    shift: float  # difference of the medians / the series' median
    p: float


@dataclass(frozen=True)
class Interval:
    """The median of n values and an interval of `coverage` (at least 0.95) by `method`; None for too few values."""

    n: int
    median: float
    low: float | None
    high: float | None
    coverage: float | None
    method: str


def trend(series: Sequence[float]) -> Trend:
    """Return the Theil-Sen slope (Sen, 1968) and the Mann-Kendall test (Mann, 1945; Kendall, 1975), tie-corrected.

    p is two-sided, by the normal approximation, which is good from ten values on. Raises ValueError below three.
    Both look at every pair, so a series above MAX_PAIRED_VALUES is first halved, by means of neighbours.
    """
    values, values_per_mean = _finite_array(series, fewest=3), 1
    while len(values) > MAX_PAIRED_VALUES:
        values, values_per_mean = values[: len(values) // 2 * 2].reshape(-1, 2).mean(axis=1), 2 * values_per_mean
    first, second = np.triu_indices(len(values), k=1)
    differences = values[second] - values[first]
    slope = float(np.median(differences / (second - first)))
    n, score = len(values), float(np.sign(differences).sum())
    ties = np.unique(values, return_counts=True)[1].astype(float)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    p = 1.0 if variance <= 0 else math.erfc(max(abs(score) - 1, 0) / math.sqrt(variance) / math.sqrt(2))
    return Trend(slope / values_per_mean, _relative_to_median(slope * (n - 1), values), p)


def change_point(series: Sequence[float]) -> ChangePoint:
    """Return the split whose sides differ most in rank (Pettitt, 1979); p = 2 exp(-6 K^2 / (n^3 + n^2)), at most 1.

    Raises ValueError below three values.
    """
    values = _finite_array(series, fewest=3)
    n = len(values)
    # The sum of signs between both sides of a split, by ranks: every pair would take memory of n squared.
    _, tie_group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[tie_group]  # ties have their mean rank
    scores = np.abs(2 * np.cumsum(ranks)[:-1] - np.arange(1, n) * (n + 1))
    index = int(np.argmax(scores)) + 1
    p = min(1.0, 2 * math.exp(-6 * float(scores[index - 1]) ** 2 / (n**3 + n**2)))
    shift = float(np.median(values[index:]) - np.median(values[:index]))
    return ChangePoint(index, _relative_to_median(shift, values), p)


def median_interval(values: Sequence[float], largest_possible: float | None = None) -> Interval:
    """Return the median of repeated measurements with its interval.

    From six values on, the interval lies between two order statistics and assumes nothing (binomial; David and
    Nagaraja, 2003, section 7.1). With three to five values such an interval cannot reach 95 %. Then it is Student's t
    about the mean of the logarithms, which assumes log-normal repeats and is wide: a time or a rate is positive, and so
    is every end. Where a value is not, it is about the mean itself. No end is above `largest_possible`. Two values have
    no interval: it would reach from a tenth to ten times their mean. Raises ValueError when empty or not finite.
    """
    data = np.sort(_finite_array(values, fewest=1))
    n, median = len(data), float(np.median(data))
    if n < MIN_FOR_INTERVAL:
        reason = f"not enough runs: {n}, expected at least {MIN_FOR_INTERVAL}"
        return Interval(n, median, None, None, None, reason)
    if n < _MIN_FOR_ORDER_STATISTICS:
        is_positive = bool(data[0] > 0)
        scaled = np.log(data) if is_positive else data
        half = t_quantile(0.025, n - 1) * float(np.std(scaled, ddof=1)) / math.sqrt(n)
        ends = np.mean(scaled) + np.array([-half, half])
        low, high = map(float, np.exp(np.clip(ends, -_LARGEST_LOG, _LARGEST_LOG)) if is_positive else ends)
        basis = " of the logarithms" if is_positive else ""
        high = high if largest_possible is None else min(high, largest_possible)
        return Interval(n, median, low, high, 0.95, f"student-t about the mean{basis}")
    miss_probability, rank = 0.0, 0  # the largest rank whose interval still covers the median with at least 95 %
    while miss_probability + 2 * math.comb(n, rank) / 2**n <= 0.05:
        miss_probability += 2 * math.comb(n, rank) / 2**n
        rank += 1
    return Interval(n, median, float(data[rank - 1]), float(data[n - rank]), 1 - miss_probability, "order statistics")


def relative_iqr(series: Sequence[float]) -> float:
    """Return (third - first quartile) / median, with quartiles by linear interpolation."""
    values = _finite_array(series, fewest=1)
    low, high = np.quantile(values, [0.25, 0.75])
    return _relative_to_median(float(high - low), values)


def _relative_to_median(difference: float, values: Series) -> float:
    """Return the difference over the median of the values; NaN where that is 0."""
    median = float(np.median(values))
    return difference / median if median else math.nan


def _finite_array(series: Sequence[float], fewest: int) -> Series:
    """Return the series as an array. Raises ValueError for too few values, or one that is not finite."""
    values = np.asarray(series, dtype=np.float64)
    if len(values) < fewest or not np.isfinite(values).all():
        raise ValueError(f"found {len(values)} values, expected at least {fewest}, all finite")
    return values
