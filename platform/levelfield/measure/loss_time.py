"""Seconds and tokens to a level of the loss, on the wall clock of the measured steps.

The level is the reference's: the mean loss of the `tail` steps that end at three quarters of its steps, rounded up to
0.01, so that it is a number to quote and no run ends beside it. A run's loss is averaged over as many steps back. The
place where that mean first is at the level lies between two steps; it is interpolated on a line, and so is the time. Of
an aligned run it is the reference's place, so aligned runs differ by their time alone.

What comes before the window (start, compilation, warm-up) has no measured time: the seconds begin with the window. The
tokens count from step 1. MLPerf's time to train (Mattson et al., 2020) is to a fixed quality as well, and counts all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.measure.throughput import StepSpan

_PART = 0.75
_DIGIT = 0.01


@dataclass(frozen=True)
class LossCrossing:
    """Where the averaged loss reaches the level: a place between two steps, and the seconds from the window's begin."""

    step: float
    seconds: float


def level_step(steps: int) -> int:
    """Return the step of the reference that the level is taken at."""
    return math.ceil(_PART * steps)


def level_of(losses: Sequence[float], tail: int) -> float | None:
    """Return the level by the losses of steps 1, 2, ...; None where the mean is not finite or has too few steps."""
    last = level_step(len(losses))
    mean = math.fsum(losses[last - tail : last]) / tail if last >= tail else math.nan
    return round(math.ceil(mean / _DIGIT) * _DIGIT, 2) if math.isfinite(mean) else None


def crossing(losses: Mapping[int, float], spans: Sequence[StepSpan], level: float, tail: int) -> LossCrossing | str:
    """Return where the loss, averaged over `tail` steps, first is at the level; or a sentence why there is no place.

    losses: by step. spans: the steps of the window, in order.
    """
    before: float | None = None
    seconds = math.fsum(span.seconds for span in spans if span.step < tail)
    for step in range(tail, spans[-1].step + 1):
        values = [losses.get(number, math.nan) for number in range(step - tail + 1, step + 1)]
        mean = math.fsum(values) / tail if all(map(math.isfinite, values)) else math.nan
        if not math.isfinite(mean):
            return f"the loss of step {step} or of one of the {tail - 1} before it is not known, or not finite"
        if step < spans[0].step:
            if mean <= level:
                return f"the loss is at {level:g} in step {step} already, before the window"
        else:
            span = spans[step - spans[0].step]
            if mean <= level:
                part = 1.0 if before is None else (before - level) / (before - mean)
                return LossCrossing(step - 1 + part, seconds + part * span.seconds)
            seconds += span.seconds
        before = mean
    return f"the loss, averaged over {tail} steps, does not reach {level:g} by step {spans[-1].step}"
