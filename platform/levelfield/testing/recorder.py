"""`vendor record`: runs the vendor's tools on this machine and stores their output as recordings."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from levelfield.contracts.command import CommandOutput, ask
from levelfield.contracts.tool_records import Parsed, parse
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import RunFailed, UsageError
from levelfield.specs.tool import Tool
from levelfield.testing.recordings import ORIGINS, commands, file_name
from levelfield.testing.redaction import identities, redacted, replacements

HEADING = "# Where the recorded output comes from\n"


@dataclass(frozen=True)
class Captured:
    """The output of one tool for a recording. problem: why there is none."""

    role: str
    argv: tuple[str, ...]
    file: str
    text: str | None
    tool: Tool | None
    problem: str = ""


def record(vendor: Vendor, folder: Path, redact: bool, force: bool) -> list[str]:
    """Run each command of vendor.yaml, write recorded/, and return sentences about what was done.

    Raises UsageError for existing recordings without `force`. Raises RunFailed when a tool for devices or samples
    prints nothing or fails.
    """
    known = commands(vendor.spec)
    if not any(tool for _, tool in known.values()):
        raise UsageError(f"{folder}: found no tool in vendor.yaml; add `monitor`, or record adapter.py's by hand")
    _refuse_overwriting(folder / "recorded", list(known), force)
    captured = [_captured(role, argv, tool) for role, (argv, tool) in known.items()]
    _check_output(captured)
    kept = redacted(captured_texts(captured), _tools(captured)) if redact else captured_texts(captured)
    _write(folder / "recorded", vendor, captured, kept)
    said = _mask_notes(captured) if redact else _identity_notes(captured)
    return [*_file_notes(folder / "recorded", captured), *_unread_notes(captured), *said]


def captured_texts(captured: list[Captured]) -> dict[str, str]:
    return {item.file: item.text for item in captured if item.text is not None}


def _tools(captured: list[Captured]) -> dict[str, Tool]:
    return {item.file: item.tool for item in captured if item.tool}


def _refuse_overwriting(folder: Path, roles: list[str], force: bool) -> None:
    there = [path for role in roles for path in sorted(folder.glob(f"{role}.*"))]
    if there and not force:
        raise UsageError(f"{there[0]} exists; --force replaces it and its line in {ORIGINS}")


def _captured(role: str, argv: tuple[str, ...], tool: Tool | None) -> Captured:
    answer: CommandOutput = ask(argv, 60)
    return Captured(role, argv, file_name(role, tool), answer.text, tool, answer.reason)


def _check_output(captured: list[Captured]) -> None:
    for item in captured:
        if item.tool is None:
            continue
        command = shlex.join(item.argv)
        if item.text is None:
            raise RunFailed(
                f"failed (tool): {item.problem}. Run this on a machine with the chip, its driver and the vendor's "
                f"tools on PATH, where `{command}` works"
            )
        if not item.text.strip():
            raise RunFailed(f"failed (tool): `{command}` printed nothing; check the device and this user's rights")


def _unread_notes(captured: list[Captured]) -> Iterator[str]:
    for item in captured:
        if item.tool is None or item.text is None:
            continue
        found: Parsed = parse(item.tool, item.text)
        if not found.records:
            why = f": {found.passed_over[0]}" if found.passed_over else ""
            yield f"{item.file}: found no device with the rules of vendor.yaml{why}; run `vendor check` for details"


def _identity_notes(captured: list[Captured]) -> Iterator[str]:
    for item in captured:
        if item.text is not None and any(identities(item.text, item.tool)):
            yield f"{item.file} holds identities of devices; --redact --force replaces them"


def _mask_notes(captured: list[Captured]) -> Iterator[str]:
    """Return sentences with the masks of the identities, without the identities themselves."""
    masks = replacements(captured_texts(captured), _tools(captured))
    for item in captured:
        here = [mask for word, mask in masks.items() if item.text is not None and word in item.text]
        if here:
            more = ", ..." if len(here) > 3 else ""
            identity = "identity" if len(here) == 1 else "identities"
            yield f"{item.file}: {len(here)} {identity} replaced, now {', '.join(here[:3])}{more}"
    if not masks:
        yield "--redact: found no serial number, UUID or name of this machine to replace"
    yield "PCI bus addresses are not secret and stay; read the files before you publish them"


def _file_notes(folder: Path, captured: list[Captured]) -> Iterator[str]:
    for item in captured:
        if item.text is None:
            yield f"{item.role}: not recorded: {item.problem}"
        else:
            yield f"{folder / item.file}: {len(item.text.splitlines())} line(s) of `{shlex.join(item.argv)}`"


def _write(folder: Path, vendor: Vendor, captured: list[Captured], kept: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for item in captured:
            for old in folder.glob(f"{item.role}.*"):
                old.unlink()
        for name, text in kept.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
        origins = folder / ORIGINS
        before = origins.read_text(encoding="utf-8") if origins.is_file() else HEADING + "\n"
        origins.write_text(_with_origins(before, vendor, captured, kept), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}; copy the vendor's folder elsewhere") from None


def _with_origins(before: str, vendor: Vendor, captured: list[Captured], kept: dict[str, str]) -> str:
    """Return the text with one line for each recording. It replaces an earlier line about the same file."""
    names = "|".join(map(re.escape, kept))
    lines = [line for line in before.splitlines() if not re.match(rf"- `({names})`", line)]
    lines = lines if not lines or lines[-1].startswith("- ") or not lines[-1].strip() else [*lines, ""]
    made = [item for item in captured if item.file in kept]
    return "\n".join([*lines, *(_origin(item, vendor, kept[item.file] != item.text) for item in made)]) + "\n"


def _devices(vendor: Vendor) -> Sequence[Device]:
    try:
        return vendor.devices()
    except Exception:  # an adapter may raise anything, and the recording is written in any case
        return ()


def _origin(item: Captured, vendor: Vendor, is_redacted: bool) -> str:
    day = datetime.now(timezone.utc).date().isoformat()
    devices = _devices(vendor)
    chips = f"{len(devices)} x {devices[0].description}" if devices else "no device that vendor.yaml recognises"
    software = "; ".join(f"{name} {version}" for name, version in vendor.software().items())
    ending = "; identities replaced" if is_redacted else ""
    where = f"{platform.system()} {platform.machine()}"
    return f"- `{item.file}`: `{shlex.join(item.argv)}`, {day}, {where}, {chips}; {software}{ending}"
