"""Numbers that a chip can have. Others have a wrong unit, count sparsity, or are those of a whole server."""

from __future__ import annotations

from collections.abc import Iterator

from levelfield.specs.vendor import Chip, PeakDtype

# Several times wider than the chips of today.
Range = tuple[float, float]
PEAKS: dict[PeakDtype, Range] = {
    "fp64": (0.05, 1000),
    "fp32": (1, 1000),
    "tf32": (5, 10_000),
    "bf16": (5, 20_000),
    "fp16": (5, 20_000),
    "fp8": (10, 40_000),
    "nvfp4": (20, 80_000),
}
# First over second. bf16 is half of fp16 on MI100; fp8 equals bf16 on Gaudi 3; tf32 is half of bf16 wherever both are.
RATIOS: dict[tuple[PeakDtype, PeakDtype], Range] = {
    ("fp64", "fp32"): (0.005, 1.05),
    ("tf32", "bf16"): (0.3, 1.05),
    ("bf16", "fp16"): (0.45, 1.05),
    ("bf16", "fp32"): (0.95, 64),
    ("fp16", "fp32"): (0.95, 64),
    ("fp8", "bf16"): (0.95, 4.2),
    ("nvfp4", "fp8"): (1.5, 4.2),
}
MEMORY_GIB: Range = (2, 4096)
BANDWIDTH_GB: Range = (50, 50_000)
LINK_GB: Range = (1, 10_000)
NETWORK_GB: Range = (0.1, 1000)  # of one device
POWER_WATTS: Range = (30, 10_000)
FLOPS_PER_BYTE: Range = (20, 1000)  # 16-bit peak over bandwidth: 110 (MI250) to 500 (Gaudi 3)
REACHED: Range = (0.15, 1)  # achievable over peak
SPARSE = "compare unit, sparsity and chip of both sources"
UNITS = "correct the number or its unit"


def out_of_range(chip: Chip) -> Iterator[tuple[str, str]]:
    """Yield each number of a chip that is out of its range, or does not fit another one: what was found, what to do."""
    for what, value, (least, most), do in (*_alone(chip), *_together(chip)):
        if not least <= value <= most:
            yield f"{what} is {value:.4g}, expected {least:g} to {most:g}", do


def _alone(chip: Chip) -> Iterator[tuple[str, float, Range, str]]:
    """Return each number that has a range of its own: what it is, value, range, advice."""
    for dtype, peak in chip.peaks.items():
        yield f"the {dtype} peak in TFLOP/s", peak.tflops, PEAKS[dtype], UNITS
    if chip.memory_bytes and chip.device_is != "host share":
        yield "memory_bytes in GiB", chip.memory_bytes / 2**30, MEMORY_GIB, UNITS
    if chip.memory_bandwidth_bytes_per_second:
        yield "the memory's bandwidth in GB/s", chip.memory_bandwidth_bytes_per_second / 1e9, BANDWIDTH_GB, UNITS
    link = chip.interconnect
    rates = (link.each_way_bytes_per_second, link.pair_each_way_bytes_per_second) if link else ()
    for rate in filter(None, rates):
        yield "a rate of interconnect in GB/s", rate / 1e9, LINK_GB, UNITS
    if chip.node:
        rate = chip.node.network_each_way_bytes_per_second
        yield "node's network of a device in GB/s", rate / 1e9, NETWORK_GB, UNITS
    if chip.power_watts:
        yield "power_watts", chip.power_watts, POWER_WATTS, UNITS


def _together(chip: Chip) -> Iterator[tuple[str, float, Range, str]]:
    """Return each ratio of two numbers, likewise."""
    peaks = {dtype: peak.tflops for dtype, peak in chip.peaks.items()}
    for (first, second), limits in RATIOS.items():
        if first in peaks and second in peaks:
            yield f"{first} over {second}", peaks[first] / peaks[second], limits, SPARSE
    for dtype, reached in chip.achievable.items():
        if dtype in peaks:
            yield f"achievable over the peak in {dtype}", reached.tflops / peaks[dtype], REACHED, SPARSE
    half = max((peaks[dtype] for dtype in ("bf16", "fp16") if dtype in peaks), default=None)
    if half and chip.memory_bandwidth_bytes_per_second:
        per_byte = half * 1e12 / chip.memory_bandwidth_bytes_per_second
        yield "the 16-bit peak in FLOP per byte of bandwidth", per_byte, FLOPS_PER_BYTE, UNITS
