"""MFU and HFU: FLOPs per second / a peak, with all inputs of the number; and the rates that no peak exceeds.

MFU counts the FLOPs that the model needs (Chowdhery et al., 2022, appendix B). HFU counts all computed FLOPs,
with recomputation. Without a peak there is no utilisation: None with the reason, never 0.

A probe of a plugin may give a peak. It is held to a bound. On a processor that is frequency x operations of a cycle, of
each core, both taken high: Intel 64 and IA-32 Architectures Optimization Reference Manual (two FMA units; AMX), AMD's
Software Optimization Guides for Zen 4 and 5, IBM's Power10 MMA. A chip is bound by what its maker publishes for this
precision, or for other numbers of as many or fewer bits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelfield.measure.flops import FormulaError, FormulaId, Recomputation, flops_per_token, formula_version
from levelfield.measure.parameter_counts import count_parameters
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision
from levelfield.specs.result import ABOVE_PEAK, Utilisation
from levelfield.specs.vendor import Peak, PeakDtype

UtilisationKind = Literal["MFU", "HFU"]
UNKNOWN_PEAK = "no published or measured peak for this chip and precision"
MEASURED_PREFIX = "measured"  # the source of a probe's rate begins with it
_EMPTY_FIELDS = dict.fromkeys(
    ("value", "low", "high", "flops_per_token", "achieved_tflops", "peak_tflops", "peak_source")
)
HIGHEST_HERTZ = 6.5e9  # above the highest boost that is sold (6.2 GHz), which no core has with AVX-512 or AMX
# Operations of a cycle and core by a flag of /proc/cpuinfo: two units, a product and a sum for each number of a vector.
# AMX computes 1,024 with 16 bits, and is taken twice for processors to come. Without a flag: SSE.
_FP32_OPERATIONS = {"avx512f": 64, "avx": 32}
_SHORT_OPERATIONS: dict[str, Mapping[str, int]] = {
    "bf16": {"amx_bf16": 2048, "avx512_bf16": 128, **_FP32_OPERATIONS},
    "fp16": {"amx_fp16": 2048, "avx512_fp16": 128, **_FP32_OPERATIONS},
}
_OPERATIONS_BY_FLAG: dict[str, Mapping[str, int]] = {
    "fp32": _FP32_OPERATIONS,
    **_SHORT_OPERATIONS,
    "fp8": {**_SHORT_OPERATIONS["bf16"], **_SHORT_OPERATIONS["fp16"]},
}
_SSE_OPERATIONS = 16
# For an unknown processor: twice AVX-512, or AMX.
_UNKNOWN_OPERATIONS = {"fp32": 128, "bf16": 2048, "fp16": 2048, "fp8": 2048}
DATASHEET_MARGIN = 1.25  # a chip may run above the clock of its datasheet
# By precision, the other types of as many or fewer bits: a chip multiplies them at least as fast.
_BOUNDING_DTYPES: dict[Precision, tuple[PeakDtype, ...]] = {
    "fp32": ("tf32", "bf16", "fp16", "fp8", "nvfp4"),
    "bf16": ("fp16", "fp8", "nvfp4"),
    "fp16": ("bf16", "fp8", "nvfp4"),
    "fp8": ("nvfp4",),
}


@dataclass(frozen=True)
class PeakRange:
    """The peak that a run's precision is held to, or the two peaks of a mix."""

    peak: Peak | None  # of the precision; the 16-bit peak for a mix
    fp8: Peak | None = None  # only for a mix
    is_mixed: bool = False  # of fp8 and 16-bit multiplications


def peak_range(precision: Precision, peaks: Mapping[PeakDtype, Peak]) -> PeakRange:
    """Return the peaks for a run in `precision`. fp32 refers to the fp32 peak, not to the tf32 peak."""
    if precision == "fp8":
        return PeakRange(peaks.get("bf16") or peaks.get("fp16"), peaks.get("fp8"), is_mixed=True)
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
    inputs = (formula, model, sequence_length, parameters_override)
    return _utilisation("MFU", inputs, "none", None, tokens_per_second_per_device, peaks)


def hfu(
    formula: FormulaId,
    model: Model,
    sequence_length: int,
    tokens_per_second_per_device: float,
    peaks: PeakRange,
    recompute: Recomputation,
    repeated: Collection[int] | None = None,
) -> Utilisation:
    """Return hardware FLOPs utilisation, with the forward FLOPs that `recompute` repeats.

    repeated: the layers in which it does; None: all.
    """
    inputs = (formula, model, sequence_length, None)
    return _utilisation("HFU", inputs, recompute, repeated, tokens_per_second_per_device, peaks)


