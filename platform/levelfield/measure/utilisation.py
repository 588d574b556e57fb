"""MFU and HFU: FLOPs per second / a peak, with all inputs of the number.

MFU counts the FLOPs that the model needs (Chowdhery et al., 2022, appendix B). HFU counts all computed FLOPs,
with recomputation. Without a peak there is no utilisation: None with the reason, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from levelfield.measure.flops import FormulaError, FormulaId, Recomputation, flops_per_token, versioned
from levelfield.measure.parameter_counts import parameters
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision
from levelfield.specs.result import ABOVE_PEAK, Utilisation
from levelfield.specs.vendor import Peak, PeakDtype

Kind = Literal["MFU", "HFU"]
UNKNOWN_PEAK = "no published or measured peak for this chip and precision"
MEASURED = "measured"  # what the source of a probe's rate begins with


@dataclass(frozen=True)
class PeakRange:
    """The peak for a precision. `fp8`: only for a mix of fp8 and 16-bit multiplications."""

    peak: Peak | None
    fp8: Peak | None = None
    mixed: bool = False


def peak_range(precision: Precision, peaks: Mapping[PeakDtype, Peak]) -> PeakRange:
    """Return the peaks for a run in `precision`. fp32 refers to the fp32 peak, not to the tf32 peak."""
    if precision == "fp8":
        return PeakRange(peaks.get("bf16") or peaks.get("fp16"), peaks.get("fp8"), mixed=True)
    return PeakRange(peaks.get(precision))


def mfu(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    tokens_per_second_per_device: float,
    peaks: PeakRange,
    parameters_override: float | None = None,
) -> Utilisation:
    """Return model FLOPs utilisation. Recomputation never enters it, so `megatron-2021` has none."""
    if formula == "megatron-2021":
        return _without("MFU", formula, None, None, "megatron-2021 counts recomputation: see its HFU")
    flops = _flops_or_reason(formula, model, sequence_length, parameters_override, "none")
    found = _utilisation("MFU", formula, flops, tokens_per_second_per_device, peaks)
    return found.model_copy(update={"parameters": _counted(formula, model, sequence_length, parameters_override)})


def hfu(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    tokens_per_second_per_device: float,
    peaks: PeakRange,
    recompute: Recomputation,
    parameters_override: float | None = None,
    repeated: Collection[int] | None = None,
) -> Utilisation:
    """Return hardware FLOPs utilisation, with the forward FLOPs that `recompute` repeats. repeated: in which layers;
    None: in all."""
    flops = _flops_or_reason(formula, model, sequence_length, parameters_override, recompute, repeated)
    found = _utilisation("HFU", formula, flops, tokens_per_second_per_device, peaks)
    return found.model_copy(update={"parameters": _counted(formula, model, sequence_length, parameters_override)})


def _counted(formula: FormulaId, model: Model, sequence_length: int, override: float | None) -> int | None:
    """Return the N of the formula; None for a formula without."""
    if formula not in ("palm", "6n"):
        return None
    if override is None:
        return parameters(model, sequence_length).active
    return round(override) if math.isfinite(override) else None


def _flops_or_reason(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    override: float | None,
    recompute: Recomputation,
    repeated: Collection[int] | None = None,
) -> float | str:
    try:
        return flops_per_token(formula, model, sequence_length, override, recompute, repeated)
    except FormulaError as error:
        return str(error)


def _utilisation(kind: Kind, formula: FormulaId, flops: float | str, rate: float, peaks: PeakRange) -> Utilisation:
    if isinstance(flops, str):
        return _without(kind, formula, None, None, flops)
    if not (math.isfinite(rate) and rate > 0):
        return _without(kind, formula, flops, None, f"found {rate} tokens/s per device, expected a positive number")
    return _against_peak(kind, formula, flops, flops * rate / 1e12, peaks)


def _against_peak(kind: Kind, formula: FormulaId, flops: float, achieved: float, peaks: PeakRange) -> Utilisation:
    if peaks.peak is None or (peaks.mixed and peaks.fp8 is None):
        return _without(kind, formula, flops, achieved, UNKNOWN_PEAK)
    high = achieved / peaks.peak.tflops
    low = achieved / peaks.fp8.tflops if peaks.fp8 else high
    tflops, source = _described(peaks.peak, peaks.fp8)
    if not low <= 1:
        return _without(kind, formula, flops, achieved, _refusal(low, (peaks.fp8 or peaks.peak).tflops, source))
    value = None if peaks.mixed else high
    return Utilisation(
        formula=versioned(formula),
        kind=kind,
        value=value,
        low=low,
        high=high,
        flops_per_token=flops,
        achieved_tflops=achieved,
        peak_tflops=tflops,
        peak_source=source,
        reason="16-bit and fp8 multiplications mix: between low and high" if peaks.mixed else None,
    )


def _refusal(part: float, tflops: float, source: str) -> str:
    """Return why a rate above the peak is no utilisation. A run that is faster than a probe shows the probe wrong."""
    why = "the throughput, the device count or the peak is wrong"
    if source.startswith(MEASURED):
        why = "the probe gave less than the run itself reaches, and is refused"
    return f"{part:.1%} of {tflops:.4g} TFLOP/s, {ABOVE_PEAK}: {why} ({source})"


def _described(peak: Peak, fp8: Peak | None) -> tuple[float, str]:
    if fp8 is None:
        return peak.tflops, peak.source
    return peak.tflops, f"16-bit: {peak.source}; fp8 {fp8.tflops:g} TFLOP/s: {fp8.source}"


def _without(kind: Kind, formula: FormulaId, flops: float | None, achieved: float | None, reason: str) -> Utilisation:
    return Utilisation(
        formula=versioned(formula),
        kind=kind,
        value=None,
        low=None,
        high=None,
        flops_per_token=flops,
        achieved_tflops=achieved,
        peak_tflops=None,
        peak_source=None,
        reason=reason,
    )
