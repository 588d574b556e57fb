"""Reads the texts of each record's fields from a tool's output, in each format that vendor.yaml may name.

Only complete lines are read, so the last line of a truncated output is ignored. A ValueError gives the reason why a
whole output cannot be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from levelfield.contracts.patterns import every_match
from levelfield.specs.tool import Tool


@dataclass(frozen=True)
class Texts:
    """A record's texts by field, and the reasons for missing ones. damage: why the whole record is unusable."""

    found: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    damage: str | None = None


def texts(tool: Tool, output: str) -> Iterator[Texts]:
    """Return each record of the output, in order. Raises ValueError when the records cannot be separated."""
    formats: dict[str, Callable[[Tool, str], Iterator[Texts]]] = {"csv": _csv, "json": _json, "pattern": _pattern}
    return formats[tool.format](tool, output)


def _lines(output: str) -> list[str]:
    return [line.rstrip("\r") for line in output.split("\n")[:-1]]


def _csv(tool: Tool, output: str) -> Iterator[Texts]:
    rows = [_split(tool, line) for line in _lines(output) if line.strip()]
    places: dict[str, int | str | None] = {name: where.column for name, where in tool.fields.items()}
    numbers = {name: place - 1 for name, place in places.items() if isinstance(place, int)}
    if numbers:
        return (_row(row, numbers, tool.columns) for row in rows)
    names = [str(place) for place in places.values()]
    at = next((at for at, row in enumerate(rows) if all(row.count(name) == 1 for name in names)), None)
    if at is None:
        raise ValueError(f"found no header with each of the columns {', '.join(names)} once")
    named = {name: rows[at].index(str(place)) for name, place in places.items()}
    return (_row(row, named, len(rows[at])) for row in rows[at + 1 :])


def _split(tool: Tool, line: str) -> list[str]:
    return line.split() if tool.separator == " " else [part.strip() for part in line.split(tool.separator)]


def _row(row: list[str], places: dict[str, int], width: int | None) -> Texts:
    if len(row) != (width or len(row)) or len(row) <= max(places.values()):
        expected = width or f"at least {max(places.values()) + 1}"
        return Texts(damage=f"a line of {len(row)} columns, expected {expected}")
    return Texts({name: row[place] for name, place in places.items()})


def _json(tool: Tool, output: str) -> Iterator[Texts]:
    try:
        document = json.loads(output, object_pairs_hook=_once)
        records = document if _is_bare(document, tool) else _descend(document, tool.records)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found no JSON as it should be: {error}") from None
    if isinstance(records, dict):
        keyed = records.items()
        if records and not any(isinstance(value, dict) for value in records.values()):
            raise ValueError(f"found no record in the mapping at {list(tool.records)}")
        return (_object(tool, {"@key": key, **value}) for key, value in keyed if isinstance(value, dict))
    if not isinstance(records, list):
        raise ValueError(f"found {type(records).__name__} at {list(tool.records)}, expected a list or a mapping")
    return (_object(tool, value) for value in records)


def _is_bare(document: Any, tool: Tool) -> bool:
    """Return whether the document itself is the list that other releases of the tool put under a key."""
    return isinstance(document, list) and isinstance(next(iter(tool.records), None), str)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _object(tool: Tool, record: Any) -> Texts:
    found: dict[str, str] = {}
    problems: dict[str, str] = {}
    for name, where in tool.fields.items():
        try:
            found[name] = _text(_descend(record, where.path or ()))
        except ValueError as error:
            problems[name] = str(error)
    return Texts(found, problems)


def _descend(value: Any, path: tuple[int | str, ...]) -> Any:
    for key in path:
        in_list = isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)
        if not in_list and not (isinstance(value, dict) and key in value):
            raise ValueError(f"found nothing at {list(path)}")
        value = value[key]
    return value


def _text(value: Any) -> str:
    """Return a scalar as text. Some tools print an object of `value` and `unit`: it gives both with a space."""
    if isinstance(value, dict) and set(value) == {"value", "unit"}:
        return f"{_text(value['value'])} {_text(value['unit'])}".rstrip()
    if isinstance(value, (bool, dict, list)):
        raise ValueError(f"found {json.dumps(value)[:40]}, expected a number or a text")
    if value is None:
        return "null"
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value).strip()


def _pattern(tool: Tool, output: str) -> Iterator[Texts]:
    text = "".join(line + "\n" for line in _lines(output))
    begins, *others = tool.patterns
    starts = every_match(begins, text)
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=False):  # without a start there is no record
        record = Texts(*_groups(start))
        for other in others:
            _look_for(other, text, start.end(), end, record)
        yield record


def _groups(match: Any) -> tuple[dict[str, str], dict[str, str]]:
    groups = match.groupdict()
    absent = {name: "the record does not say" for name, text in groups.items() if text is None}
    return {name: text.strip() for name, text in groups.items() if text is not None}, absent


def _look_for(pattern: str, text: str, start: int, end: int, record: Texts) -> None:
    """Add the pattern's groups to the record when the pattern matches once in it; otherwise add the reason."""
    matches = every_match(pattern, text, start, end)
    if len(matches) == 1:
        found, absent = _groups(matches[0])
        record.found.update(found)
        record.problems.update(absent)
        return
    why = "the record says it more than once" if matches else "the record does not say, or not in this form"
    record.problems.update(dict.fromkeys(re.compile(pattern).groupindex, why))
