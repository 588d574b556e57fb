"""Limits from measured noise: tolerance limits with a stated rate of false alarms.

A row of noise is the differences of one run from the reference, where only the arithmetic differed. The model is that
the difference at a place is normal with mean zero, and that runs are drawn as the rows were. With n rows, the factor

    z(1 - ERROR_RATE / 2 / places) x sqrt(n / chi2(1 - CONFIDENCE; n))

times the root mean square of the rows is exceeded by at most ERROR_RATE of such runs at any of the places, with
CONFIDENCE. It is the two-sided tolerance limit of a normal distribution with known mean (Guttman, 1970, "Statistical
Tolerance Regions"), with Bonferroni's correction for the places. More rows give a smaller factor: 21 for 2 rows,
9 for 6, 6 for 20, with 300 places.

Kinds of rows differ in size: a tensor-parallel run is farther away than one with fewer threads. So the root mean square
is that of the noisiest kind. Else many small rows would hide one large row. What no row varied is not covered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from statistics import NormalDist
from typing import Any, NamedTuple

from levelfield.measure.alignment import (
    AlignmentLimits,
    Place,
    PlacedDifference,
    TrainingCurve,
    curve_differences,
    gradient_differences,
    norm_differences,
    relative_difference,
    weight_differences,
    window_differences,
    window_gap,
)
from levelfield.measure.student import bisect_threshold

ERROR_RATE, CONFIDENCE = 1e-3, 0.95


class LeastLimits(NamedTuple):
    """The least limit of each layer: smaller ones would refuse frameworks without a row of noise."""

    first_step: float
    gradient: float
    curve: float
    weights: float
    norms: float
    window: float


# In float32 a loss is one rounded number, and one job was seen to start with losses 5.6e-7 apart in different
# processes. Gradients and weights of another framework differ by 4e-6 and 2e-5 at smoke scale, more on small models.
_FP32_LIMITS = LeastLimits(8 * 2**-23, 256 * 2**-23, 8 * 2**-23, 128 * 2**-23, 256 * 2**-23, 256 * 2**-23)
# The limit of the whole gradient's norm at every step, where no row has it. Rows of qwen3_30b_a3b at smoke scale differ
# by up to 2.8e-4 while their losses differ by 1.6e-6.
_NORMS_WITHOUT_ROWS = {"fp32": 3e-3}


def _low_precision_limits(unit: float) -> LeastLimits:
    """Return the least limits by the rounding error of one number, 2^-8 for bf16.

    There frameworks differ by 5e-6 in the first loss, 2.4e-4 in later ones and 1e-2 in gradients at smoke scale: a loss
    is a mean over many tokens. Weights keep the least limit of float32, which they are kept in; a larger one lets eight
    more of 56 planted faults pass (tools/power.py).
    """
    return LeastLimits(unit / 128, 4 * unit, unit / 8, _FP32_LIMITS.weights, 4 * unit, unit)


MIN_LIMITS = {
    "fp32": _FP32_LIMITS,
    "bf16": _low_precision_limits(2**-8),
    "fp16": _low_precision_limits(2**-11),
    "fp8": _low_precision_limits(2**-8),
}

PlaceValues = Mapping[Place, float]


class Noise(NamedTuple):
    """The relative differences of one run from the reference, by place; the key None stands for every other place."""

    first_step: float
    gradient: PlaceValues | None  # the largest of each group; None without recorded norms
    curve: PlaceValues  # the largest up to each step, because noise grows
    weights: PlaceValues | None = None  # the largest of each group
    norms: PlaceValues | None = None  # the largest up to each step
    window: PlaceValues | None = None  # of each third and group; None where it was not recorded
    kind: str = ""  # what the run varied, such as the layout
    setting: str = ""  # the values of all that it varied; equal settings make one row


_DIFFERENCE_FIELDS = 6  # the first fields of Noise are differences


def noise_between(run: TrainingCurve, reference: TrainingCurve) -> Noise:
    """Return the differences of two runs that differ in arithmetic only. Raises ValueError for different steps."""
    if set(run.losses) != set(reference.losses) or not run.losses:
        raise ValueError("both runs need the same steps")
    steps = sorted(reference.losses)
    return Noise(
        relative_difference(run.losses[steps[0]], reference.losses[steps[0]]),
        _largest_by_place(gradient_differences(run, reference)) or None,
        _running_maximum(curve_differences(run, reference)),
        (_largest_by_place(weight_differences(run, reference)) if run.weights else {}) or None,
        _running_maximum(norm_differences(run, reference))
        if run.grad_norms.keys() >= reference.grad_norms.keys()
        else None,
        _largest_by_place(window_differences(run, reference)) or None if window_gap(run, reference) is None else None,
    )


def tolerance_limits(noise: Sequence[Noise], source: str, precision: str = "fp32") -> AlignmentLimits:
    """Return the tolerance limits of the rows. Without rows there are none, nor for a layer that no row has.

    precision: that of the rows' trainings, a key of MIN_LIMITS.
    """
    if not noise:
        return AlignmentLimits(None, None, None, f"no noise recorded: {source}")
    rows, least_limits = merge_noise(noise), MIN_LIMITS[precision]._asdict()
    rows_by_layer: dict[str, list[tuple[str, PlaceValues]]] = {name: [] for name in least_limits}
    for row in rows:
        for name in least_limits:
            values: PlaceValues | float | None = getattr(row, name)
            if values is not None:
                rows_by_layer[name].append((row.kind, {None: values} if isinstance(values, (int, float)) else values))
    # norms and the window count only where they have rows, so that the limits of older references stay as they were
    layers = [layer_rows for name, layer_rows in rows_by_layer.items() if layer_rows or name not in ("norms", "window")]
    quantile = normal_quantile(sum(len(_named_places(part for _, part in layer_rows)) for layer_rows in layers))
    limits = {
        name: _layer_limits(layer_rows, quantile, least_limits[name]) for name, layer_rows in rows_by_layer.items()
    }
    return AlignmentLimits(
        limits["first_step"],
        limits["gradient"],
        limits["curve"],
        f"tolerance limit of {describe_rows(rows)}: {source}",
        limits["weights"],
        norms=limits["norms"] or _NORMS_WITHOUT_ROWS.get(precision),
        window=limits["window"],
    )


def describe_rows(rows: Sequence[Noise]) -> str:
    """Return how many rows there are, and how many of each kind: `6 rows (4 layout, 1 micro-batch, 1 threads)`."""
    kinds = sorted(Counter(row.kind for row in rows).items())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds if kind)
    number = f"{len(rows)} row{'s' if len(rows) > 1 else ''}"
    return f"{number} ({counts})" if counts else number


def merge_noise(noise: Iterable[Noise]) -> list[Noise]:
    """Return one row for each setting, with the largest values, and one for equal values.

    Repeats of one setting, and settings that give the same bits, say nothing of others. A row without any difference is
    left out where another is there.
    """
    settings: dict[str, Noise] = {}
    for number, row in enumerate(noise):
        key = row.setting or f"row {number}"
        settings[key] = _pointwise_maximum(settings[key], row) if key in settings else row
    rows: list[Noise] = []
    for row in settings.values():
        if not any(row[:_DIFFERENCE_FIELDS] == other[:_DIFFERENCE_FIELDS] for other in rows):
            rows.append(row)
    different = []
    for row in rows:
        parts = (row.gradient, row.curve, row.weights, row.norms, row.window)
        if row.first_step or any(any(part.values()) for part in parts if part):
            different.append(row)
    return different or rows


def tolerance_factor(rows: int, quantile: float) -> float:
    """Return the factor on the root mean square of `rows` rows."""
    return quantile * math.sqrt(rows / chi_square_quantile(1 - CONFIDENCE, rows))


def normal_quantile(places: int) -> float:
    """Return the two-sided normal quantile that all `places` together exceed with ERROR_RATE."""
    return NormalDist().inv_cdf(1 - ERROR_RATE / (2 * max(1, places)))


@cache
def chi_square_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of the chi-square distribution, by bisection of its closed form for whole degrees."""
    return bisect_threshold(lambda x: 1 - _chi_square_tail(x, degrees) < probability, 0.0, 2.0 * degrees + 40, 100)


