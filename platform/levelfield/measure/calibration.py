"""Limits from measured noise: the differences between runs that differ in arithmetic only, times a stated factor.

The factor is not fitted. It is needed because the maximum of a few runs underestimates the next run. It is safe
because the important faults are orders of magnitude above rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from levelfield.measure.alignment import AlignmentLimits, TrainingCurve, norm_difference, relative

MULTIPLE = 4
# Four units in the last place of float32: smaller differences of a loss mean nothing, also after few runs.
LEAST = 4 * 2**-23


class Noise(NamedTuple):
    """The largest relative differences between two runs of one training. gradient: None without recorded norms."""

    first_step: float
    gradient: float | None
    curve: float


def noise_between(run: TrainingCurve, reference: TrainingCurve) -> Noise:
    """Return the differences of two runs that differ in arithmetic only. Raises ValueError for different steps."""
    if set(run.losses) != set(reference.losses) or not run.losses:
        raise ValueError("both runs need the same steps")
    norms = [
        norm_difference(run.gradients[step][name], reference.gradients[step], name)
        for step in set(run.gradients) & set(reference.gradients)
        for name in reference.gradients[step]
    ]
    return Noise(
        relative(run.losses[1], reference.losses[1]),
        max(norms) if norms else None,
        max(relative(run.losses[step], loss) for step, loss in reference.losses.items()),
    )


def limits_of(noise: Sequence[Noise], source: str) -> AlignmentLimits:
    """Return MULTIPLE times the largest noise, and at least LEAST. No noise gives no limits."""
    if not noise:
        return AlignmentLimits(None, None, None, f"no noise recorded: {source}")
    gradient = [n.gradient for n in noise if n.gradient is not None]
    return AlignmentLimits(
        _limit(n.first_step for n in noise),
        _limit(gradient) if gradient else None,
        _limit(n.curve for n in noise),
        f"{MULTIPLE} times the largest of {len(noise)} differences: {source}",
    )


def _limit(values: Iterable[float]) -> float:
    return max(MULTIPLE * max(values), LEAST)
