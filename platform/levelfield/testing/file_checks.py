"""Checks of the author's files: vendor.yaml, README.md, recorded/README.md."""

from __future__ import annotations

import re
from pathlib import Path

from levelfield.contracts.readings import is_named
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.vendor import Chip
from levelfield.testing.findings import Fails, Missing
from levelfield.testing.recordings import ORIGINS, Recording
from levelfield.testing.subject import VendorSubject

BLANK = "FILL IN"


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
    """Check that every number of a chip has its source, and that no chip hides a later one."""
    known = subject.spec.chips
    if not known:
        raise Missing("vendor.yaml has no chips", "add one: name, match, device_is, memory_bytes and memory_source")
    for chip in known:
        _check_sources(chip)
    _check_matches(known)
    without = [chip.name for chip in known if not chip.peaks]
    note = f"; no peak, so no MFU: {', '.join(without)}" if without else ""
    return f"{len(known)} chip(s){note}"


def _check_sources(chip: Chip) -> None:
    for number, source in (
        ("memory_bytes", "memory_source"),
        ("memory_bandwidth_bytes_per_second", "bandwidth_source"),
    ):
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
