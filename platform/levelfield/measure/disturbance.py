"""Outlying steps of a window, and what they cost it. See docs/decisions/disturbed-window.md.

An outlier lasts more than twice the median step. What it lasts beyond the median is lost to the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.measure.other_use import HostUse
from levelfield.measure.throughput import StepSpan

OUTLIER = 2.0
# Telemetry reads once a second: what took less than two readings has no cause that it could show.
LEAST_LOST_SECONDS = 2.0
# Beside programs on the part u of the cores a program takes 1 / (1 - u) as long. Threads and ranks wait for the slowest
# of them, so a step may take up to the square of that.
LOCKSTEP = 2


@dataclass(frozen=True)
class StepOutliers:
    """The outlying steps of a window, beside its slowest step, which is one of them if there are any."""

    slowest: StepSpan
    outliers: tuple[StepSpan, ...]
    median_seconds: float
    wall_seconds: float
    mean_seconds: float

    def over_median(self, span: StepSpan) -> float:
        return span.seconds / self.median_seconds

    def lost_part(self, of: Sequence[StepSpan]) -> float:
        """Return the part of the window that these steps lasted beyond the median."""
        return sum(span.seconds - self.median_seconds for span in of) / self.wall_seconds

    def is_explained(self, span: StepSpan, use: HostUse) -> bool:
        """Return whether other programs used enough of the cores in a step to make it as long as it was.

        An unknown use explains nothing.
        """
        if use.other_cores is None or not use.cores:
            return False
        free = 1 - use.other_cores / use.cores
        return free <= 0 or self.over_median(span) * free**LOCKSTEP <= 1


def step_outliers(spans: Sequence[StepSpan]) -> StepOutliers:
    """Return the outliers of a window of at least one step, each longer than zero."""
    seconds = [span.seconds for span in spans]
    middle = median(seconds)
    outliers = tuple(span for span in spans if span.seconds > OUTLIER * middle)
    slowest = max(spans, key=lambda span: span.seconds)
    return StepOutliers(slowest, outliers, middle, sum(seconds), sum(seconds) / len(seconds))


def is_disturbed(lost_part: float, wall_seconds: float, limit: float) -> bool:
    """Return whether an unexplained loss is above the case's limit. A loss below two seconds never is."""
    lost_seconds = lost_part * wall_seconds
    return not (lost_part <= limit or lost_seconds < LEAST_LOST_SECONDS)
