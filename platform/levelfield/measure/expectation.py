"""The measured memory of a run beside what was expected of it, so that every run checks the model of memory.

On an accelerator the estimate is of everything on the device, which the vendor's tool sees; on the host it is of one
process, whose resident peak the operating system keeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.measure.memory import Memory, Peak

TOLERANCE = 0.2
# A figure in another unit is off by a power of one of these; within the same tolerance it is taken for such a one.
_STEPS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Expectation:
    """figure: what the estimate is of. ratio: measured over expected. remark: what to know of a ratio that is far from
    1; the run is as valid with it. A null has its reason."""

    figure: str
    expected_bytes: int
    measured_bytes: int | None
    ratio: float | None
    remark: str | None
    reason: str | None


def against_expected(expected_bytes: int, measured: Memory, device_kind: str, why_none: str | None) -> Expectation:
    """why_none: why the run's figures are not those of whole training; None where they are."""
    on_host = device_kind == "cpu"
    figure, peak = ("process peak", measured.process) if on_host else ("device-used peak", measured.used)
    reason = why_none or _unknown(peak, expected_bytes)
    if reason is not None or peak.peak_bytes is None:
        return Expectation(figure, expected_bytes, None, None, None, reason)
    ratio = peak.peak_bytes / expected_bytes
    return Expectation(figure, expected_bytes, peak.peak_bytes, ratio, _remark(figure, ratio), None)


def _unknown(peak: Peak, expected_bytes: int) -> str | None:
    if peak.peak_bytes is None:
        return peak.reason or "it was not measured"
    return None if expected_bytes > 0 else f"the plan expects {expected_bytes} bytes"


def _remark(figure: str, ratio: float) -> str | None:
    if abs(ratio - 1) <= TOLERANCE:
        return None
    said = f"the {figure} is {ratio:.3g} times what was expected"
    if unit := _mixed_up(ratio):
        return f"{said}: as if {unit} and bytes were mixed up"
    return f"{said}: the model of memory {'lacks something' if ratio > 1 else 'counts what is not there'}"


def _mixed_up(ratio: float) -> str | None:
    factor = math.exp(abs(math.log(ratio)))
    return next((unit for unit, size in _STEPS.items() if abs(factor / size - 1) <= TOLERANCE), None)
