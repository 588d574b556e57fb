"""Whether a night is worth a confirmation: a cheap rule that may be wrong, because pairs judge what it finds.

Three rules: tonight is beyond 2.5 scales of the level, 1.5 in a young series; the sum of the nights' distances from the
accepted level (CUSUM; Page, 1954) is beyond its limit; or the last nights have drifted from the accepted level. A level
that follows the nights would hide that. A cost is the logarithm of a figure, with the sign that makes more worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from levelfield.measure.student import normal_tail, t_quantile, t_tail_probability
from levelfield.series.level import MEDIAN_VARIANCE, MIN_CHANGE, AcceptedLevel, Level
from levelfield.series.segments import Observation

SUSPICION_Z = 2.5
# A series without this many nights has an uncertain scale, and its median soon follows what it does not see. So more of
# its nights are worth pairs.
SETTLED_NIGHTS, YOUNG_SUSPICION_Z = 15, 1.5
Z_OF_TWO_NIGHTS = 3.0  # where no pairs can be run, two nights running have to be beyond this
# In scales. One night adds its distance, at most CUSUM_MAX_DISTANCE, less the slack.
CUSUM_SLACK, CUSUM_LIMIT, CUSUM_MAX_DISTANCE = 0.5, 3.5, 3.0
DRIFT_NIGHTS = 5
Z_OF_CLEAR_DRIFT = 3.5  # where no pairs can be run, and for a gain, for which none are run
VARIANCE_INFLATION = 2.0  # variance of a mean of nights over that of independent ones, for half of it AR(1) with 0.5
FALSE_DISCOVERY_RATE = 0.5  # of the suspicions that go on to pairs, where a night has more than MANY_SERIES figures
MANY_SERIES = 100
# By the number of nights: the normal quantiles of 90 %, and of 1 - (1 - 90 %)^(1/3).
_DETECTION_QUANTILES = {1: 1.2816, 3: 0.0902}

Rule = Literal["tonight", "sum of nights", "drift"]


@dataclass(frozen=True)
class Suspicion:
    """What a rule found."""

    rule: Rule
    direction: int  # 1 for worse, -1 for better
    excess: float  # how far above the level, as a cost
    probability: float  # the probability of as much by chance, or an upper bound of it
    is_clear: bool  # far enough to count without pairs


def find_suspicion(
    level: Level,
    accepted: AcceptedLevel | None,
    earlier_nights: Sequence[Observation],
    tonight: Observation,
    last_cleared: str = "",
) -> Suspicion | None:
    """Return the suspicion about tonight, the worse direction first; None without one.

    accepted: None where the rules of drift and sum do not apply. last_cleared: when the last night that pairs found
    unchanged began; drift and sum count the nights after it.
    """
    gradual = _gradual_suspicion(level, accepted, earlier_nights, tonight, last_cleared) if accepted else None
    if gradual is not None and gradual.is_clear:
        return gradual
    worse_z = SUSPICION_Z if len(earlier_nights) >= SETTLED_NIGHTS else YOUNG_SUSPICION_Z
    for direction, z in ((1, worse_z), (-1, SUSPICION_Z)):
        if is_beyond(level, tonight, direction, z):
            excess = tonight.cost - level.cost
            spread = level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.night_count)
            p = t_tail_probability(direction * excess / spread, level.freedom)
            return Suspicion("tonight", direction, excess, p, is_beyond(level, tonight, direction))
    return gradual


def is_beyond(level: Level, night: Observation, direction: int, z: float = Z_OF_TWO_NIGHTS) -> bool:
    """Whether one night is beyond the threshold for z, in this direction."""
    return direction * (night.cost - level.cost) > level.threshold(z)


def detectable_excess(level: Level, nights: Literal[1, 3] = 1) -> float:
    """Return the least excess that the rule `tonight` finds within so many independent nights in 90 % of cases."""
    return level.threshold(SUSPICION_Z) + _DETECTION_QUANTILES[nights] * level.scale


def within_false_discovery_rate(p_values: Sequence[float], tests: int, rate: float) -> list[bool]:
    """Return for each p-value whether it counts among so many tests (Benjamini and Hochberg, 1995).

    At most the share `rate` of those that count is expected to be chance.
    """
    passing = [p for rank, p in enumerate(sorted(p_values), 1) if p <= rate * rank / tests]
    return [p <= max(passing, default=-1.0) for p in p_values]


def _gradual_suspicion(
    level: Level,
    accepted: AcceptedLevel,
    earlier_nights: Sequence[Observation],
    tonight: Observation,
    last_cleared: str,
) -> Suspicion | None:
    """Return the suspicion of drift or sum, in scales of the accepted nights: a ramp does not widen their scale."""
    nights = [night for night in (*earlier_nights, tonight) if night.began > last_cleared]
    distances = [night.cost - accepted.cost_on(night.node) for night in nights]
    narrowed = replace(level, scale=min(level.scale, accepted.scale or level.scale))
    recent = distances[-DRIFT_NIGHTS:]
    drift = median(recent)
    is_recovered = drift == 0 or not recent[-1] / drift > 0.5
    if len(recent) == DRIFT_NIGHTS and not is_recovered:  # one bad night moves the median of fewer nights
        spread = math.sqrt(min(2, VARIANCE_INFLATION * MEDIAN_VARIANCE * (1 / DRIFT_NIGHTS + 1 / accepted.night_count)))
        limit, clear_limit = (
            max(MIN_CHANGE, t_quantile(normal_tail(z), narrowed.freedom) * narrowed.scale * spread)
            for z in (SUSPICION_Z, Z_OF_CLEAR_DRIFT)
        )
        is_clear = abs(drift) > clear_limit
        if is_clear or drift > limit:
            p = normal_tail(Z_OF_CLEAR_DRIFT if is_clear else SUSPICION_Z)
            return Suspicion("drift", 1 if drift > 0 else -1, drift, p, is_clear)
    total = cusum([distance / narrowed.scale for distance in distances])
    if total > CUSUM_LIMIT and distances[-1] > 0:  # for worse only: a gain can wait for a drift
        # the probability of such a sum in a long series (Siegmund, 1985), with the nights' correlation
        p = math.exp(-2 * CUSUM_SLACK * (total + 1.166) / VARIANCE_INFLATION)
        return Suspicion("sum of nights", 1, median(distances[-3:]), p, False)
    return None


def cusum(distances: Sequence[float]) -> float:
    """Return the one-sided sum over the nights, of distances in scales. One night adds little, however bad it is."""
    total = 0.0
    for distance in distances:
        total = max(0.0, total + min(distance, CUSUM_MAX_DISTANCE) - CUSUM_SLACK)
    return total
