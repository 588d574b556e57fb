"""Checks of a chip's numbers against each other and against what chips have, and of vendors that claim one device.

The ranges are several times wider than the chips of today. They find wrong units, sparse figures among dense ones, and
figures of a whole server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device
from levelfield.specs.vendor import Chip, PeakDtype
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.subject import VendorSubject

Range = tuple[float, float]
PEAKS: dict[PeakDtype, Range] = {
    "fp64": (0.05, 1000),
    "fp32": (1, 1000),
    "tf32": (5, 10_000),
    "bf16": (5, 20_000),
    "fp16": (5, 20_000),
    "fp8": (10, 40_000),
}
# First over second. bf16 is half of fp16 on MI100; fp8 equals bf16 on Gaudi 3; tf32 is half of bf16 wherever both are.
RATIOS: dict[tuple[PeakDtype, PeakDtype], Range] = {
    ("fp64", "fp32"): (0.005, 1.05),
    ("tf32", "bf16"): (0.3, 1.05),
    ("bf16", "fp16"): (0.45, 1.05),
    ("bf16", "fp32"): (0.95, 64),
    ("fp16", "fp32"): (0.95, 64),
    ("fp8", "bf16"): (0.95, 4.2),
}
MEMORY_GIB: Range = (2, 4096)
BANDWIDTH_GB: Range = (50, 50_000)
LINK_GB: Range = (1, 10_000)
FLOPS_PER_BYTE: Range = (20, 1000)  # 16-bit peak over bandwidth: 110 (MI250) to 500 (Gaudi 3)
REACHED: Range = (0.15, 1)  # achievable over peak
SPARSE = "compare unit, sparsity and chip of both sources"
UNITS = "correct the number or its unit"


def chips(subject: VendorSubject) -> str:
    """Check every number of every chip against its range, and against the chip's other numbers."""
    known = subject.spec.chips
    for chip in known:
        for what, value, (least, most), do in (*_alone(chip), *_together(chip)):
            if not least <= value <= most:
                raise Fails(f"chip {chip.name}: {what} is {value:.4g}, expected {least:g} to {most:g}", do)
        _check_links(chip)
    return f"{len(known)} chip(s): numbers are within their ranges and fit together"


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
    for rate in rates:
        if rate:
            yield "a rate of interconnect in GB/s", rate / 1e9, LINK_GB, UNITS


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


def _check_links(chip: Chip) -> None:
    """Check that a device does not send faster to others than it reads its own memory."""
    link, bandwidth = chip.interconnect, chip.memory_bandwidth_bytes_per_second
    rate = link.each_way_bytes_per_second if link else None
    if rate and bandwidth and not rate <= bandwidth:
        raise Fails(
            f"chip {chip.name}: interconnect sends {rate / 1e9:g} GB/s each way, above the memory's "
            f"{bandwidth / 1e9:g} GB/s",
            "check whether the source counts bits, all devices together, or both ways",
        )


def claims(subject: VendorSubject) -> str:
    """Check that no other vendor finds its devices in this vendor's tools and device nodes."""
    if subject.spec.is_host:
        raise NotApplicable("the host's processors are no vendor's alone")
    mine = subject.devices()
    others = [name for name in subject.registry.vendors if name != subject.name]
    for name in others:
        same = next((d for d in _found_by(subject, name) if _is_one_of(d, mine)), None)
        if same:
            raise Fails(
                f"vendor {name} claims device {same.index} ({same.description}) as well, by the same tool or node",
                "give the two vendors different tools, or make the patterns of one so strict that only its own "
                "devices fit; without a named vendor the first by name would be taken",
            )
    return f"none of {len(others)} other vendor(s) claims these devices"


def _found_by(subject: VendorSubject, name: str) -> Sequence[Device]:
    """Return the devices that another vendor finds where this vendor's tools are replayed."""
    spec = subject.registry.vendor_file(name)
    adapter = subject.registry.vendor(name)
    if spec.is_host:
        return ()
    if type(adapter) is not DeclaredVendor:
        subject.stage.replay(subject.outputs)
        return adapter.devices()
    answers = {argv: content.decode(errors="replace") for argv, content in subject.outputs.items()}
    replayed = DeclaredVendor(
        spec,
        lambda argv, seconds: CommandOutput(answers.get(tuple(argv)), "not recorded", absent=True),
        subject.nodes(),
    )
    return replayed.devices()


def _is_one_of(device: Device, mine: Sequence[Device]) -> bool:
    """Return whether a device has the identity, or index and name, of one of mine; one of a node has its index only."""
    by_node = device.chip is None and device.identity is None
    return any(
        (device.identity is not None and device.identity == own.identity)
        or (device.index == own.index and (by_node or device.description == own.description))
        for own in mine
    )
