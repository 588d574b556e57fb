"""What the matrix products of a device cannot exceed, for rates that a probe of a plugin gave. No peak: a bound.

On a processor it is frequency x operations of a cycle, of each core, both taken high: Intel 64 and IA-32 Architectures
Optimization Reference Manual (two FMA units; AMX), AMD's Software Optimization Guides for Zen 4 and 5, IBM's Power10
MMA. A chip is bound by what its maker publishes for this precision or for narrower numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from levelfield.specs.case import Precision
from levelfield.specs.vendor import Peak, PeakDtype

HERTZ = 6.5e9  # above the highest boost that is sold (6.2 GHz), which no core has with AVX-512 or AMX
# Operations of a cycle and core by a flag of /proc/cpuinfo: two units, a product and a sum for each number of a vector.
# AMX computes 1,024 with 16 bits, and is taken twice for processors to come. Without a flag: SSE.
_SINGLE = {"avx512f": 64, "avx": 32}
_HALF: dict[str, Mapping[str, int]] = {
    "bf16": {"amx_bf16": 2048, "avx512_bf16": 128, **_SINGLE},
    "fp16": {"amx_fp16": 2048, "avx512_fp16": 128, **_SINGLE},
}
_BY_FLAG: dict[str, Mapping[str, int]] = {"fp32": _SINGLE, **_HALF, "fp8": {**_HALF["bf16"], **_HALF["fp16"]}}
_SSE = 16
# Of a processor that is not known: twice AVX-512, or AMX.
_UNKNOWN = {"fp32": 128, "bf16": 2048, "fp16": 2048, "fp8": 2048}
ABOVE_DATASHEET = 1.25  # a chip may run above the clock of its datasheet
_NARROWER: dict[Precision, tuple[PeakDtype, ...]] = {
    "fp32": ("tf32", "bf16", "fp16", "fp8", "nvfp4"),
    "bf16": ("fp16", "fp8", "nvfp4"),
    "fp16": ("bf16", "fp8", "nvfp4"),
    "fp8": ("nvfp4",),
}


def core_limit(precision: Precision, flags: Collection[str] | None) -> float:
    """Return the TFLOP/s that a core cannot exceed. flags: of /proc/cpuinfo on x86; None: an unknown processor."""
    if flags is None:
        return _UNKNOWN[precision] * HERTZ / 1e12
    operations = max((count for flag, count in _BY_FLAG[precision].items() if flag in flags), default=_SSE)
    return operations * HERTZ / 1e12


def host_limits(cores: int, flags: Collection[str] | None) -> dict[str, float]:
    """Return the TFLOP/s that a host cannot exceed, by precision."""
    return {precision: cores * core_limit(precision, flags) for precision in _NARROWER}


def chip_limit(precision: Precision, peaks: Mapping[PeakDtype, Peak]) -> float | None:
    """Return the TFLOP/s that a chip cannot exceed; None where nothing published bounds this precision."""
    if own := peaks.get(precision):
        return ABOVE_DATASHEET * own.tflops
    highest = max((peaks[dtype].tflops for dtype in _NARROWER.get(precision, ()) if dtype in peaks), default=None)
    return None if highest is None else ABOVE_DATASHEET * highest
