"""What a maker's tool prints, as data: the command, the shape of its output, and where each value stands in it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from levelfield.specs.base import Value

FieldName = Literal[
    "index", "name", "identity", "memory_total", "memory_used", "power", "energy", "utilisation", "temperature"
]
# Each unit in the contract's own: watts, joules, bytes, a share of 1, degrees Celsius. Text, so that it stays exact.
UNITS: dict[str, dict[str, str]] = {
    "power": {"W": "1", "mW": "0.001"},
    "energy": {"J": "1", "mJ": "0.001", "uJ": "0.000001"},
    "memory": {
        **{"B": "1", "KiB": "1024", "MiB": "1048576", "GiB": "1073741824"},
        **{"kB": "1000", "MB": "1000000", "GB": "1000000000"},
    },
    "utilisation": {"percent": "0.01", "ratio": "1"},
    "temperature": {"celsius": "1"},
}
NOT_AVAILABLE = ("", "-", "--", "NA", "N/A", "[N/A]", "null", "[Not Supported]", "Not Supported", "[Unknown Error]")
SECONDS = Field(default=5.0, gt=0, le=60)


def _compiles(text: str) -> str:
    try:
        found = re.compile(text)
    except re.error as error:
        raise ValueError(f"found '{text}', no regular expression: {error}") from None
    if found.fullmatch(""):
        raise ValueError(f"found '{text}', which an empty text matches too; expected one that asks for something")
    return text


Pattern = Annotated[str, AfterValidator(_compiles)]


class Where(Value):
    """Where one value stands in a record.

    column (csv): its number, from 1, or its name in the header. path (json): keys from the record down; a number is a
    place in a list, `@key` the record's own key. A pattern needs neither: its group has the field's name.
    unit: what the number is in. printed: the text behind the number, which must then be there (`W`, `%`, `MiB`).
    matching: what the whole text must match, else it is not this value; its first group, if any, is the value.
    """

    column: Annotated[int, Field(ge=1)] | str | None = None
    path: tuple[int | str, ...] | None = Field(default=None, min_length=1)
    unit: str | None = None
    printed: str = ""
    matching: Pattern | None = None


class Tool(Value):
    """A command that prints a record for each device, run in the C locale.

    csv: one record a line, split at `separator` (" ": at any white space) into exactly `columns` parts.
    json: `records` leads to a list or a mapping of records; empty, the whole document is that. A document that is a
    list where `records` begins with a key is the records: releases of one tool differ in that.
    pattern: regular expressions with a named group for each field, `^` and `$` at every line. Each match of the first
    begins a record; the others are looked for behind it, up to the next, and must be there once. Adjacent lines are
    safest in one pattern with \\n between: a line that is lost then never lets two records run into one.
    Lines count only when their end is there. not_available: words, any case, that say a value cannot be read.
    """

    command: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = SECONDS
    format: Literal["csv", "json", "pattern"]
    separator: str = Field(default=",", min_length=1)
    columns: int | None = Field(default=None, ge=1)
    records: tuple[int | str, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    fields: dict[FieldName, Where]
    not_available: tuple[str, ...] = NOT_AVAILABLE

    @model_validator(mode="after")
    def _is_complete(self) -> Tool:
        if "index" not in self.fields:
            raise ValueError("fields.index: missing; a record without the device's index is nobody's")
        for name, where in self.fields.items():
            _check_unit(name, where.unit)
        {"csv": self._check_columns, "json": self._check_paths, "pattern": self._check_groups}[self.format]()
        return self

    def _check_columns(self) -> None:
        self._check_places("column")
        numbers = [where.column for where in self.fields.values() if isinstance(where.column, int)]
        if 0 < len(numbers) < len(self.fields):
            raise ValueError("fields: found numbers and names of columns, expected one kind for all")
        if numbers and self.columns is None and self.separator != " ":
            raise ValueError("columns: missing; their number is how a damaged line is told from a whole one")
        if numbers and self.columns is not None and max(numbers) > self.columns:
            raise ValueError(f"fields: found column {max(numbers)}, expected at most {self.columns}, the key 'columns'")

    def _check_paths(self) -> None:
        self._check_places("path")

    def _check_places(self, key: Literal["column", "path"]) -> None:
        other = {"column": "path", "path": "column"}[key]
        for name, where in self.fields.items():
            if getattr(where, key) is None:
                raise ValueError(f"fields.{name}.{key}: missing; format {self.format} needs it")
            if getattr(where, other) is not None or self.patterns:
                raise ValueError(f"fields.{name}: format {self.format} knows '{key}' only; remove the rest")

    def _check_groups(self) -> None:
        groups = [group for pattern in self.patterns for group in re.compile(pattern).groupindex]
        if sorted(groups) != sorted(self.fields):
            found, wanted = ", ".join(groups) or "none", ", ".join(self.fields)
            raise ValueError(f"patterns: found the groups {found}, expected each field once: {wanted}")
        if "index" not in re.compile(self.patterns[0]).groupindex:
            raise ValueError("patterns: the first begins a record, so it must hold the group 'index'")
        if any(where.column is not None or where.path is not None for where in self.fields.values()):
            raise ValueError("fields: format pattern knows neither 'column' nor 'path'; remove them")


def units_of(field: str) -> dict[str, str]:
    """The units that a field may have; none for a field that is no quantity."""
    return UNITS.get("memory" if field.startswith("memory") else field, {})


def _check_unit(field: str, unit: str | None) -> None:
    known = units_of(field)
    if known and unit not in known:
        raise ValueError(f"fields.{field}.unit: found {unit!r}, expected one of {', '.join(known)}")
    if not known and unit is not None:
        raise ValueError(f"fields.{field}.unit: found '{unit}', expected none: this is no quantity")


class Discovery(Value):
    """How devices are found where the monitor's own records do not say it: by exactly one of these.

    tool: another command. device_nodes: a glob under /dev; the digits that a name ends in are the device's index.
    What it does not say (name, identity, memory) is taken from the monitor's record of the same index. Where both say
    an identity it must be the same text: another one means that the index has changed hands, and samples stay empty.
    """

    tool: Tool | None = None
    device_nodes: str | None = Field(default=None, pattern="^/dev/.")

    @model_validator(mode="after")
    def _has_one(self) -> Discovery:
        if (self.tool is None) == (self.device_nodes is None):
            raise ValueError("expected one of the keys 'tool' and 'device_nodes'; without both, leave 'discovery' out")
        return self


class VersionCommand(Value):
    """A command that prints a version: what the first group of `pattern` matches, else the whole match."""

    command: tuple[str, ...] = Field(min_length=1)
    timeout_seconds: float = SECONDS
    pattern: Pattern
