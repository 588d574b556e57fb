"""Checks of the author's files: vendor.yaml with the numbers of chips, README.md, recorded/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from levelfield.catalog.lookup import chip_clash
from levelfield.contracts.readings import is_named
from levelfield.contracts.vendor import Device
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.chips import SOURCES
from levelfield.specs.vendor import Chip, PeakDtype
from levelfield.testing.findings import Fails, Missing, NotApplicable, Warns
from levelfield.testing.recordings import ORIGINS, Recording
from levelfield.testing.subject import VendorSubject

BLANK = "FILL IN"

# These ranges are several times wider than the chips of today. They find wrong units, sparse figures among dense ones,
# and figures of a whole server.
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
HELD: tuple[PeakDtype, ...] = ("bf16", "fp16", "fp8")
ABOVE = 1.25  # times the highest peak of the other vendors' chips, which a new chip may exceed
SPARSE = "compare unit, sparsity and chip of both sources"
UNITS = "correct the number or its unit"


def schema(subject: VendorSubject) -> str:
    """Check that vendor.yaml is valid and has no blanks, and that the adapter can be created."""
    try:
        spec = subject.spec
        subject.registry.vendor(subject.name)
    except UsageError as error:
        raise Fails(str(error), "correct the named key" if isinstance(error, DocumentError) else "") from None
    _check_blanks(subject.file)
    for key in ("title", "verified"):
        if not getattr(spec, key).strip():
            raise Missing(f"key '{key}' is empty", "write a value; `verified: none` is allowed")
    return f"{spec.schema_name()}; verified: {spec.verified}"


def readme(subject: VendorSubject) -> str:
    """Check that README.md exists and has no blanks."""
    path = subject.folder / "README.md"
    if not path.is_file() or not path.read_text(encoding="utf-8", errors="replace").strip():
        raise Missing("found no README.md", "name the sources of the data, and what has run on the chip")
    _check_blanks(path)
    return f"README.md has {len(path.read_text(encoding='utf-8', errors='replace').splitlines())} lines"


def _check_blanks(path: Path) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    blank = [str(number) for number, line in enumerate(lines, 1) if BLANK in line]
    if blank:
        raise Missing(
            f"{path.name}: found '{BLANK}' in line {', '.join(blank)}",
            f"write the real value and remove '{BLANK}'; leave unknown values out, or null",
        )


def chips(subject: VendorSubject) -> str:
    """Check that every number of a chip has its source, that no chip hides a later one, and that names are its own."""
    known = subject.spec.chips
    if not known:
        raise Missing("vendor.yaml has no chips", "add one: name, match, device_is, memory_bytes and memory_source")
    for chip in known:
        _check_sources(chip)
    _check_matches(known)
    if clash := chip_clash(subject.registry, subject.spec):
        raise Fails(clash, "choose a name that no other vendor and no chip of one has")
    without = [chip.name for chip in known if not chip.peaks]
    note = f"; no peak, so no MFU: {', '.join(without)}" if without else ""
    return f"{len(known)} chip(s){note}"


def _check_sources(chip: Chip) -> None:
    for number, source in SOURCES.items():
        if getattr(chip, number) is not None and not (getattr(chip, source) or "").strip():
            raise Missing(f"chip {chip.name}: {number} has no {source}", "name the document of the number")
    link = chip.interconnect
    if link is not None and link.bytes_per_second is not None and link.each_way_bytes_per_second is None:
        raise Missing(
            f"chip {chip.name}: interconnect.bytes_per_second does not say whether it counts both ways",
            "give each_way_bytes_per_second, and source_counts: each way, or both ways",
        )
    if any(not end.strip() for end in chip.match):
        raise Fails(f"chip {chip.name}: match holds an empty text, which fits every name", "remove it")


def _check_matches(known: tuple[Chip, ...]) -> None:
    """Check that no name of a chip matches an earlier chip."""
    for at, chip in enumerate(known):
        for other in known[:at]:
            if taken := next((end for end in chip.match if is_named(end, other.match)), None):
                raise Fails(f"a device named '{taken}' matches {other.name} before {chip.name}", "make match longer")


def origins(subject: VendorSubject) -> str:
    """Check that recorded/README.md names every recording."""
    subject.needs_recordings()
    path = subject.folder / "recorded" / ORIGINS
    if not path.is_file():
        names = ", ".join(r.path.name for r in subject.recordings)
        raise Missing(f"found no recorded/README.md, expected one that names {names}", _hint(subject.recordings[0]))
    _check_blanks(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    unnamed = [r for r in subject.recordings if not re.search(rf"\b{re.escape(r.path.name)}", text)]
    if unnamed:
        names = ", ".join(r.path.name for r in unnamed)
        raise Missing(f"recorded/README.md does not name {names}", _hint(unnamed[0]))
    return f"{len(subject.recordings)} recording(s): {', '.join(r.path.name for r in subject.recordings)}"


def _hint(recording: Recording) -> str:
    command = " ".join(recording.argv)
    return f"add a line for each: - `{recording.path.name}`: `{command}`, date, machine, chips, driver, owner"


def plausible(subject: VendorSubject) -> str:
    """Check every number of every chip against its range, and against the chip's other numbers."""
    known = subject.spec.chips
    for chip in known:
        for what, value, (least, most), do in (*_alone(chip), *_together(chip)):
            if not least <= value <= most:
                raise Fails(f"chip {chip.name}: {what} is {value:.4g}, expected {least:g} to {most:g}", do)
        _check_links(chip)
    if doubt := next(_high_peaks(subject), None):
        raise Warns(*doubt)
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


def _high_peaks(subject: VendorSubject) -> Iterator[tuple[str, str]]:
    """Return each peak that may be one with sparsity: what was found, what to do."""
    others = [subject.registry.vendor_file(name) for name in subject.registry.vendors if name != subject.name]
    for chip in subject.spec.chips:
        peaks = {dtype: peak.tflops for dtype, peak in chip.peaks.items()}
        if "bf16" in peaks and peaks.get("fp16") == 2 * peaks["bf16"]:
            yield f"chip {chip.name}: fp16 is exactly twice bf16 ({peaks['bf16']:g}): is it with sparsity?", SPARSE
        for dtype in HELD:
            known = [(c.peaks[dtype].tflops, c.name) for spec in others for c in spec.chips if dtype in c.peaks]
            most, name = max(known, default=(0.0, ""))
            if known and dtype in peaks and not peaks[dtype] <= ABOVE * most:
                yield (
                    f"chip {chip.name}: the {dtype} peak is {peaks[dtype]:g} TFLOP/s, and the highest of another "
                    f"vendor's is {most:g} ({name}): is it with sparsity, of several chips, or of a smaller type?",
                    "compare its source; if it is dense and of one device, leave it",
                )


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
    for name in (other for other in others if not subject.registry.vendor_file(other).is_host):
        same = next((d for d in subject.over(subject.outputs, name).devices() if _is_one_of(d, mine)), None)
        if same:
            raise Fails(
                f"vendor {name} claims device {same.index} ({same.description}) as well, by the same tool or node",
                "give the two vendors different tools, or make the patterns of one so strict that only its own "
                "devices fit; without a named vendor the first by name would be taken",
            )
    return f"none of {len(others)} other vendor(s) claims these devices"


def _is_one_of(device: Device, mine: Sequence[Device]) -> bool:
    """Return whether a device has the identity, or index and name, of one of mine; one of a node has its index only."""
    by_node = device.chip is None and device.identity is None
    return any(
        (device.identity is not None and device.identity == own.identity)
        or (device.index == own.index and (by_node or device.description == own.description))
        for own in mine
    )
