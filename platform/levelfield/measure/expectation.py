"""The measured memory of a run beside the estimate, so that every run checks the memory model.

On an accelerator the estimate covers everything on the device, which the vendor's tool measures. On the host it
covers one process, whose resident peak the operating system records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.measure.memory import MemoryPeak, MemoryPeaks

TOLERANCE = 0.2
# A figure in a wrong unit differs by one of these factors. Within the tolerance, the remark names that unit.
_STEPS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Expectation:
    """The estimate beside the measurement.

    figure: the estimated figure. ratio: measured / expected. remark: a sentence for a ratio far from 1; it does not
    make the run invalid. reason: why values are None.
    """

    figure: str
    expected_bytes: int
    measured_bytes: int | None
    ratio: float | None
    remark: str | None
    reason: str | None


def against_expected(expected_bytes: int, measured: MemoryPeaks, on_host: bool, why_none: str | None) -> Expectation:
    """Return the comparison. why_none: why the run's figures do not cover a whole training, else None."""
    figure, peak = ("process peak", measured.process) if on_host else ("device-used peak", measured.used)
    reason = why_none or _unknown(peak, expected_bytes)
    if reason is not None or peak.peak_bytes is None:
        return Expectation(figure, expected_bytes, None, None, None, reason)
    ratio = peak.peak_bytes / expected_bytes
    return Expectation(figure, expected_bytes, peak.peak_bytes, ratio, _remark(figure, ratio), None)


def _unknown(peak: MemoryPeak, expected_bytes: int) -> str | None:
    if peak.peak_bytes is None:
        return peak.reason or "it was not measured"
    return None if expected_bytes > 0 else f"the plan expects {expected_bytes} bytes"


def _remark(figure: str, ratio: float) -> str | None:
    if abs(ratio - 1) <= TOLERANCE:
        return None
    said = f"the {figure} is {ratio:.3g} times what was expected"
    if unit := _likely_unit(ratio):
        return f"{said}: as if {unit} and bytes were mixed up"
    return f"{said}: the model of memory {'lacks something' if ratio > 1 else 'counts what is not there'}"


def _likely_unit(ratio: float) -> str | None:
    factor = math.exp(abs(math.log(ratio)))
    return next((unit for unit, size in _STEPS.items() if abs(factor / size - 1) <= TOLERANCE), None)
