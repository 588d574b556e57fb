"""The output of a vendor's tool as data: the command, the format of its output, and the place of each value."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import regex
from pydantic import AfterValidator, Field, model_validator

from levelfield.specs.base import Value

FieldName = Literal[
    "index", "name", "identity", "visible", "compute_units",
    "memory_total", "memory_used", "power", "energy", "utilisation", "temperature",
]  # fmt: skip
# Each unit in the units of the contract: W, J, bytes, fraction of 1, degrees Celsius. Text, because it is exact.
UNITS: dict[str, dict[str, str]] = {
    "power": {"W": "1", "mW": "0.001", "uW": "0.000001", "kW": "1000"},
    "energy": {
        **{"J": "1", "mJ": "0.001", "uJ": "0.000001", "kJ": "1000", "MJ": "1000000"},
        **{"mWh": "3.6", "Wh": "3600", "kWh": "3600000"},
    },
    "memory": {
        **{"B": "1", "KiB": "1024", "MiB": "1048576", "GiB": "1073741824", "TiB": "1099511627776"},
        **{"kB": "1000", "MB": "1000000", "GB": "1000000000", "TB": "1000000000000"},
    },
    "utilisation": {"percent": "0.01", "ratio": "1"},
    "temperature": {"celsius": "1", "kelvin": "1"},
}
ZERO_POINTS = {"kelvin": "273.15"}  # what a unit counts where the contract's unit counts 0; of other units 0
NOT_AVAILABLE = ("", "-", "--", "NA", "N/A", "[N/A]", "null", "[Not Supported]", "Not Supported", "[Unknown Error]")
_MAX_PATTERN_CHARACTERS = 2000  # the longest pattern of the repository has 114
TIMEOUT_SECONDS = Field(default=5.0, gt=0, le=60)


def _check_pattern(text: str) -> str:
    """Return the pattern. Raises ValueError for one that `re` or `regex` does not take, or that matches an empty text.

    `regex` matches it, within a time limit, and `re` is what authors know.
    """
    if len(text) > _MAX_PATTERN_CHARACTERS:
        raise ValueError(f"found {len(text):,} characters, expected a pattern of at most {_MAX_PATTERN_CHARACTERS:,}")
    try:
        pattern = re.compile(text)
        regex.compile(text)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"found '{text}', expected a regular expression: {error}") from None
    if pattern.fullmatch(""):
        raise ValueError(f"found '{text}', which matches an empty text; expected a pattern that does not")
    return text


Pattern = Annotated[str, AfterValidator(_check_pattern)]


class ValueLocation(Value):
    """The place of one value in a record.

    A pattern needs neither column nor path, because its group has the field's name.
    """

    column: Annotated[int, Field(ge=1)] | str | None = None  # of csv: its number, from 1, or its name in the header
    # Of JSON: keys from the record down; a number is a place in a list, `@key` the record's own key.
    path: tuple[int | str, ...] | None = Field(default=None, min_length=1)
    unit: str | None = None  # of the number
    # How many of this unit the number 1 is, as for tenths of a watt (0.1) or pages.
    scale: float | None = Field(default=None, gt=0)
    printed: str = ""  # the text that must follow the number (`W`, `%`, `MiB`)
    # A pattern for the whole text; other texts are not this value. Its first group, if any, is the value.
    matching: Pattern | None = None
    is_of_card: bool = False  # an identity that all devices of one card print: two that do have none


class Tool(Value):
    """A command that prints a record for each device. It runs in the C locale.

    csv: one record per line, split at `separator` (" ": at any white space) into exactly `columns` parts.
    json: `records` is the path to a list or a mapping of records; when it is empty, the whole document is that value.
    A document that is itself a list holds the records, also where `records` begins with a key: releases of one tool
    differ here.
    json_lines: each line is a record, an object.
    pattern: regular expressions with a named group for each field, `^` and `$` at every line. Each match of the first
    begins a record. The others must match exactly once between it and the next match of the first. Adjacent lines are
    safest in one pattern with \\n between them: a lost line then never merges two records into one.
    Only complete lines count.
    """

    command: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = TIMEOUT_SECONDS
    format: Literal["csv", "json", "json_lines", "pattern"]
    separator: str = Field(default=",", min_length=1)
    columns: int | None = Field(default=None, ge=1)
    records: tuple[int | str, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    fields: dict[FieldName, ValueLocation]
    not_available: tuple[str, ...] = NOT_AVAILABLE  # words, in any case, for a value that cannot be read

    @model_validator(mode="after")
    def _is_complete(self) -> Tool:
        if "index" not in self.fields:
            raise ValueError("fields.index: missing; a record needs the index of its device")
        for name, location in self.fields.items():
            _check_unit(name, location.unit, location.scale)
        if self.format == "csv":
            self._check_columns()
        elif self.format in ("json", "json_lines"):
            self._check_locations("path")
        else:
            self._check_groups()
        return self

    def _check_columns(self) -> None:
        self._check_locations("column")
        numbers = [location.column for location in self.fields.values() if isinstance(location.column, int)]
        if 0 < len(numbers) < len(self.fields):
            raise ValueError("fields: found numbers and names of columns, expected one kind for all")
        if numbers and self.columns is None and self.separator != " ":
            raise ValueError("columns: missing; their number shows whether a line is complete")
        if numbers and self.columns is not None and max(numbers) > self.columns:
            raise ValueError(f"fields: found column {max(numbers)}, expected at most {self.columns}, the key 'columns'")

    def _check_locations(self, key: Literal["column", "path"]) -> None:
        other = {"column": "path", "path": "column"}[key]
        for name, location in self.fields.items():
            if getattr(location, key) is None:
                raise ValueError(f"fields.{name}.{key}: missing; format {self.format} needs it")
            if getattr(location, other) is not None or self.patterns:
                raise ValueError(f"fields.{name}: format {self.format} uses '{key}' only; remove the other keys")

    def _check_groups(self) -> None:
        groups = [group for pattern in self.patterns for group in re.compile(pattern).groupindex]
        if sorted(groups) != sorted(self.fields):
            names, fields = ", ".join(groups) or "none", ", ".join(self.fields)
            raise ValueError(f"patterns: found the groups {names}, expected each field once: {fields}")
        if "index" not in re.compile(self.patterns[0]).groupindex:
            raise ValueError("patterns: the first pattern begins a record, so it needs the group 'index'")
        if any(location.column is not None or location.path is not None for location in self.fields.values()):
            raise ValueError("fields: format pattern uses neither 'column' nor 'path'; remove them")


def field_units(field: str) -> dict[str, str]:
    """Return the units that a field may have; none for a field that is not a quantity."""
    return UNITS.get("memory" if field.startswith("memory") else field, {})


def _check_unit(field: str, unit: str | None, scale: float | None) -> None:
    units = field_units(field)
    if units and unit not in units:
        raise ValueError(f"fields.{field}.unit: found {unit!r}, expected one of {', '.join(units)}")
    if not units and scale is not None:
        raise ValueError(f"fields.{field}.scale: found {scale:g}, expected none: the field is not a quantity")
    if not units and unit is not None:
        raise ValueError(f"fields.{field}.unit: found '{unit}', expected none: the field is not a quantity")


class Discovery(Value):
    """How devices are found when the monitor's own records do not list them: by exactly one of these keys.

    Missing values (name, identity, memory) come from the monitor's record of the same index. Two identities of one
    index must be equal. If they differ, the index now belongs to another device, and samples stay empty.
    """

    tool: Tool | None = None  # another command
    # A glob under /dev; the digits at the end of a name are the device's index.
    device_nodes: str | None = Field(default=None, pattern="^/dev/.")

    @model_validator(mode="after")
    def _has_exactly_one_key(self) -> Discovery:
        if (self.tool is None) == (self.device_nodes is None):
            raise ValueError("expected one of the keys 'tool' and 'device_nodes'; without both, leave 'discovery' out")
        return self


class Numbering(Value):
    """How the visible-devices variable numbers the devices, where that is not the tool's order from 0 without a gap."""

    # A command that prints this number of each device as the field `visible`, beside the tool's own `index`.
    tool: Tool | None = None
    keeps_gaps: bool = False  # the variable takes the tool's numbers, also where one is absent between two others

    @model_validator(mode="after")
    def _has_exactly_one_key(self) -> Numbering:
        if (self.tool is None) != self.keeps_gaps:
            raise ValueError("expected one of the keys 'tool' and 'keeps_gaps: true'; without both, leave it out")
        if self.tool and "visible" not in self.tool.fields:
            raise ValueError("tool.fields.visible: missing; it is the number that the visible-devices variable takes")
        return self


class PrintedCommand(Value):
    """A command whose text is kept as it is printed."""

    command: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = TIMEOUT_SECONDS


class VersionCommand(Value):
    """A command that prints a version: the first group of `pattern`, or the whole match without a group."""

    command: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = TIMEOUT_SECONDS
    pattern: Pattern


class NodeCommand(Value):
    """A command of the vendor's tools that runs on each node. Its output is recorded there and read later."""

    argv: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = Field(gt=0)
