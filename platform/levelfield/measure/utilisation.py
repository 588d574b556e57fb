"""MFU and HFU: FLOPs per second / a peak, with all inputs of the number.

MFU counts the FLOPs that the model needs (Chowdhery et al., 2022, appendix B). HFU counts all computed FLOPs,
with recomputation. Without a peak there is no utilisation: None with the reason, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.measure.flops import FormulaError, FormulaId, Recomputation, flops_per_token, versioned
from levelfield.measure.parameter_counts import parameters
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision
from levelfield.specs.result import ABOVE_PEAK, Utilisation
from levelfield.specs.vendor import Peak, PeakDtype

Kind = Literal["MFU", "HFU"]
UNKNOWN_PEAK = "no published or measured peak for this chip and precision"
MEASURED = "measured"  # what the source of a probe's rate begins with
_NOTHING = dict.fromkeys(("value", "low", "high", "flops_per_token", "achieved_tflops", "peak_tflops", "peak_source"))


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
        return _of("MFU", formula, {"reason": "megatron-2021 counts recomputation: see its HFU"})
    given = (formula, model, sequence_length, parameters_override)
    return _utilisation("MFU", given, "none", None, tokens_per_second_per_device, peaks)


def hfu(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    tokens_per_second_per_device: float,
    peaks: PeakRange,
    recompute: Recomputation,
    repeated: Collection[int] | None = None,
) -> Utilisation:
    """Return hardware FLOPs utilisation, with the forward FLOPs that `recompute` repeats. repeated: in which layers;
    None: in all."""
    given = (formula, model, sequence_length, None)
    return _utilisation("HFU", given, recompute, repeated, tokens_per_second_per_device, peaks)


def _utilisation(
    kind: Kind,
    given: tuple[FormulaId, Model, int, float | None],
    recompute: Recomputation,
    repeated: Collection[int] | None,
    rate: float,
    peaks: PeakRange,
) -> Utilisation:
    """given: the formula, the model, the sequence length and the N that replaces the model's. rate: of one device."""
    found: dict[str, Any] = {"parameters": _counted(*given)}
    try:
        found["flops_per_token"] = flops_per_token(*given, recompute, repeated)
        found |= _achieved(found["flops_per_token"], rate, peaks)
    except FormulaError as error:
        found["reason"] = str(error)
    return _of(kind, given[0], found)


def _of(kind: Kind, formula: FormulaId, found: dict[str, Any]) -> Utilisation:
    """Return the utilisation of what was found; everything else is None."""
    return Utilisation.model_validate({**_NOTHING, "formula": versioned(formula), "kind": kind, **found})


def _counted(formula: FormulaId, model: Model, sequence_length: int, override: float | None) -> int | None:
    """Return the N of the formula; None for a formula without."""
    if formula not in ("palm", "6n"):
        return None
    if override is None:
        return parameters(model, sequence_length).active
    return round(override) if math.isfinite(override) else None


def _achieved(flops: float, rate: float, peaks: PeakRange) -> dict[str, Any]:
    if not (math.isfinite(rate) and rate > 0):
        return {"reason": f"found {rate} tokens/s per device, expected a positive number"}
    achieved = flops * rate / 1e12
    return {"achieved_tflops": achieved, **_against_peak(achieved, peaks)}


def _against_peak(achieved: float, peaks: PeakRange) -> dict[str, Any]:
    peak, fp8 = peaks.peak, peaks.fp8
    if peak is None or (peaks.mixed and fp8 is None):
        return {"reason": UNKNOWN_PEAK}
    high = achieved / peak.tflops
    low = achieved / fp8.tflops if fp8 else high
    source = f"16-bit: {peak.source}; fp8 {fp8.tflops:g} TFLOP/s: {fp8.source}" if fp8 else peak.source
    if not low <= 1:
        return {"reason": _refusal(low, (fp8 or peak).tflops, source)}
    return {
        "value": None if peaks.mixed else high,
        "low": low,
        "high": high,
        "peak_tflops": peak.tflops,
        "peak_source": source,
        "reason": "16-bit and fp8 multiplications mix: between low and high" if peaks.mixed else None,
    }


def _refusal(part: float, tflops: float, source: str) -> str:
    """Return why a rate above the peak is no utilisation. A run that is faster than a probe shows the probe wrong."""
    why = "the throughput, the device count or the peak is wrong"
    if source.startswith(MEASURED):
        why = "the probe gave less than the run itself reaches, and is refused"
    return f"{part:.1%} of {tflops:.4g} TFLOP/s, {ABOVE_PEAK}: {why} ({source})"
