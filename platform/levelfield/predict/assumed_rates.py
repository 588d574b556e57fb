"""Rates of a chip whose rates are not public, so that its layouts can be put in an order."""

from __future__ import annotations

from levelfield.specs.case import Precision
from levelfield.specs.vendor import Chip, Interconnect, Peak, PeakDtype

# The datasheet of NVIDIA's A100-SXM4-80GB. Only the order of layouts is taken from them, never a speed.
SOURCE = "assumed: the rates of an A100-SXM4-80GB"
TFLOPS, BANDWIDTH, LINK = 312.0, 2039e9, 300e9


def with_assumed_rates(chip: Chip, precision: Precision, devices: int) -> tuple[Chip, tuple[str, ...]]:
    """Return the chip with every rate that the planner needs, and the names of the assumed ones. One device needs no
    links."""
    wanted: tuple[PeakDtype, ...] = ("bf16", "fp8") if precision == "fp8" else (precision,)
    missing = [dtype for dtype in wanted if dtype not in chip.peaks]
    changes: dict[str, object] = {}
    if missing:
        changes["peaks"] = {**chip.peaks, **{dtype: Peak(tflops=TFLOPS, source=SOURCE) for dtype in missing}}
    if chip.memory_bandwidth_bytes_per_second is None:
        changes["memory_bandwidth_bytes_per_second"] = BANDWIDTH
    if devices > 1 and (chip.interconnect is None or chip.interconnect.each_way_bytes_per_second is None):
        changes["interconnect"] = Interconnect(description=SOURCE, each_way_bytes_per_second=LINK, source=SOURCE)
    names = {"peaks": f"peak of {', '.join(missing)}", "interconnect": "links"}
    return chip.model_copy(update=changes), tuple(names.get(key, "memory bandwidth") for key in changes)
