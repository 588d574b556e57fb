"""Makes the noise rows of a reference, reads them back as differences by place, and turns them into limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from levelfield.measure.alignment import AlignmentLimits
from levelfield.measure.calibration import Noise, PlaceValues, merge_noise, tolerance_limits
from levelfield.measure.routing import FP32_CHOICE_LIMITS, ChoiceLimits
from levelfield.measure.weights import KEY_BIAS
from levelfield.rundir.directory import utc_now
from levelfield.specs.reference import NoiseRow, Reference
from levelfield.user_folders import user_name

_DIGITS = 3  # of a stored difference
NO_LIMIT = 1e300  # larger than any difference
_MEANINGLESS_LIMIT = 1.0  # a relative difference as large as the value itself


def limits_from(reference: Reference) -> AlignmentLimits:
    """Return the tolerance limits that the reference's rows give. The source names rows, kinds and overrides.

    A key's bias has no limit for its final weights where rows differ by as much as its value.
    """
    overridden = sum(row.why is not None for row in reference.noise)
    note = f", {overridden} of them recorded with --replace" if overridden else ""
    rows = [noise_of(row, reference) for row in usable_rows(reference)]
    limits = tolerance_limits(rows, f"the reference's noise{note}", reference.precision)
    weights = limits.weights
    if weights is not None and not isinstance(weights, (int, float)):
        biases = {p: limit for p, limit in weights.items() if isinstance(p, tuple) and p[0] == KEY_BIAS}
        weights = {**weights, **{p: NO_LIMIT for p, limit in biases.items() if limit >= _MEANINGLESS_LIMIT}}
    return replace(limits, weights=weights, routing=choice_limits(reference))


def choice_limits(reference: Reference) -> ChoiceLimits | None:
    """Return how many choices of experts may differ from the reference's; None where that is not judged."""
    return FP32_CHOICE_LIMITS if reference.routing and reference.precision == "fp32" else None


def usable_rows(reference: Reference) -> list[NoiseRow]:
    """Return the rows whose differences are noise. In fp32 a row of a mixture with other choices of experts is not: an
    older version recorded it, which did not follow the reference's choices."""
    return [row for row in reference.noise if not (row.routing and choice_limits(reference))]


def independent_noise(reference: Reference) -> list[Noise]:
    """Return the noise of independent rows: one row for each setting, and one of those with equal differences."""
    return merge_noise(noise_of(row, reference) for row in usable_rows(reference))


def noise_of(row: NoiseRow, reference: Reference) -> Noise:
    """Return the differences of a row. A row that stores only maxima gets its maximum at every place, the weakest
    reading."""
    gradient: PlaceValues | None = {
        (step, group): value for step, groups in row.gradients.items() for group, value in groups.items()
    } or (None if row.gradient is None else {None: row.gradient})
    curve: PlaceValues = dict(enumerate(row.losses, start=1)) or {None: row.curve}
    weights: PlaceValues | None = {
        (group, figure): value for group, figures in row.weights.items() for figure, value in figures.items()
    } or None
    norms: PlaceValues | None = dict(enumerate(row.norms, start=1)) or None
    setting = f"{row.changed}; {row.hardware}"
    window: PlaceValues | None = {
        (third, group): value for third, groups in row.window.items() for group, value in groups.items()
    } or None
    return Noise(row.first_step, gradient, curve, weights, norms, window, varied_setting(row, reference), setting)


def varied_setting(row: NoiseRow, reference: Reference) -> str:
    """Return the most important thing that the row's run varied: framework, version, layout, processor, or a setting.

    Older references do not store their settings: then threads and micro-batch cannot be told apart.
    """
    framework, layout, *settings = row.changed.split(", ")
    name, _, version = framework.partition(" ")
    if name != reference.framework:
        return "framework"
    if layout != reference.layout:
        return "layout"
    if row.hardware is not None and row.hardware != reference_device(reference):
        return "processor"
    if version != reference.framework_version:
        return "version"
    if not reference.settings:
        return "threads or micro-batch"
    varied = sorted(set(settings) ^ set(reference.settings.split(", ")[2:]))
    return varied[0].strip("0123456789 ").strip() if varied else "repeat"


def reference_device(reference: Reference) -> str:
    """Return the description of one device of the reference's hardware, without the count before it."""
    return reference.hardware.partition(" x ")[2] or reference.hardware


def noise_row(
    noise: Noise, changed: str, run_id: str, hardware: str, reason: str | None, changed_choices: Mapping[int, int]
) -> NoiseRow:
    """Return the row that stores `noise`, with this user and the present time.

    changed_choices: by step, how many choices of experts differ. reason: why a run beyond the limits is accepted.
    """
    return NoiseRow.model_validate(
        {
            "changed": changed,
            "run_id": run_id,
            "first_step": noise.first_step,
            "gradient": max(noise.gradient.values()) if noise.gradient else None,
            "curve": max(noise.curve.values()),
            "losses": [_rounded(value) for value in noise.curve.values()],
            "gradients": _nested_places(noise.gradient),
            "weights": _nested_places(noise.weights),
            "norms": [_rounded(value) for value in (noise.norms or {}).values()],
            "window": _nested_places(noise.window),
            "hardware": hardware,
            "by": user_name(),
            "recorded": utc_now(),
            "why": reason,
            "routing": {step: number for step, number in changed_choices.items() if number},
        }
    )


def _nested_places(places: PlaceValues | None) -> dict[int | str, dict[str, float]]:
    nested: dict[int | str, dict[str, float]] = {}
    for place, value in (places or {}).items():
        if isinstance(place, tuple):
            nested.setdefault(place[0], {})[place[1]] = _rounded(value)
    return nested


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
