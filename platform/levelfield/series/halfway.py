"""Which of two known builds a third one is like: the test of a bisection.

The difference of both ends is known by then, so a build only has to be told from the middle between them. A one-sided t
test after each pair decides, from the second on. Its error of .01 at each look is small beside that of a wrong end,
because the last good and the first bad build are both tried.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Literal

from levelfield.measure.student import t_quantile
from levelfield.series.segments import cost_of
from levelfield.specs.record import Gated

FEWEST_PAIRS = 2
ALPHA = 0.01
LEAST_ERROR = 1e-4  # of a mean: equal differences are rounding

Side = Literal["good", "bad", "unknown"]


@dataclass
class HalfwayTest:
    """The sequential test of one build. effect: mean cost of the bad end less that of the good one, above 0."""

    figure: Gated
    effect: float
    _differences: list[float] = field(default_factory=list)

    def add(self, good: float | None, tried: float | None) -> Side:
        """Add the figures of a pair and return the side so far. A pair without two positive numbers does not count."""
        first, second = cost_of(good, self.figure), cost_of(tried, self.figure)
        if first is not None and second is not None:
            self._differences.append(second - first)
        return self._side()

    def _side(self) -> Side:
        n = len(self._differences)
        if n < FEWEST_PAIRS:
            return "unknown"
        mean = statistics.fmean(self._differences)
        error = max(LEAST_ERROR, statistics.stdev(self._differences) / math.sqrt(n))
        reach = t_quantile(ALPHA, n - 1) * error
        if mean - reach > self.effect / 2:
            return "bad"
        return "good" if mean + reach < self.effect / 2 else "unknown"
