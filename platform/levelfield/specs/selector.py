"""Case strings: `case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]`.

FlagPerf's six-part strings are read unchanged, also when they have a strategy in the place of the chip:
`gpt3_6.7B:paddle_2.5.1:TP1PP1SH2SP8A10080G:1:8:1`.
"""

from __future__ import annotations

import re

from pydantic import Field

from levelfield.errors import UsageError
from levelfield.specs.base import MAX_DEVICES, MAX_NODES, MAX_RANKS, MAX_REPEATS, Value
from levelfield.specs.layout import parse_layout

_FORM = "case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]"
_FRAMEWORK = re.compile(r"(?P<name>[a-z][a-z0-9-]*)(?:_(?P<version>\w[\w.+-]*))?", re.IGNORECASE)
_LAYOUT_PART = re.compile(r"(?:DP|TP|PP|SH|SP)\d+", re.IGNORECASE)


MAX_COUNTS = {"nodes": MAX_NODES, "devices": MAX_DEVICES, "repeats": MAX_REPEATS}


class Selector(Value):
    """The content of a case string; None for what it does not give."""

    case: str
    framework: str
    version: str | None = None
    target: str | None = None  # a vendor's or a chip's name
    layout: str | None = None
    nodes: int = Field(default=1, ge=1, le=MAX_COUNTS["nodes"])
    devices: int | None = Field(default=None, ge=1, le=MAX_COUNTS["devices"])  # of each node
    repeats: int = Field(default=1, ge=1, le=MAX_COUNTS["repeats"])


def parse_selector(text: str) -> Selector:
    """Read a case string. Raises UsageError with the part, what was found and what was expected."""
    parts = text.split(":")
    if not 2 <= len(parts) <= 6 or not all(p.strip() for p in parts):
        raise UsageError(f"--case '{text}': found {len(parts)} parts, expected {_FORM}")
    framework = _FRAMEWORK.fullmatch(parts[1])
    if framework is None:
        raise UsageError(f"--case '{text}': found '{parts[1]}', expected framework[_version], such as torch_2.13.0")
    layout, target = split_target(parts[2]) if len(parts) > 2 else (None, None)
    counts = {
        name: _parse_count(text, name, part)
        for name, part in zip(("nodes", "devices", "repeats"), parts[3:], strict=False)
    }
    if (ranks := counts.get("nodes", 1) * counts.get("devices", 1)) > MAX_RANKS:
        raise UsageError(f"--case '{text}': found {ranks:,} devices, expected at most {MAX_RANKS:,}")
    return Selector(
        case=parts[0], framework=framework["name"], version=framework["version"], target=target, layout=layout, **counts
    )


def versioned_framework(framework: str, version: str | None) -> str:
    """Return a framework as a case string names it; with a version, such as `jax_0.10.1`."""
    return f"{framework}_{version}" if version else framework


def split_label(text: str) -> tuple[str, str | None]:
    """Return framework and version of `jax_0.10.1`. Another text is a framework without a version."""
    match = _FRAMEWORK.fullmatch(text)
    return (match["name"], match["version"]) if match else (text, None)


def split_target(text: str) -> tuple[str | None, str | None]:
    """Split 'TP1PP1SH2SP8A10080G' into layout and chip; either may be absent.

    The last number of a strategy cannot merge with a chip's name, because chips begin with a letter.
    """
    parts, end = [], 0
    while match := _LAYOUT_PART.match(text, end):
        parts.append(match.group())
        end = match.end()
    layout = "".join(parts) or None
    if layout:
        parse_layout(layout)
    return layout, text[end:].lstrip("-_") or None


def _parse_count(text: str, name: str, part: str) -> int:
    if not part.isdecimal() or len(part) > 20 or not 1 <= int(part) <= MAX_COUNTS[name]:
        raise UsageError(
            f"--case '{text}': {name}: found '{part[:40]}', expected a whole number from 1 to {MAX_COUNTS[name]}"
        )
    return int(part)
