"""How far new rows of noise may move the limits from those of the first calibration.

Each row is held to the limits of its day. Without a ceiling, rows that each lie a little below the limits would move
them without end: four rows widened the limit of the gradients 23 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from levelfield.errors import GateFailed
from levelfield.judge.admission import FEW, OVERRIDE
from levelfield.judge.noise import limits_from, noise_of, rows_that_count
from levelfield.measure.alignment import AlignmentLimits, Limit, Place
from levelfield.measure.calibration import Noise, Places
from levelfield.specs.reference import NoiseRow, Reference

# How many times the first calibration's limit each layer may reach. The other frameworks' rows of the shipped
# references reach 1.2, 2.5, 3.0 and 5.9 times.
WIDEST = {"first step": 2.0, "gradients": 4.0, "curve": 4.0, "final weights": 8.0, "norms": 8.0}
_FIELDS = {
    "first step": "first_step", "gradients": "gradient", "curve": "curve", "final weights": "weights", "norms": "norms",
}  # fmt: skip
_ROUNDING = 1.01  # stored differences have three digits


class WidenedLimit(NamedTuple):
    """A limit that a row moves beyond the ceiling: its layer, the first calibration's limit, and the new one."""

    layer: str
    place: Place
    first: float
    found: float


def check_ceiling(before: Reference, after: Reference, run_id: str) -> None:
    """Raise GateFailed where the row of a run moves a limit beyond the ceiling.

    A limit that an earlier row moved there, with a reason, may stay. It may not move further.
    """
    first = first_calibration(before)
    if first is None:
        return
    beyond = max(_beyond(limits_from(first), limits_from(before), limits_from(after)), key=_times, default=None)
    if beyond is not None:
        raise GateFailed(
            f"{run_id} would widen the limit of {before.name} for {beyond.layer} to {_times(beyond):.1f} times that of "
            f"its first {FEW} rows ({beyond.first:.1e} to {beyond.found:.1e}{_at(beyond.place)}), expected at most "
            f"{WIDEST[beyond.layer]:g} times. Each row may hold against the limits of its day and all of them together "
            f"not. {OVERRIDE}"
        )


def check_same_row(present: NoiseRow | None, row: NoiseRow, reference: Reference) -> None:
    """Raise GateFailed where a run that is recorded would get wider differences: that moves the first calibration."""
    if present is not None and is_wider(noise_of(row, reference), noise_of(present, reference)):
        raise GateFailed(
            f"{row.run_id} is recorded in {reference.name} with smaller differences; a recorded row does not grow. "
            f"{OVERRIDE}"
        )


def first_calibration(reference: Reference) -> Reference | None:
    """Return the reference with its earliest rows, of which FEW count; None where there are fewer.

    A row that was taken with --replace is no part of it.
    """
    rows = sorted((row for row in reference.noise if row.why is None), key=lambda row: (row.recorded or "", row.run_id))
    for count in range(FEW, len(rows) + 1):
        found = reference.model_copy(update={"noise": tuple(rows[:count])})
        if len(rows_that_count(found)) >= FEW:
            return found
    return None


def _beyond(first: AlignmentLimits, before: AlignmentLimits, after: AlignmentLimits) -> Iterator[WidenedLimit]:
    for layer, name in _FIELDS.items():
        known, present, found = (_by_place(getattr(limits, name)) for limits in (first, before, after))
        if not known:
            continue
        for place, limit in found.items():
            at_first, now = _at_place(known, place), _at_place(present, place)
            if not limit <= max(now * _ROUNDING, at_first * WIDEST[layer]):
                yield WidenedLimit(layer, place, at_first, limit)


def _by_place(limit: Limit | None) -> Places:
    if limit is None:
        return {}
    return {None: limit} if isinstance(limit, (int, float)) else limit


def _at_place(limits: Places, place: Place) -> float:
    """Return the limit of a place; of one that no row has, the largest."""
    return limits.get(place, limits.get(None, max(limits.values(), default=0.0)))


def _times(widened: WidenedLimit) -> float:
    return widened.found / widened.first


def _at(place: Place) -> str:
    if place is None:
        return ""
    if not isinstance(place, tuple):
        return f" at step {place}"
    return f" at step {place[0]}, {place[1]}" if isinstance(place[0], int) else f", {place[1]} of {place[0]}"


def is_wider(noise: Noise, known: Noise) -> bool:
    """Return whether a row has a larger difference than another one, anywhere."""
    parts = (
        (noise.gradient, known.gradient),
        (noise.curve, known.curve),
        (noise.weights, known.weights),
        (noise.norms, known.norms),
    )
    if not noise.first_step <= known.first_step * _ROUNDING:
        return True
    return any(_wider_part(part, old) for part, old in parts if part and old)


def _wider_part(part: Places, old: Places) -> bool:
    return any(not value <= _at_place(old, place) * _ROUNDING for place, value in part.items())
