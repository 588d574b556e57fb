"""Limits that are learned: how far apart runs come that differ in arithmetic only, times a stated factor.

The factor is not fitted to anything: a maximum over a handful of runs underestimates what the next one shows, and
the faults that matter lie orders of magnitude above rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from levelfield.measure.alignment import Limits, Training, norm_difference, relative
from levelfield.measure.equivalence import block_means

MULTIPLE = 4
# Four units in the last place of float32: a loss cannot be told apart finer, however few runs were seen.
LEAST = 4 * 2**-23


class Noise(NamedTuple):
    """Largest relative differences between two runs of the same training. gradient: None without recorded norms."""

    first_step: float
    gradient: float | None
    curve: float


def noise_between(run: Training, reference: Training) -> Noise:
    """How far apart two runs are that differ in arithmetic only. Raises ValueError when one lacks a step."""
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


def limits_of(noise: Sequence[Noise], source: str) -> Limits:
    """MULTIPLE times the largest noise, and at least LEAST. Nothing learned gives no limits."""
    if not noise:
        return Limits(None, None, None, f"no noise recorded: {source}")
    gradient = [n.gradient for n in noise if n.gradient is not None]
    return Limits(
        _limit(n.first_step for n in noise),
        _limit(gradient) if gradient else None,
        _limit(n.curve for n in noise),
        f"{MULTIPLE} times the largest of {len(noise)} differences: {source}",
    )


def tail_margin(pairs: Iterable[tuple[Mapping[int, float], Mapping[int, float]]]) -> float:
    """MULTIPLE times the root mean square of the tails' mean relative differences, of runs that should be alike."""
    means = []
    for run, reference in pairs:
        steps = sorted(set(run) & set(reference))
        blocks = block_means([run[s] / reference[s] - 1 for s in steps[len(steps) // 2 :]])
        means.append(math.fsum(blocks) / len(blocks))
    if not means or not all(map(math.isfinite, means)):
        raise ValueError("a margin needs pairs of runs with finite losses")
    return MULTIPLE * math.sqrt(math.fsum(m * m for m in means) / len(means))


def _limit(values: Iterable[float]) -> float:
    return max(MULTIPLE * max(values), LEAST)
