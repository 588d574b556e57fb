"""Builds one record for each device from a tool's output, in each format that vendor.yaml may name.

Incomplete records are skipped, never guessed. Only complete lines are read, so the last line of a truncated output is
ignored. A ValueError gives the reason why a whole output cannot be used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import regex

from levelfield.contracts.readings import require_number
from levelfield.specs.short_names import clipped
from levelfield.specs.tool import ZERO_POINTS, FieldName, Tool, field_units

BYTE_ORDER_MARK = "\ufeff"  # some tools begin a text with it; it belongs to no column and to no JSON
# Before its JSON, amd-smi warns users who are not in the system's groups `video` and `render`. Such lines begin no
# object and no list.
_PREAMBLE = re.compile(r"\A(?:(?!\s*[\[{]).*\n)+")
DUPLICATE_RECORD = "more than one record of"
# Some patterns take exponential time on a text that they do not fit, and a tool may print any text. Python's own `re`
# cannot be interrupted in a thread; the library `regex` reads the same patterns and has a time limit.
SEARCH_LIMIT_SECONDS = 0.5  # of one search; the slowest shipped pattern takes a hundredth of it on its recording


@dataclass(frozen=True)
class RecordTexts:
    """A record's texts by field."""

    values: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)  # reasons for missing ones
    damage: str | None = None  # why the whole record is unusable


# ---- each record of an output, in order; a ValueError where the records cannot be separated


def _csv_records(tool: Tool, output: str) -> Iterator[RecordTexts]:
    separator = None if tool.separator == " " else tool.separator  # None: any number of spaces
    rows = [[part.strip() for part in line.split(separator)] for line in output.split("\n")[:-1] if line.strip()]
    columns: dict[str, int | str | None] = {name: location.column for name, location in tool.fields.items()}
    positions, width = {name: column - 1 for name, column in columns.items() if isinstance(column, int)}, tool.columns
    names = [str(column) for column in columns.values()]
    header_row = next((n for n, row in enumerate(rows) if all(row.count(name) == 1 for name in names)), None)
    if (
        not positions and header_row is None
    ):  # the reason names the columns that are not there, or there twice, in the row that has most of them
        nearest = max(rows, key=lambda row: sum(name in row for name in names), default=[])
        missing = [name for name in names if name not in nearest]
        if len(missing) == len(names):
            first = f"the first line is '{clipped(', '.join(rows[0]), 200)}'" if rows else "no line is whole"
            raise ValueError(f"found no header with the columns {', '.join(names)}; {first}")
        faults = [f"no column '{name}'" for name in missing]
        faults += [f"column '{name}' twice" for name in names if nearest.count(name) > 1]
        raise ValueError(f"found {' and '.join(faults)} in the header '{clipped(', '.join(nearest), 200)}'")
    if not positions and header_row is not None:
        positions = {name: rows[header_row].index(str(column)) for name, column in columns.items()}
        width, rows = len(rows[header_row]), rows[header_row + 1 :]
    for row in rows:
        if len(row) == (width or len(row)) and len(row) > max(positions.values()):
            yield RecordTexts({name: row[column] for name, column in positions.items()})
            continue
        expected = width or f"at least {max(positions.values()) + 1}"
        quotes_hint = "; quotes around a column are not read" if any('"' in part for part in row) else ""
        yield RecordTexts(damage=f"a line of {len(row)} columns, expected {expected}{quotes_hint}")


def _json_records(tool: Tool, output: str) -> Iterator[RecordTexts]:
    try:
        document = json.loads(_PREAMBLE.sub("", output, count=1), object_pairs_hook=_require_unique_keys)
        # other releases of a tool may print the list itself that vendor.yaml has under a key
        is_bare = isinstance(document, list) and isinstance(next(iter(tool.records), None), str)
        records = document if is_bare else _descend(document, tool.records)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found no JSON as it should be: {error}") from None
    if isinstance(records, dict):
        if records and not any(isinstance(value, dict) for value in records.values()):
            raise ValueError(f"found no record in the mapping at {list(tool.records)}")
        records = [{"@key": key, **value} for key, value in records.items() if isinstance(value, dict)]
    if not isinstance(records, list):
        raise ValueError(f"found {type(records).__name__} at {list(tool.records)}, expected a list or a mapping")
    yield from (_texts_at_paths(tool, record) for record in records)


