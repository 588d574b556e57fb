"""Checks which runs may become noise rows of a reference: a faulty run would widen the limits until it passes them.

A run must pass the limits that the reference's rows give. Fewer than CALIBRATION_ROWS rows give no useful limits. Then
the run must be of the reference's own framework, and within ROUNDING_CEILINGS.

Each row is compared with the limits of its day. Without a ceiling, rows that each lie a little below the limits would
move them without end: four rows widened the limit of the gradients 23 times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from levelfield.errors import GateFailed, UsageError
from levelfield.judge.noise import NO_LIMIT, choice_limits, independent_noise, limits_from, noise_of
from levelfield.judge.verdict import reference_curve
from levelfield.measure.alignment import AlignmentLimits, Limit, Place, TrainingCurve, align
from levelfield.measure.calibration import Noise, PlaceValues
from levelfield.measure.weights import KEY_BIAS
from levelfield.specs.case import Precision
from levelfield.specs.reference import NoiseRow, Reference
from levelfield.specs.result import Result

CALIBRATION_ROWS = 5  # the earliest rows, whose limits are the first calibration
# A key's bias has no gradient but rounding, and Adam makes steps of full size from it, so it has no ceiling.
_UNLIMITED_PLACES: dict[Place, float] = {(KEY_BIAS, "norm"): NO_LIMIT, (KEY_BIAS, "projection"): NO_LIMIT}
# Upper bounds of what rounding alone can reach, for first step, gradients, curve, and final weights. docs/alignment.md
# has the largest differences that were measured.
# bf16, gradients and final weights: torch's LayerNorm on a processor sums a bias's gradient in bf16. Its norm with one
# thread is 0.19 from that with two, and the bias ends 0.36 away (gpt3_6.7B at smoke scale).
ROUNDING_CEILINGS: dict[Precision, tuple[float, float, float, float]] = {
    "fp32": (2e-6, 2e-4, 1e-4, 1e-2),
    "bf16": (2e-3, 0.5, 1e-2, 0.5),
    "fp16": (1e-3, 0.1, 1e-2, 0.1),
    "fp8": (1e-2, 0.3, 3e-2, 0.3),
}

# How many times the first calibration's limit each layer may reach. The other frameworks' rows of the shipped
# references reach 1.2, 2.5, 3.0 and 5.9 times.
MAX_WIDENING = {"first step": 2.0, "gradients": 4.0, "curve": 4.0, "final weights": 8.0, "norms": 8.0, "window": 8.0}
_LIMIT_FIELDS = {
    "first step": "first_step", "gradients": "gradient", "curve": "curve", "final weights": "weights", "norms": "norms",
    "window": "window",
}  # fmt: skip
_DIGIT_TOLERANCE = 1.01  # stored differences have three digits


def check_admissible(reference: Reference, run: TrainingCurve, result: Result) -> None:
    """Raise GateFailed, with run, layer, number, limit and what to do, when the run may not become noise.

    Raises UsageError for the reference's own run, which has no difference from itself.
    """
    if result.run_id == reference.run_id:
        raise UsageError(f"{result.run_id} is the run that {reference.name} was made from; give another one")
    count = len(independent_noise(reference))
    if count < CALIBRATION_ROWS and result.framework != reference.framework:
        raise GateFailed(
            f"{result.run_id} was trained with {result.framework}, and {reference.name} with {reference.framework}. "
            f"The first {CALIBRATION_ROWS} rows of noise must be of the reference's own framework (found {count}): "
            f"without them nothing shows whether another framework is right. Record them first: "
            f"`align calibrate {reference.case}:{reference.framework}`. {OVERRIDE_HINT}"
        )
    limits = _admission_limits(reference)
    finding = align(run, reference_curve(reference), limits)
    if finding.verdict not in ("aligned", "inconclusive"):
        failed = next(layer for layer in finding.layers if layer.passed is False)
        raise GateFailed(
            f"{result.run_id} is {finding.verdict} from {reference.name}: {failed.name} {failed.detail} "
            f"({limits.source}). Its noise would widen the limits until it holds. Find the cause: "
            f"`align diagnose {result.run_id}`. {OVERRIDE_HINT}"
        )


OVERRIDE_HINT = 'If the difference is right, give the reason: --replace --reason "...", which the reference stores.'


def _admission_limits(reference: Reference) -> AlignmentLimits:
    """Return the reference's limits with the ceilings where it has none; the ceilings while it has few rows.

    Older references have many rows and few with norms of the window.
    """
    first, gradient, curve, weights = ROUNDING_CEILINGS[reference.precision]
    ceilings = AlignmentLimits(
        first, gradient, curve, "", {**_UNLIMITED_PLACES, None: weights}, choice_limits(reference), window=gradient
    )
    rows = independent_noise(reference)
    if len(rows) < CALIBRATION_ROWS:
        source = f"what rounding in {reference.precision} reaches at most; fewer than {CALIBRATION_ROWS} rows of noise"
        return replace(ceilings, source=source)
    limits = limits_from(reference)
    return replace(
        limits,
        weights=ceilings.weights if limits.weights is None else limits.weights,
        window=ceilings.window if sum(row.window is not None for row in rows) < CALIBRATION_ROWS else limits.window,
    )


class WidenedLimit(NamedTuple):
    """A limit that a row moves beyond the ceiling."""

    layer: str
    place: Place
    first_limit: float  # by the first calibration
    limit: float  # with the row


def check_ceiling(before: Reference, after: Reference, run_id: str) -> None:
    """Raise GateFailed where the row of a run moves a limit beyond the ceiling. before, after: without it, with it.

    A limit that an earlier row moved there, with a reason, may stay. It may not move further.
    """
    first = first_calibration(before)
    if first is None:
        return
    widened, calibrations = list[WidenedLimit](), [limits_from(first), limits_from(before), limits_from(after)]
    for layer, name in _LIMIT_FIELDS.items():
        first_limits, present_limits, limits = (
            _limits_by_place(getattr(reference, name)) for reference in calibrations
        )
        for place, limit in limits.items() if first_limits else ():
            first_limit = _limit_of_place(first_limits, place)
            if not limit <= max(
                _limit_of_place(present_limits, place) * _DIGIT_TOLERANCE, first_limit * MAX_WIDENING[layer]
            ):
                widened.append(WidenedLimit(layer, place, first_limit, limit))
    if widened:
        worst = max(widened, key=lambda row: row.limit / row.first_limit)
        times, where = worst.limit / worst.first_limit, _place_text(worst.place)
        raise GateFailed(
            f"{run_id} would widen the limit of {before.name} for {worst.layer} to {times:.1f} times that of "
            f"its first {CALIBRATION_ROWS} rows ({worst.first_limit:.1e} to {worst.limit:.1e}{where}), "
            f"expected at most {MAX_WIDENING[worst.layer]:g} times. Each row may hold against the limits of its day "
            f"and all of them together not. {OVERRIDE_HINT}"
        )


def check_recorded_row(recorded_row: NoiseRow | None, row: NoiseRow, reference: Reference) -> None:
    """Raise GateFailed where a recorded run would get larger differences: they would move the first calibration."""
    if recorded_row is not None and is_wider(noise_of(row, reference), noise_of(recorded_row, reference)):
        raise GateFailed(
            f"{row.run_id} is recorded in {reference.name} with smaller differences; a recorded row does not grow. "
            f"{OVERRIDE_HINT}"
        )


def first_calibration(reference: Reference) -> Reference | None:
    """Return the reference with its earliest rows, of which CALIBRATION_ROWS count; None where there are fewer.

    A row that was taken with --replace is no part of it.
    """
    rows = sorted((row for row in reference.noise if row.why is None), key=lambda row: (row.recorded or "", row.run_id))
    for count in range(CALIBRATION_ROWS, len(rows) + 1):
        earliest = reference.model_copy(update={"noise": tuple(rows[:count])})
        if len(independent_noise(earliest)) >= CALIBRATION_ROWS:
            return earliest
    return None


def _limits_by_place(limit: Limit | None) -> PlaceValues:
    if limit is None:
        return {}
    return {None: limit} if isinstance(limit, (int, float)) else limit


def _limit_of_place(limits: PlaceValues, place: Place) -> float:
    """Return the limit of a place; of a place that no row has, the largest limit."""
    return limits.get(place, limits.get(None, max(limits.values(), default=0.0)))


def _place_text(place: Place) -> str:
    if place is None:
        return ""
    if not isinstance(place, tuple):
        return f" at step {place}"
    return f" at step {place[0]}, {place[1]}" if isinstance(place[0], int) else f", {place[1]} of {place[0]}"


def is_wider(noise: Noise, other: Noise) -> bool:
    """Return whether a row has a larger difference than another one, anywhere."""
    if not noise.first_step <= other.first_step * _DIGIT_TOLERANCE:
        return True
    names = ("gradient", "curve", "weights", "norms", "window")
    compared = ((getattr(noise, name), getattr(other, name)) for name in names)
    pairs = (
        (value, _limit_of_place(old_limits, place))
        for differences, old_limits in compared
        if differences and old_limits
        for place, value in differences.items()
    )
    return any(not value <= limit * _DIGIT_TOLERANCE for value, limit in pairs)
