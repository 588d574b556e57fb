"""Which runs may become noise: else a faulty run would widen the limits until it holds itself.

A run must hold against the limits that the reference has. While the reference has fewer than FEW rows, these limits
say too little. Then the run must be of the reference's own framework, and within PLAUSIBLE: ceilings for rounding.

Each row is held to the limits of its day. Without a ceiling, rows that each lie a little below the limits would move
them without end: four rows widened the limit of the gradients 23 times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from levelfield.errors import GateFailed, UsageError
from levelfield.judge.noise import NO_LIMIT, choice_limits, limits_from, noise_of, rows_that_count
from levelfield.judge.verdict import training_of_reference
from levelfield.measure.alignment import AlignmentLimits, Limit, Place, TrainingCurve, align
from levelfield.measure.calibration import Noise, Places
from levelfield.measure.weights import KEY_BIAS
from levelfield.specs.case import Precision
from levelfield.specs.reference import NoiseRow, Reference
from levelfield.specs.result import Result

FEW = 5  # rows
# What rounding alone can reach, from above (docs/alignment.md has the largest differences that were measured): first
# step, gradients, curve, and the norms and projections of final weights. 1e300: no ceiling. A key's bias has no
# gradient but rounding, and Adam makes steps of full size from it.
_FREE: dict[Place, float] = {(KEY_BIAS, "norm"): NO_LIMIT, (KEY_BIAS, "projection"): NO_LIMIT}
# bf16, gradients and final weights: torch's LayerNorm on a processor sums a bias's gradient in bf16. Its norm with one
# thread is 0.19 from that with two, and the bias ends 0.36 away (gpt3_6.7B at smoke scale).
PLAUSIBLE: dict[Precision, tuple[float, float, float, float]] = {
    "fp32": (2e-6, 2e-4, 1e-4, 1e-2),
    "bf16": (2e-3, 0.5, 1e-2, 0.5),
    "fp16": (1e-3, 0.1, 1e-2, 0.1),
    "fp8": (1e-2, 0.3, 3e-2, 0.3),
}

# How many times the first calibration's limit each layer may reach. The other frameworks' rows of the shipped
# references reach 1.2, 2.5, 3.0 and 5.9 times.
WIDEST = {"first step": 2.0, "gradients": 4.0, "curve": 4.0, "final weights": 8.0, "norms": 8.0, "window": 8.0}
_FIELDS = {
    "first step": "first_step", "gradients": "gradient", "curve": "curve", "final weights": "weights", "norms": "norms",
    "window": "window",
}  # fmt: skip
_ROUNDING = 1.01  # stored differences have three digits


def check_admissible(reference: Reference, run: TrainingCurve, result: Result) -> None:
    """Raise GateFailed, with run, layer, number, limit and what to do, when the run may not become noise.

    Raises UsageError for the reference's own run, which has no difference from itself.
    """
    if result.run_id == reference.run_id:
        raise UsageError(f"{result.run_id} is the run that {reference.name} was made from; give another one")
    count = len(rows_that_count(reference))
    if count < FEW and result.framework != reference.framework:
        raise GateFailed(
            f"{result.run_id} was trained with {result.framework}, and {reference.name} with {reference.framework}. "
            f"The first {FEW} rows of noise must be of the reference's own framework (found {count}): without them "
            f"nothing shows whether another framework is right. Record them first: "
            f"`align calibrate {reference.case}:{reference.framework}`. {OVERRIDE_HINT}"
        )
    limits = _limits(reference)
    finding = align(run, training_of_reference(reference), limits)
    if finding.verdict not in ("aligned", "inconclusive"):
        failed = next(layer for layer in finding.layers if layer.passed is False)
        raise GateFailed(
            f"{result.run_id} is {finding.verdict} from {reference.name}: {failed.name} {failed.detail} "
            f"({limits.source}). Its noise would widen the limits until it holds. Find the cause: "
            f"`align diagnose {result.run_id}`. {OVERRIDE_HINT}"
        )


OVERRIDE_HINT = 'If the difference is right, give the reason: --replace --reason "...", which the reference stores.'


def _limits(reference: Reference) -> AlignmentLimits:
    """Return the reference's limits with the ceilings where it has none; the ceilings while it has few rows.

    Older references have many rows and few with norms of the window.
    """
    first, gradient, curve, weights = PLAUSIBLE[reference.precision]
    ceilings = AlignmentLimits(
        first, gradient, curve, "", {**_FREE, None: weights}, choice_limits(reference), window=gradient
    )
    rows = rows_that_count(reference)
    if len(rows) < FEW:
        source = f"what rounding in {reference.precision} reaches at most; fewer than {FEW} rows of noise"
        return replace(ceilings, source=source)
    limits = limits_from(reference)
    return replace(
        limits,
        weights=ceilings.weights if limits.weights is None else limits.weights,
        window=ceilings.window if sum(row.window is not None for row in rows) < FEW else limits.window,
    )


class WidenedLimit(NamedTuple):
    """A limit that a row moves beyond the ceiling."""

    layer: str
    place: Place
    first: float  # the first calibration's limit
    limit: float


def check_ceiling(before: Reference, after: Reference, run_id: str) -> None:
    """Raise GateFailed where the row of a run moves a limit beyond the ceiling.

    A limit that an earlier row moved there, with a reason, may stay. It may not move further.
    """
    first = first_calibration(before)
    if first is None:
        return
    widened, sides = list[WidenedLimit](), [limits_from(first), limits_from(before), limits_from(after)]
    for layer, name in _FIELDS.items():
        earliest, present, limits = (_limit_places(getattr(side, name)) for side in sides)
        for place, limit in limits.items() if earliest else ():
            at_first = _at_place(earliest, place)
            if not limit <= max(_at_place(present, place) * _ROUNDING, at_first * WIDEST[layer]):
                widened.append(WidenedLimit(layer, place, at_first, limit))
    if widened:
        worst = max(widened, key=lambda moved: moved.limit / moved.first)
        times = worst.limit / worst.first
        raise GateFailed(
            f"{run_id} would widen the limit of {before.name} for {worst.layer} to {times:.1f} times that of "
            f"its first {FEW} rows ({worst.first:.1e} to {worst.limit:.1e}{_at(worst.place)}), expected at most "
            f"{WIDEST[worst.layer]:g} times. Each row may hold against the limits of its day and all of them together "
            f"not. {OVERRIDE_HINT}"
        )


def check_same_row(present: NoiseRow | None, row: NoiseRow, reference: Reference) -> None:
    """Raise GateFailed where a run that is recorded would get wider differences: that moves the first calibration."""
    if present is not None and is_wider(noise_of(row, reference), noise_of(present, reference)):
        raise GateFailed(
            f"{row.run_id} is recorded in {reference.name} with smaller differences; a recorded row does not grow. "
            f"{OVERRIDE_HINT}"
        )


def first_calibration(reference: Reference) -> Reference | None:
    """Return the reference with its earliest rows, of which FEW count; None where there are fewer.

    A row that was taken with --replace is no part of it.
    """
    rows = sorted((row for row in reference.noise if row.why is None), key=lambda row: (row.recorded or "", row.run_id))
    for count in range(FEW, len(rows) + 1):
        earliest = reference.model_copy(update={"noise": tuple(rows[:count])})
        if len(rows_that_count(earliest)) >= FEW:
            return earliest
    return None


def _limit_places(limit: Limit | None) -> Places:
    if limit is None:
        return {}
    return {None: limit} if isinstance(limit, (int, float)) else limit


def _at_place(limits: Places, place: Place) -> float:
    """Return the limit of a place; of one that no row has, the largest."""
    return limits.get(place, limits.get(None, max(limits.values(), default=0.0)))


def _at(place: Place) -> str:
    if place is None:
        return ""
    if not isinstance(place, tuple):
        return f" at step {place}"
    return f" at step {place[0]}, {place[1]}" if isinstance(place[0], int) else f", {place[1]} of {place[0]}"


def is_wider(noise: Noise, other: Noise) -> bool:
    """Return whether a row has a larger difference than another one, anywhere."""
    if not noise.first_step <= other.first_step * _ROUNDING:
        return True
    names = ("gradient", "curve", "weights", "norms", "window")
    parts = ((getattr(noise, name), getattr(other, name)) for name in names)
    pairs = ((value, _at_place(old, place)) for part, old in parts if part and old for place, value in part.items())
    return any(not value <= limit * _ROUNDING for value, limit in pairs)