def _json_line_records(tool: Tool, output: str) -> Iterator[RecordTexts]:
    for line in filter(str.strip, output.split("\n")[:-1]):
        try:
            record = json.loads(line, object_pairs_hook=_require_unique_keys)
        except (ValueError, RecursionError) as error:
            yield RecordTexts(damage=f"a line that is no JSON as it should be: {error}")
        else:
            yield _texts_at_paths(tool, record)


def _texts_at_paths(tool: Tool, record: Any) -> RecordTexts:
    texts = RecordTexts()
    for name, location in tool.fields.items():
        try:
            texts.values[name] = _scalar_text(_descend(record, location.path or ()))
        except ValueError as error:
            texts.problems[name] = str(error)
    return texts


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _descend(value: Any, path: tuple[int | str, ...]) -> Any:
    for key in path:
        in_list = isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)
        if not in_list and not (isinstance(value, dict) and key in value):
            raise ValueError(f"found nothing at {list(path)}")
        value = value[key]
    return value


def _scalar_text(value: Any) -> str:
    """Return a scalar as text. Some tools print an object of `value` and `unit`: it gives both with a space."""
    if isinstance(value, dict) and set(value) == {"value", "unit"}:
        return f"{_scalar_text(value['value'])} {_scalar_text(value['unit'])}".rstrip()
    if isinstance(value, (bool, dict, list)):
        raise ValueError(f"found {json.dumps(value)[:40]}, expected a number or a text")
    if value is None:
        return "null"
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value).strip()


