"""Checks of the author's files: vendor.yaml with the numbers of chips, README.md, recorded/README.md."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from levelfield.catalog.chip_names import chip_clash
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.chips import SOURCE_FIELDS, SOURCES_ADVICE, range_faults
from levelfield.specs.vendor import PeakDtype
from levelfield.testing.findings import Fails, Missing, NotApplicable, Warns
from levelfield.testing.recordings import ORIGINS_FILE
from levelfield.testing.subject import VendorSubject

PLACEHOLDER = "FILL IN"

COMPARED_DTYPES: tuple[PeakDtype, ...] = ("bf16", "fp16", "fp8")  # whose peaks are held against other vendors'
MAX_PEAK_RATIO = 1.25  # a chip's peak may be so many times the highest one of the other vendors' chips


def check_schema(subject: VendorSubject) -> str:
    """Check that vendor.yaml is valid and has no blanks, and that the adapter can be created."""
    try:
        spec = subject.spec
        subject.registry.vendor(subject.name)
    except UsageError as error:
        raise Fails(str(error), "correct the named key" if isinstance(error, DocumentError) else "") from None
    _check_placeholders(subject.file)
    for key in ("title", "verified"):
        if not getattr(spec, key).strip():
            raise Missing(f"key '{key}' is empty", "write a value; `verified: none` is allowed")
    return f"{spec.schema_name()}; verified: {spec.verified}"


def check_readme(subject: VendorSubject) -> str:
    """Check that README.md exists and has no blanks."""
    path = subject.folder / "README.md"
    if not path.is_file() or not path.read_text(encoding="utf-8", errors="replace").strip():
        raise Missing("found no README.md", "name the sources of the data, and what has run on the chip")
    _check_placeholders(path)
    return f"README.md has {len(path.read_text(encoding='utf-8', errors='replace').splitlines())} lines"


def _check_placeholders(path: Path) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    blank = [str(number) for number, line in enumerate(lines, 1) if PLACEHOLDER in line]
    if blank:
        raise Missing(
            f"{path.name}: found '{PLACEHOLDER}' in line {', '.join(blank)}",
            f"write the real value and remove '{PLACEHOLDER}'; leave unknown values out, or null",
        )


def check_chips(subject: VendorSubject) -> str:
    """Check that every number of a chip has its source, that no chip hides a later one, and that no name is taken."""
    entries = subject.spec.chips
    if not entries:
        raise Missing("vendor.yaml has no chips", "add one: name, match, device_is, memory_bytes and memory_source")
    for chip in entries:
        for number, source in SOURCE_FIELDS.items():
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
    for at, chip in enumerate(entries):
        for other in entries[:at]:
            if name := next(
                (end for end in chip.match if end.strip().lower().endswith(tuple(map(str.lower, other.match)))), None
            ):
                raise Fails(f"a device named '{name}' matches {other.name} before {chip.name}", "make match longer")
    if clash := chip_clash(subject.registry, subject.spec):
        raise Fails(clash, "choose a name that no other vendor and no chip of one has")
    chips_without_peak = [chip.name for chip in entries if not chip.peaks]
    note = f"; no peak, so no MFU: {', '.join(chips_without_peak)}" if chips_without_peak else ""
    return f"{len(entries)} chip(s){note}"


def check_origins(subject: VendorSubject) -> str:
    """Check that recorded/README.md names every recording."""
    subject.required_recordings()
    path = subject.folder / "recorded" / ORIGINS_FILE
    unnamed_recordings, fault = subject.recordings, "found no recorded/README.md, expected one that names"
    if path.is_file():
        _check_placeholders(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        unnamed_recordings = tuple(r for r in unnamed_recordings if not re.search(rf"\b{re.escape(r.path.name)}", text))
        fault = "recorded/README.md does not name"
    if unnamed_recordings:
        first, command = unnamed_recordings[0].path.name, " ".join(unnamed_recordings[0].argv)
        raise Missing(
            f"{fault} {', '.join(r.path.name for r in unnamed_recordings)}",
            f"add a line for each: - `{first}`: `{command}`, date, machine, chips, driver, owner",
        )
    return f"{len(subject.recordings)} recording(s): {', '.join(r.path.name for r in subject.recordings)}"


def check_plausibility(subject: VendorSubject) -> str:
    """Check every number of every chip against its range, and against the chip's other numbers."""
    entries = subject.spec.chips
    for chip in entries:
        if fault := next(range_faults(chip), None):
            raise Fails(f"chip {chip.name}: {fault[0]}", fault[1])
        link, bandwidth = chip.interconnect, chip.memory_bandwidth_bytes_per_second
        rate = link.each_way_bytes_per_second if link else None
        if rate and bandwidth and not rate <= bandwidth:
            raise Fails(
                f"chip {chip.name}: interconnect sends {rate / 1e9:g} GB/s each way, above the memory's "
                f"{bandwidth / 1e9:g} GB/s",
                "check whether the source counts bits, all devices together, or both ways",
            )
    others = [subject.registry.vendor_file(name) for name in subject.registry.vendors if name != subject.name]
    for chip in entries:  # a peak that may be one with sparsity
        peaks = {dtype: peak.tflops for dtype, peak in chip.peaks.items()}
        if "bf16" in peaks and peaks.get("fp16") == 2 * peaks["bf16"]:
            message = f"chip {chip.name}: fp16 is exactly twice bf16 ({peaks['bf16']:g}): is it with sparsity?"
            raise Warns(message, SOURCES_ADVICE)
        for dtype in COMPARED_DTYPES:
            rates = [(c.peaks[dtype].tflops, c.name) for spec in others for c in spec.chips if dtype in c.peaks]
            most, name = max(rates, default=(0.0, ""))
            if rates and dtype in peaks and not peaks[dtype] <= MAX_PEAK_RATIO * most:
                raise Warns(
                    f"chip {chip.name}: the {dtype} peak is {peaks[dtype]:g} TFLOP/s, and the highest of another "
                    f"vendor's is {most:g} ({name}): is it with sparsity, of several chips, or of a smaller type?",
                    "compare its source; if it is dense and of one device, leave it",
                )
    return f"{len(entries)} chip(s): numbers are within their ranges and fit together"


def check_claims(subject: VendorSubject) -> str:
    """Check that no other vendor finds its devices in this vendor's tools and device nodes."""
    if subject.spec.is_host:
        raise NotApplicable("the host's processors are no vendor's alone")
    vendor_devices = subject.recorded_devices()
    others = [name for name in subject.registry.vendors if name != subject.name]
    accelerators = [name for name in others if not subject.registry.vendor_file(name).is_host]
    for name in accelerators:
        for device, other in itertools.product(
            subject.replayed_adapter(subject.outputs, name).devices(), vendor_devices
        ):
            has_index_only = device.chip is None and device.identity is None  # a device of a node has its index only
            has_same_identity = device.identity is not None and device.identity == other.identity
            has_same_place = device.index == other.index and (has_index_only or device.description == other.description)
            if has_same_identity or has_same_place:
                raise Fails(
                    f"vendor {name} claims device {device.index} ({device.description}) as well, by the same tool or "
                    "node",
                    "give the two vendors different tools, or make the patterns of one so strict that only its own "
                    "devices fit; without a named vendor the first by name would be taken",
                )
    return f"none of {len(others)} other vendor(s) claims these devices"
