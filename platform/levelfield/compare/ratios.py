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

from levelfield.measure.series import MIN_FOR_INTERVAL
from levelfield.specs.record import DuelConclusion

MIN_RUNS = MIN_FOR_INTERVAL  # a side with so many runs shows its own noise
MIN_NIGHTS_OF_HISTORY = 7  # so many nights of a series show its noise
# Of the logarithm. Readings are rounded, so equal readings of some runs do not show that there is no noise.
MIN_DEVIATION = 0.001
_SAME_RATIO_TOLERANCE = 1e-6  # of logarithms: a duel whose ratio is farther from that of the runs is not of them
_MAX_ORIGINS = 2  # a sentence names no more origins of noise
# Two-sided 95 % quantiles of Student's t by degrees of freedom; between two entries, the fewer degrees count.
T_QUANTILES = {
    1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622, 10: 2.2281,
    12: 2.1788, 15: 2.1314, 20: 2.0860, 30: 2.0423, 60: 2.0003, 120: 1.9799,
}  # fmt: skip

Standing = Literal["higher", "lower", "within noise", "inconclusive", "see alignment", "no ratio"]


@dataclass(frozen=True)
class HistoricNoise:
    """How far runs of one series differed."""

    deviation: float  # standard deviation of the logarithm
    runs: int  # how many, one of each night
    origin: str = "a stated number"  # which runs they are, in words


@dataclass(frozen=True)
class DuelArm:
    """The runs that a side has in a duel."""

    duel: DuelConclusion
    is_b: bool  # they are B of the duel, not A
    log_speed: float  # the mean of the logarithms of their speeds
    log_mean: float  # the mean of the logarithms of the figure: a constant of the side, times speed ** `speed_exponent`
    speed_exponent: Literal[1, -1] = 1  # 1 for tokens/s, -1 for a cost


@dataclass(frozen=True)
class SideValues:
    """The values of one side, one of each run."""

    values: tuple[float, ...]
    history: HistoricNoise | None = None  # of the side's series, where the store knows it
    duels: tuple[DuelArm, ...] = ()  # those of which it has all runs, the newest last


@dataclass(frozen=True)
class Ratio:
    """A side's geometric mean over the base's, with its 95 % interval."""

    value: float | None
    low: float | None  # None, as `high`, where there is no interval
    high: float | None
    standing: Standing  # the side against the base, and whether that can be told from noise
    reason: str  # the method of the interval, or why there is none
    pairs: int | None = None  # number of pairs of runs in turns that it rests on; None: it rests on independent runs

    @property
    def label(self) -> str:
        """Return the ratio for a table that has no room for its interval: a word where the noise is not known."""
        if self.value is None or self.low is None:
            return self.standing
        return f"{self.value:.3f}" + ("~" if self.standing == "within noise" else "")

    @property
    def ends(self) -> str:
        """Return the interval; empty where there is none."""
        return "" if self.low is None or self.high is None else f"[{self.low:.3f}, {self.high:.3f}]"

    @property
    def difference(self) -> str:
        """Return the standing with its size, such as `5.2 % lower`; where noise hides the size, the standing alone."""
        if self.value is None or self.standing not in ("higher", "lower"):
            return self.standing
        return f"{100 * abs(self.value - 1):.1f} % {self.standing}"

    @property
    def inverse(self) -> Ratio:
        """Return the same comparison seen from the other side."""
        opposites: dict[Standing, Standing] = {"higher": "lower", "lower": "higher"}
        value, low, high = (None if number is None else 1 / number for number in (self.value, self.high, self.low))
        return Ratio(value, low, high, opposites.get(self.standing, self.standing), self.reason, self.pairs)


@dataclass(frozen=True)
class _Variance:
    """The variance of a mean of logarithms, or of a difference of two, with its degrees of freedom."""

    value: float
    freedom: float


SidePair = tuple[SideValues, SideValues]  # a side and its base


def compute_ratio(side: SideValues, base: SideValues) -> Ratio:
    """Return side over base. A value that is not a positive number gives no ratio; too few runs give no interval."""
    return mean_ratio([(side, base)])


