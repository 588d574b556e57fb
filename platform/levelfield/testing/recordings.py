"""The recorded output of a vendor's tools on a real machine: the files of the `recorded` folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from levelfield.specs.tool import Tool
from levelfield.specs.vendor import VendorFile

SUFFIXES = {"csv": ".csv", "json": ".json", "pattern": ".txt"}
ORIGINS = "README.md"


@dataclass(frozen=True)
class Recording:
    """The output of one tool. argv: its command; a name alone means any arguments (a tool of adapter.py)."""

    role: str
    path: Path
    argv: tuple[str, ...]
    content: bytes
    tool: Tool | None = None

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def is_text(self) -> bool:
        try:
            return bool(self.text)
        except UnicodeDecodeError:
            return False

    @property
    def is_json(self) -> bool:
        return self.tool.format == "json" if self.tool else self.path.suffix == ".json"

    @property
    def line_is_record(self) -> bool:
        """Whether each line belongs to one device, so that lines may change places."""
        if self.tool is None or self.tool.format == "csv":
            return self.path.suffix == ".csv" or self.tool is not None
        return len(self.tool.patterns) == 1 and "\\n" not in self.tool.patterns[0]


def commands(spec: VendorFile) -> dict[str, tuple[tuple[str, ...], Tool | None]]:
    """Return the commands of vendor.yaml by the name of their recording."""
    found: dict[str, tuple[tuple[str, ...], Tool | None]] = {}
    if spec.monitor:
        found["monitor"] = (spec.monitor.command, spec.monitor)
    if spec.discovery and spec.discovery.tool:
        found["discovery"] = (spec.discovery.tool.command, spec.discovery.tool)
    found |= {f"software.{name}": (version.command, None) for name, version in spec.software.items()}
    return found


def file_name(role: str, tool: Tool | None) -> str:
    return role + (SUFFIXES[tool.format] if tool else ".txt")


def recordings(folder: Path, spec: VendorFile) -> tuple[Recording, ...]:
    """Return the recordings of vendor.yaml's commands, and those of adapter.py: tool.<executable>.<suffix>."""
    found = []
    for role, (argv, tool) in commands(spec).items():
        for path in sorted(folder.glob(f"{role}.*"))[:1]:
            found.append(Recording(role, path, argv, path.read_bytes(), tool))
    for path in sorted(folder.glob("tool.*.*")):
        found.append(Recording("tool", path, (path.stem.removeprefix("tool."),), path.read_bytes()))
    return tuple(found)
