"""Whether a night is worth a confirmation: a cheap rule that may be wrong, because pairs judge what it finds.

Three rules: tonight is beyond 2.5 scales of the level; the sum of the nights' distances from the accepted level (CUSUM;
Page, 1954) is beyond its limit; or the last nights have drifted from the accepted level. A level that follows the
nights would hide that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from levelfield.measure.student import normal_tail, t_quantile, tail_probability
from levelfield.series.level import FLOOR, MEDIAN_VARIANCE, AcceptedLevel, Level
from levelfield.series.segments import Observation

Z = 2.5
Z_OF_TWO_NIGHTS = 3.0  # where no pairs can be run, two nights running have to be beyond this
CUSUM_SLACK, CUSUM_LIMIT, CUSUM_LARGEST = 0.5, 3.5, 3.0  # in scales; one night adds at most LARGEST - SLACK
DRIFT_NIGHTS = 5
Z_OF_CLEAR_DRIFT = 3.5  # where no pairs can be run, and for a gain, for which none are run
CORRELATION = 2.0  # variance of a mean of nights over that of independent ones, for half of it AR(1) with 0.5
FALSE_SHARE = 0.5  # of the suspicions that are confirmed, where a night has more than MANY series
MANY = 100
_SEEN = {1: 1.2816, 3: 0.0902}  # by the number of nights: normal quantiles of 90 %, and of 1 - (1 - 90 %)^(1/3)

Rule = Literal["tonight", "sum of nights", "drift"]


@dataclass(frozen=True)
class Suspicion:
    """What a rule found."""

    rule: Rule
    direction: int  # 1 for worse, -1 for better
    excess: float  # how far above the level, as a cost
    p: float  # the probability of as much by chance
    is_clear: bool  # whether it is far enough to count without pairs


def triggered(
    level: Level,
    accepted: AcceptedLevel | None,
    before: Sequence[Observation],
    tonight: Observation,
    cleared: str = "",
) -> Suspicion | None:
    """Return the suspicion about tonight, the worse direction first; None without one.

    accepted: None for no drift. cleared: when the last night began that pairs found unchanged. Sum and drift begin
    after it.
    """
    gradual = _gradual_suspicion(level, accepted, before, tonight, cleared) if accepted else None
    if gradual is not None and gradual.is_clear:
        return gradual
    for direction in (1, -1):
        if is_beyond(level, tonight, direction, Z):
            excess = tonight.cost - level.cost
            spread = level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.n)
            p = tail_probability(direction * excess / spread, level.freedom)
            return Suspicion("tonight", direction, excess, p, is_beyond(level, tonight, direction))
    return gradual


def is_beyond(level: Level, night: Observation, direction: int, z: float = Z_OF_TWO_NIGHTS) -> bool:
    """Whether one night is beyond the threshold for z, in this direction."""
    return direction * (night.cost - level.cost) > level.threshold(z)


def detectable(level: Level, nights: Literal[1, 3] = 1) -> float:
    """Return the least excess that tonight's rule sees within so many independent nights, with 90 % probability."""
    return level.threshold(Z) + _SEEN[nights] * level.scale


def kept_of_many(chances: Sequence[float], looks: int, false_share: float) -> list[bool]:
    """Return which findings to keep of many looks, by their probability by chance (Benjamini and Hochberg, 1995).

    At most false_share of those kept are expected to be chance.
    """
    passing = [p for rank, p in enumerate(sorted(chances), 1) if p <= false_share * rank / looks]
    return [p <= max(passing, default=-1.0) for p in chances]


def _gradual_suspicion(
    level: Level, accepted: AcceptedLevel, before: Sequence[Observation], tonight: Observation, cleared: str
) -> Suspicion | None:
    """Return the suspicion of drift or sum, in scales of the accepted nights: a ramp does not widen those."""
    nights = [night for night in (*before, tonight) if night.began > cleared]
    distances = [night.cost - accepted.at(night.node) for night in nights]
    narrow = replace(level, scale=min(level.scale, accepted.scale or level.scale))
    recent = distances[-DRIFT_NIGHTS:]
    drift = median(recent)
    is_back = drift == 0 or not recent[-1] / drift > 0.5
    if len(recent) == DRIFT_NIGHTS and not is_back:  # one bad night moves the median of fewer nights
        spread = math.sqrt(min(2, CORRELATION * MEDIAN_VARIANCE * (1 / DRIFT_NIGHTS + 1 / accepted.n)))
        limit, clear_limit = (
            max(FLOOR, t_quantile(normal_tail(z), narrow.freedom) * narrow.scale * spread)
            for z in (Z, Z_OF_CLEAR_DRIFT)
        )
        is_clear = abs(drift) > clear_limit
        if is_clear or drift > limit:
            p = normal_tail(Z_OF_CLEAR_DRIFT if is_clear else Z)
            return Suspicion("drift", 1 if drift > 0 else -1, drift, p, is_clear)
    total = cusum([distance / narrow.scale for distance in distances])
    if total > CUSUM_LIMIT and distances[-1] > 0:  # for worse only: a gain can wait for a drift
        # such a sum in a long series (Siegmund, 1985), with the nights' correlation
        p = math.exp(-2 * CUSUM_SLACK * (total + 1.166) / CORRELATION)
        return Suspicion("sum of nights", 1, median(distances[-3:]), p, False)
    return None


def cusum(distances: Sequence[float]) -> float:
    """Return the one-sided sum over the nights, of distances in scales. One night adds little, however bad it is."""
    total = 0.0
    for distance in distances:
        total = max(0.0, total + min(distance, CUSUM_LARGEST) - CUSUM_SLACK)
    return total