def _pattern_records(tool: Tool, output: str) -> Iterator[RecordTexts]:
    text = "".join(line.rstrip("\r") + "\n" for line in output.split("\n")[:-1])
    first_pattern, *other_patterns = tool.patterns
    starts = list(find_matches(first_pattern, text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=False):  # without a start there is no record
        record = RecordTexts()
        pattern_matches = [
            (first_pattern, [start]),
            *((pattern, list(find_matches(pattern, text, start.end(), end))) for pattern in other_patterns),
        ]
        # each pattern adds its groups where it matches once in the record, else the reason
        for pattern, record_matches in pattern_matches:
            if len(record_matches) == 1:
                groups = record_matches[0].groupdict()
                record.values.update({name: value.strip() for name, value in groups.items() if value is not None})
                absent = [name for name, value in groups.items() if value is None]
                record.problems.update(dict.fromkeys(absent, "the record does not say"))
            else:
                reason = "says it more than once" if record_matches else "does not say, or not in this form"
                record.problems.update(dict.fromkeys(re.compile(pattern).groupindex, f"the record {reason}"))
        yield record


@dataclass(frozen=True)
class Record:
    """The record of one device, as its tool printed it."""

    tool: Tool
    index: int
    texts: RecordTexts

    def word(self, field: FieldName) -> str | None:
        """Return a name or an identity, or None."""
        text = self.texts.values.get(field)
        is_missing = text is None or text.lower() in map(str.lower, self.tool.not_available)
        return None if text is None or is_missing else field_value(self.tool, field, text)

    def quantity(self, field: FieldName) -> float:
        """Return the value in the contract's unit. Raises ValueError with the reason when there is none."""
        text = self.texts.values.get(field)
        if text is None:
            raise ValueError(self.texts.problems.get(field, "vendor.yaml does not say where the tool has it"))
        missing = {word.lower() for word in self.tool.not_available}
        if text.lower() in missing:
            raise ValueError(f"the tool says '{text}'")
        value, location = field_value(self.tool, field, text), self.tool.fields[field]
        if not value.endswith(location.printed):
            raise ValueError(f"found '{value}', expected a number with '{location.printed}' behind it")
        number_text = value.removesuffix(location.printed).rstrip()
        if number_text.lower() in missing:
            raise ValueError(f"the tool says '{text}'")
        require_number(number_text)
        scale = 1 if location.scale is None else Decimal(repr(location.scale))  # as it is written, and so exact
        unit = location.unit or ""
        number = Decimal(number_text) * scale * Decimal(field_units(field)[unit])
        return float(number - Decimal(ZERO_POINTS.get(unit, 0)))


@dataclass(frozen=True)
class ParsedOutput:
    """The complete records of an output."""

    records: Mapping[int, Record]  # by index
    skipped_reasons: tuple[str, ...] = ()  # a reason for each record that was skipped
    no_output_reason: str | None = None  # why there was no output
    # why a tool that is here shows no device; None when it shows one, or that there is none, or is not here
    no_device_reason: str | None = None
    # why there may be more devices than the records show; None where every record is whole
    incomplete_reason: str | None = None

    def missing_record_reason(self, index: int) -> str:
        """Return the reason why this device has no record."""
        if self.no_output_reason:
            return self.no_output_reason
        first = f"; passed over: {self.skipped_reasons[0]}" if self.skipped_reasons else ""
        return f"the tool shows no whole record of device {index}{first}"


def parse_output(tool: Tool, output: str) -> ParsedOutput:
    """Return all records of an output. Two records of one device are both dropped: either may be wrong."""
    if not output.strip():
        return ParsedOutput({}, ("the tool printed nothing",), no_device_reason=f"{tool.command[0]} printed nothing")
    formats: dict[str, Callable[[Tool, str], Iterator[RecordTexts]]] = {
        "csv": _csv_records,
        "json": _json_records,
        "json_lines": _json_line_records,
        "pattern": _pattern_records,
    }
    records: list[Record] = []
    damage: list[str] = []
    unreadable = f"{tool.command[0]} printed no device that vendor.yaml can read: "
    try:
        for candidate in formats[tool.format](tool, output.removeprefix(BYTE_ORDER_MARK)):
            if candidate.damage:
                damage.append(candidate.damage)
                continue
            # index, name and identity: a record without a valid one belongs to no device
            identity_texts = {field: candidate.values.get(field, "") for field in tool.fields if not field_units(field)}
            try:
                index = {field: field_value(tool, field, text) for field, text in identity_texts.items()}["index"]
            except ValueError as error:
                damage.append(str(error))
                continue
            if re.fullmatch("[0-9]{1,6}", index):
                records.append(Record(tool, int(index), candidate))
            else:
                damage.append(f"found the index '{index}', expected a number")
    except ValueError as error:
        return ParsedOutput({}, (str(error),), no_device_reason=f"{unreadable}{error}")
    keys: tuple[FieldName, ...] = ("index", "identity")
    for key in keys:
        records, repeated = _unique_records(tool, records, key)
        damage += repeated
    # JSON, and a CSV with a header, show an empty list as such. Other texts without a record may be anything.
    shows_empty_list = tool.format == "json" or all(
        isinstance(location.column, str) for location in tool.fields.values()
    )
    no_device_reason = incomplete_reason = None
    if not records and (damage or not shows_empty_list):
        no_device_reason = unreadable + (damage[0] if damage else "found no record")
    by_index = {record.index: record for record in records}
    if records and damage:
        incomplete_reason = f"{tool.command[0]} may show more devices than {', '.join(map(str, by_index))}: {damage[0]}"
    return ParsedOutput(by_index, tuple(damage), no_device_reason=no_device_reason, incomplete_reason=incomplete_reason)


def _unique_records(tool: Tool, records: Sequence[Record], key: FieldName) -> tuple[list[Record], list[str]]:
    """Return the records without those that share a key, and a reason for each such key."""
    counts = Counter(record.word(key) for record in records)
    repeated = {word for word, count in counts.items() if word and count > 1}
    if key in tool.fields and tool.fields[key].is_of_card:
        for record in records:
            if record.word(key) in repeated:
                del record.texts.values[key]
        return list(records), []
    reasons = [f"{DUPLICATE_RECORD} {key} '{word}'" for word in sorted(repeated)]
    return [record for record in records if record.word(key) not in repeated], reasons


def field_value(tool: Tool, field: FieldName, text: str) -> str:
    """Return the value within a field's text. Raises ValueError when the text does not match `matching`."""
    pattern = tool.fields[field].matching
    if pattern is None:
        return text
    match = next(find_matches(pattern, text, is_whole=True), None)
    if match is None:
        raise ValueError(f"found the {field} '{text}', expected what matches {pattern}")
    return str((match[1] if match.re.groups else text) or "")


def find_matches(
    pattern: str, text: str, start: int = 0, end: int | None = None, is_whole: bool = False
) -> Iterator[Any]:
    """Yield the matches in a part of the text; `^` and `$` match at every line. Raises ValueError after the limit.

    is_whole: only a match of the whole text, where they match at its ends.
    """
    try:
        if is_whole:
            match = regex.fullmatch(pattern, text, timeout=SEARCH_LIMIT_SECONDS)
            yield from [match] if match else []
        else:
            yield from regex.finditer(
                pattern, text, regex.MULTILINE, pos=start, endpos=end, timeout=SEARCH_LIMIT_SECONDS
            )
    except TimeoutError:
        raise ValueError(f"the pattern '{clipped(pattern, 60)}' took more than {SEARCH_LIMIT_SECONDS:g} s") from None