def _utilisation(
    kind: UtilisationKind,
    inputs: tuple[FormulaId, Model, int, float | None],
    recompute: Recomputation,
    repeated: Collection[int] | None,
    rate: float,
    peaks: PeakRange,
) -> Utilisation:
    """Return a utilisation with all its inputs.

    inputs: the formula, the model, the sequence length and the N that replaces the model's.
    rate: tokens per second of one device.
    """
    formula, model, sequence_length, parameter_count = inputs
    fields: dict[str, Any] = {**_EMPTY_FIELDS, "formula": formula_version(formula), "kind": kind, "parameters": None}
    if formula in ("palm", "6n"):
        parameter_count = (
            count_parameters(model, sequence_length).active if parameter_count is None else parameter_count
        )
        fields["parameters"] = round(parameter_count) if math.isfinite(parameter_count) else None
    try:
        if kind == "MFU" and formula == "megatron-2021":
            raise FormulaError("megatron-2021 counts recomputation: see its HFU")
        fields["flops_per_token"] = flops_per_token(*inputs, recompute, repeated)
        fields |= _achieved(fields["flops_per_token"], rate, peaks)
    except FormulaError as error:
        fields["reason"] = str(error)
    return Utilisation.model_validate(fields)


def _achieved(flops: float, rate: float, peaks: PeakRange) -> dict[str, Any]:
    """Return the fields of a utilisation that follow from FLOPs per token and tokens per second of one device."""
    if not (math.isfinite(rate) and rate > 0):
        return {"reason": f"found {rate} tokens/s per device, expected a positive number"}
    achieved, peak, fp8 = flops * rate / 1e12, peaks.peak, peaks.fp8
    if peak is None or (peaks.is_mixed and fp8 is None):
        return {"achieved_tflops": achieved, "reason": UNKNOWN_PEAK}
    high = achieved / peak.tflops
    low = achieved / fp8.tflops if fp8 else high
    source = f"16-bit: {peak.source}; fp8 {fp8.tflops:g} TFLOP/s: {fp8.source}" if fp8 else peak.source
    if not low <= 1:
        cause = "the throughput, the device count or the peak is wrong"
        if source.startswith(MEASURED_PREFIX):  # a run that is faster than a probe shows the probe wrong
            cause = "the probe gave less than the run itself reaches, and is refused"
        reason = f"{low:.1%} of {(fp8 or peak).tflops:.4g} TFLOP/s, {ABOVE_PEAK}: {cause} ({source})"
        return {"achieved_tflops": achieved, "reason": reason}
    return {
        "achieved_tflops": achieved,
        "value": None if peaks.is_mixed else high,
        "low": low,
        "high": high,
        "peak_tflops": peak.tflops,
        "peak_source": source,
        "reason": "16-bit and fp8 multiplications mix: between low and high" if peaks.is_mixed else None,
    }


def core_tflops_limit(precision: Precision, flags: Collection[str] | None) -> float:
    """Return the TFLOP/s that a core cannot exceed. flags: of /proc/cpuinfo on x86; None: an unknown processor."""
    if flags is None:
        return _UNKNOWN_OPERATIONS[precision] * HIGHEST_HERTZ / 1e12
    operations = max(
        (count for flag, count in _OPERATIONS_BY_FLAG[precision].items() if flag in flags), default=_SSE_OPERATIONS
    )
    return operations * HIGHEST_HERTZ / 1e12


def host_tflops_limits(cores: int, flags: Collection[str] | None) -> dict[str, float]:
    """Return the TFLOP/s that a host cannot exceed, by precision."""
    return {precision: cores * core_tflops_limit(precision, flags) for precision in _BOUNDING_DTYPES}


def chip_tflops_limit(precision: Precision, peaks: Mapping[PeakDtype, Peak]) -> float | None:
    """Return the TFLOP/s that a chip cannot exceed; None where nothing published bounds this precision."""
    if peak := peaks.get(precision):
        return DATASHEET_MARGIN * peak.tflops
    highest = max(
        (peaks[dtype].tflops for dtype in _BOUNDING_DTYPES.get(precision, ()) if dtype in peaks), default=None
    )
    return None if highest is None else DATASHEET_MARGIN * highest
