"""The recorded output of a vendor's tools on a real machine, and the values that an adapter reads from an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.tool_records import parse_output
from levelfield.contracts.vendor import Device, Sample, Vendor
from levelfield.specs.tool import Tool
from levelfield.specs.vendor import VendorFile

FORMAT_SUFFIXES = {"csv": ".csv", "json": ".json", "json_lines": ".jsonl", "pattern": ".txt"}
ORIGINS_FILE = "README.md"

ValueKey = tuple[int, str]
DeviceValues = Mapping[ValueKey, Any]
DEVICE_FIELDS = ("chip", "memory_bytes", "identity", "visible_as")


@dataclass(frozen=True)
class Recording:
    """The output of one tool."""

    role: str
    path: Path
    argv: tuple[str, ...]  # a name alone means any arguments (a tool of adapter.py)
    content: bytes
    tool: Tool | None = None

    @property
    def text(self) -> str:
        return self.content.decode()


def declared_commands(spec: VendorFile) -> dict[str, tuple[tuple[str, ...], Tool | None]]:
    """Return the commands of vendor.yaml by the name of their recording."""
    commands: dict[str, tuple[tuple[str, ...], Tool | None]] = {}
    if spec.monitor:
        commands["monitor"] = (spec.monitor.command, spec.monitor)
    if spec.discovery and spec.discovery.tool:
        commands["discovery"] = (spec.discovery.tool.command, spec.discovery.tool)
    if spec.numbering and spec.numbering.tool:
        commands["numbering"] = (spec.numbering.tool.command, spec.numbering.tool)
    commands |= {f"software.{name}": (version.command, None) for name, version in spec.software.items()}
    return commands


def recording_file_name(role: str, tool: Tool | None) -> str:
    return role + (FORMAT_SUFFIXES[tool.format] if tool else ".txt")


def read_recordings(folder: Path, spec: VendorFile) -> tuple[Recording, ...]:
    """Return the recordings of vendor.yaml's commands, and those of adapter.py: tool.<executable>.<suffix>."""
    recordings = []
    for role, (argv, tool) in declared_commands(spec).items():
        for path in sorted(folder.glob(f"{role}.*"))[:1]:
            recordings.append(Recording(role, path, argv, path.read_bytes(), tool))
    for path in sorted(folder.glob("tool.*.*")):
        recordings.append(Recording("tool", path, (path.stem.removeprefix("tool."),), path.read_bytes()))
    return tuple(recordings)


def unread_reason(role: str, tool: Tool, text: str) -> str | None:
    """Return why the rules of vendor.yaml find no device in what a tool printed, or None where they find one."""
    parsed = parse_output(tool, text)
    if parsed.records:
        return None
    if not parsed.skipped_reasons and tool.patterns:
        key = f"{'discovery.tool' if role == 'discovery' else role}.patterns.0"
        return f"key '{key}': found no match of '{tool.patterns[0]}', expected one for each device"
    return parsed.skipped_reasons[0] if parsed.skipped_reasons else "found no record"


def read_values(vendor: Vendor, devices: Sequence[Device]) -> dict[ValueKey, Any]:
    """Return all values that are not null: of the devices that the vendor lists, and of the samples of `devices`."""
    device_values = {(d.index, field): getattr(d, field) for d in vendor.devices() for field in DEVICE_FIELDS}
    sample_values = {(s.index, field): getattr(s, field) for s in vendor.sample(devices) for field in SAMPLED_FIELDS}
    return {key: value for key, value in {**device_values, **sample_values}.items() if value is not None}


def find_wrong_value(values: DeviceValues, expected_values: DeviceValues) -> str | None:
    """Return a sentence about a wrong value, or None when all are right or null."""
    for (index, field), value in values.items():
        if value != expected_values.get((index, field)):
            actual_and_expected = (value, expected_values.get((index, field), "none"))
            actual, expected = (
                f"{item:.12g}" if isinstance(item, float) else str(item) for item in actual_and_expected
            )
            return f"device {index}: {field} is {actual}, expected null or {expected}"
    return None


def find_unexplained_null(samples: Sequence[Sample]) -> str | None:
    """Return a sentence about a value that is null without a reason, or None."""
    for sample in samples:
        for field in SAMPLED_FIELDS:
            if getattr(sample, field) is None and not sample.reasons.get(field):
                return f"device {sample.index}: {field} is null without a reason"
    return None