def mean_ratio(pairs: Sequence[SidePair]) -> Ratio:
    """Return the geometric mean of the ratios of independent pairs. One of them without an interval leaves it without.

    The interval is of the noise of the runs. It says nothing about trainings that are not among the pairs. A duel of
    both sides stands for their runs: its pairs share what differs between other runs.
    """
    for values in (side_values.values for pair in pairs for side_values in pair):
        if geometric_mean(SideValues(values)) is None:
            return Ratio(None, None, None, "no ratio", f"found {list(values)}, expected positive numbers")
    if not pairs:
        return Ratio(None, None, None, "no ratio", "found no pair, expected at least one")
    duel_ratios = [_paired_ratio(side, base) for side, base in pairs]
    if len(pairs) == 1 and duel_ratios[0]:
        return duel_ratios[0]
    difference = statistics.fmean(
        math.log(duel_ratio.value) if duel_ratio and duel_ratio.value else _log_mean(side) - _log_mean(base)
        for duel_ratio, (side, base) in zip(duel_ratios, pairs, strict=True)
    )
    variances = []
    for duel_ratio, (side, base) in zip(duel_ratios, pairs, strict=True):
        if duel_ratio and duel_ratio.low and duel_ratio.high and duel_ratio.pairs:
            half_width = math.log(duel_ratio.high / duel_ratio.low) / 2
            variances.append(_Variance((half_width / _quantile(duel_ratio.pairs - 1)) ** 2, duel_ratio.pairs - 1))
            continue
        ours, theirs = _variance(side), _variance(base)
        if ours is None or theirs is None:
            reason = (
                f"{len(base.values)} and {len(side.values)} run(s), expected at least {MIN_RUNS} of each side, or "
                f"{MIN_NIGHTS_OF_HISTORY} stored nights of the series on the same machine: one run does not show how "
                "far runs differ"
            )
            return Ratio(_bounded_exp(difference), None, None, "inconclusive", reason)
        pair_freedom = _combined_freedom((ours, theirs))
        if ours.freedom != theirs.freedom:
            pair_freedom = min(pair_freedom, min(ours.freedom, theirs.freedom) + 1)
        variances.append(_Variance(ours.value + theirs.value, pair_freedom))
    total, freedom = sum(v.value for v in variances), int(_combined_freedom(variances) + 1e-9)  # less a rounding error
    half_width = _quantile(freedom) * math.sqrt(total) / len(pairs)
    low, high = _bounded_exp(difference - half_width), _bounded_exp(difference + half_width)
    entries = (entry for side, base in pairs for entry in (base, side))
    origins = dict.fromkeys(
        entry.history.origin if entry.history and len(entry.values) < MIN_RUNS else "the runs" for entry in entries
    )
    origin = " and ".join(origins) if len(origins) <= _MAX_ORIGINS else f"the runs and nights of {2 * len(pairs)} sides"
    method = f"95 %, Welch on logarithms, {freedom} degrees of freedom, noise of {origin}"
    return Ratio(_bounded_exp(difference), low, high, standing_of(low, high), method)


def _paired_ratio(side: SideValues, base: SideValues) -> Ratio | None:
    """Return what the newest duel of both sides showed, side over base; None without one that fits their runs."""
    for arm in reversed(side.duels):
        duel, sign = arm.duel, 1 if arm.is_b else -1
        for other in (other for other in base.duels if other.duel == duel and other.is_b != arm.is_b):
            log_speed_ratio = arm.log_speed - other.log_speed
            is_same_ratio = abs(sign * math.log(duel.ratio) - log_speed_ratio) <= _SAME_RATIO_TOLERANCE
            if is_same_ratio and arm.speed_exponent == other.speed_exponent:
                factor = math.exp(arm.log_mean - other.log_mean - arm.speed_exponent * log_speed_ratio)
                exponent = arm.speed_exponent * sign
                value, *ends = (factor * end**exponent for end in (duel.ratio, duel.low, duel.high))
                low, high = sorted(ends)
                return Ratio(value, low, high, standing_of(low, high), duel.reason, len(duel.pairs))
    return None


def geometric_mean(side: SideValues) -> float | None:
    """Return a side's geometric mean, so that two means divide to the ratio; None where a value is not positive."""
    return _bounded_exp(_log_mean(side)) if side.values and all(0 < value < math.inf for value in side.values) else None


def geometric_mean_interval(side: SideValues) -> tuple[float, float] | None:
    """Return the 95 % interval of a side's geometric mean; None where nothing shows its noise."""
    variance = _variance(side)
    if not variance:
        return None
    log_mean, half_width = _log_mean(side), _quantile(int(variance.freedom)) * math.sqrt(variance.value)
    return _bounded_exp(log_mean - half_width), _bounded_exp(log_mean + half_width)


def historic_noise(values: Sequence[float], since: str) -> HistoricNoise | None:
    """Return the noise of a series by a value of each night since a date; None where they are too few."""
    logarithms = [math.log(value) for value in values if 0 < value < math.inf]
    if len(logarithms) < MIN_NIGHTS_OF_HISTORY:
        return None
    return HistoricNoise(statistics.stdev(logarithms), len(logarithms), f"{len(logarithms)} nights since {since}")


def _bounded_exp(logarithm: float) -> float:
    """Return e to this power, within the numbers that a document can hold."""
    return math.exp(max(-700.0, min(logarithm, 700.0)))


def _log_mean(side: SideValues) -> float:
    return statistics.fmean(map(math.log, side.values))


def _variance(side: SideValues) -> _Variance | None:
    """Return the variance of the mean of the logarithms; None where nothing shows it."""
    runs = len(side.values)
    if runs >= MIN_RUNS:
        deviation, noise_runs = statistics.stdev(map(math.log, side.values)), runs
    elif side.history:
        deviation, noise_runs = side.history.deviation, side.history.runs
    else:
        return None
    return _Variance(max(deviation, MIN_DEVIATION) ** 2 / runs, noise_runs - 1)


def _quantile(freedom: int) -> float:
    return T_QUANTILES[max(freedoms for freedoms in T_QUANTILES if freedoms <= freedom)]


def _combined_freedom(variances: Sequence[_Variance]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum. Equal variances give a whole number."""
    return sum(v.value for v in variances) ** 2 / sum(v.value**2 / v.freedom for v in variances)


def standing_of(low: float, high: float) -> Standing:
    """Return what an interval of a ratio shows."""
    if low > 1:
        return "higher"
    return "lower" if high < 1 else "within noise"