def _chi_square_tail(x: float, degrees: int) -> float:
    """Return the probability that a chi-square variable exceeds x (Abramowitz and Stegun, 1964, 26.4.4 and 26.4.5)."""
    total, start = (math.erfc(math.sqrt(x / 2)), 1) if degrees % 2 else (0.0, 0)
    for k in range(start, degrees, 2):
        total += math.exp(k / 2 * math.log(x / 2) - x / 2 - math.lgamma(k / 2 + 1)) if x else float(k == 0)
    return total


def _layer_limits(rows: Sequence[tuple[str, PlaceValues]], quantile: float, least: float) -> dict[Place, float] | None:
    """Return the limit of each place from the rows that have it: factor x the noisiest kind's root mean square.

    A row without any difference is not counted: the same bits again say nothing of the size of rounding.
    """
    if not rows:
        return None
    limits: dict[Place, float] = {}
    for place in _named_places(part for _, part in rows):
        values_by_kind: dict[str, list[float]] = {}
        for kind, values_by_place in rows:
            value = values_by_place.get(place, values_by_place.get(None))
            if value is not None and any(values_by_place.values()):
                values_by_kind.setdefault(kind, []).append(value)
        noise_size = max(
            (math.sqrt(sum(v * v for v in values) / len(values)) for values in values_by_kind.values()), default=0.0
        )
        count = sum(map(len, values_by_kind.values()))
        limits[place] = max(tolerance_factor(max(1, count), quantile) * noise_size, least)
    return limits


def _named_places(parts: Iterable[PlaceValues]) -> set[Place]:
    """Return every place that some row names; {None} where no row names one."""
    return {place for part in parts for place in part if place is not None} or {None}


def _running_maximum(differences: Sequence[PlacedDifference]) -> PlaceValues:
    """Return the largest difference up to each step."""
    largest = accumulate((difference.value for difference in differences), max)
    return dict(zip((difference.place for difference in differences), largest, strict=True))


def _largest_by_place(differences: Iterable[PlacedDifference]) -> dict[Place, float]:
    """Return the largest difference at each place."""
    largest: dict[Place, float] = {}
    for difference in differences:
        largest[difference.place] = max(difference.value, largest.get(difference.place, 0.0))
    return largest


def _pointwise_maximum(row: Noise, other: Noise) -> Noise:
    """Return a row with the larger of both values at each place."""
    larger: dict[str, Any] = {}
    for name in ("gradient", "curve", "weights", "norms", "window"):
        a, b = getattr(row, name), getattr(other, name)
        if a is None or b is None:
            larger[name] = a if b is None else b
        else:
            places = {*a, *b}
            larger[name] = {p: max(a.get(p, a.get(None, 0.0)), b.get(p, b.get(None, 0.0))) for p in places}
    return row._replace(first_step=max(row.first_step, other.first_step), **larger)
