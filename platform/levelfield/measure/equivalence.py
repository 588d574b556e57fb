"""The equivalence of two runs that share no weights: two one-sided tests on the tail of the loss.

The steps of one run are autocorrelated, so their number overstates the evidence. The tail is cut into blocks, whose
means are nearly independent (batch means, Schmeiser, 1982). The two one-sided tests (Schuirmann, 1987) use these
means. The runs are equivalent when the 90 % interval of the mean relative difference lies within the margin.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

BLOCKS = 8
# One-sided 95 % quantile of Student's t with BLOCKS - 1 = 7 degrees of freedom.
QUANTILE = 1.8946


@dataclass(frozen=True)
class Equivalence:
    """The test's result. low, high: the 90 % interval of the mean relative difference.

    more_steps: about how many more steps a clear result needs; None for a clear result.
    """

    word: Literal["equivalent", "different", "inconclusive"]
    mean: float
    low: float
    high: float
    margin: float
    more_steps: int | None

    @property
    def reason(self) -> str:
        text = f"tail differs by {self.mean:+.2%} ({self.low:+.2%} to {self.high:+.2%}), margin {self.margin:.2%}"
        return text if self.more_steps is None else f"{text}; about {self.more_steps} more steps needed"


def tail_equivalence(run: Mapping[int, float], reference: Mapping[int, float], margin: float) -> Equivalence:
    """Compare the second halves of two curves. margin: relative. Raises ValueError below two steps per block."""
    steps = sorted(set(run) & set(reference))
    tail = steps[len(steps) // 2 :]
    if len(tail) < 2 * BLOCKS:
        raise ValueError(f"{len(tail)} steps in the tail, at least {2 * BLOCKS} are needed")
    differences = [run[s] / reference[s] - 1 for s in tail]
    if not all(map(math.isfinite, differences)):
        return Equivalence("different", math.nan, math.nan, math.nan, margin, None)
    means = block_means(differences)
    mean, half = statistics.fmean(means), QUANTILE * statistics.stdev(means) / math.sqrt(BLOCKS)
    return _judged(mean, half, margin, len(tail))


def block_means(values: Sequence[float]) -> list[float]:
    """Return the means of BLOCKS equal blocks of neighbours. The remainder at the start is left out."""
    size = len(values) // BLOCKS
    kept = values[len(values) - size * BLOCKS :]
    return [statistics.fmean(kept[i * size : (i + 1) * size]) for i in range(BLOCKS)]


def _judged(mean: float, half: float, margin: float, steps: int) -> Equivalence:
    low, high = mean - half, mean + half
    if -margin < low and high < margin:
        return Equivalence("equivalent", mean, low, high, margin, None)
    if low > margin or high < -margin:
        return Equivalence("different", mean, low, high, margin, None)
    return Equivalence("inconclusive", mean, low, high, margin, _more(mean, half, margin, steps))


def _more(mean: float, half: float, margin: float, steps: int) -> int | None:
    """Return the further steps until the interval lies clear of the margin's edge; None when its mean is on the edge.

    The interval narrows with the square root of the number of steps.
    """
    room = abs(margin - abs(mean))
    return math.ceil(2 * steps * ((half / room) ** 2 - 1)) if room > half / 30 else None
