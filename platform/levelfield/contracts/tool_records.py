"""Builds one record for each device from a tool's output. Incomplete records are skipped, never guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from levelfield.contracts.formats import Texts, texts
from levelfield.contracts.patterns import whole_match
from levelfield.contracts.readings import number
from levelfield.specs.tool import FieldName, Tool, units_of


@dataclass(frozen=True)
class Record:
    """The record of one device, as its tool printed it."""

    tool: Tool
    index: int
    texts: Texts

    def word(self, field: FieldName) -> str | None:
        """Return a name or an identity, or None."""
        text = self.texts.found.get(field)
        return None if text is None or self._is_unavailable(text) else value_in(self.tool, field, text)

    def quantity(self, field: FieldName) -> float:
        """Return the value in the contract's unit. Raises ValueError with the reason when there is none."""
        text = self.texts.found.get(field)
        if text is None:
            raise ValueError(self.texts.problems.get(field, "vendor.yaml does not say where the tool has it"))
        if self._is_unavailable(text):
            raise ValueError(f"the tool says '{text}'")
        value, where = value_in(self.tool, field, text), self.tool.fields[field]
        if not value.endswith(where.printed):
            raise ValueError(f"found '{value}', expected a number with '{where.printed}' behind it")
        bare = value.removesuffix(where.printed).rstrip()
        if self._is_unavailable(bare):
            raise ValueError(f"the tool says '{text}'")
        number(bare)
        scale = 1 if where.scale is None else Decimal(repr(where.scale))  # as it is written, and so exact
        return float(Decimal(bare) * scale * Decimal(units_of(field)[where.unit or ""]))

    def _is_unavailable(self, text: str) -> bool:
        return text.lower() in (word.lower() for word in self.tool.not_available)


@dataclass(frozen=True)
class Parsed:
    """The complete records by index, and the reasons for skipped ones. silence: why there was no output.

    problem: why a tool that is here shows no device. None when it shows one, or that there is none, or is not here.
    """

    records: Mapping[int, Record]
    passed_over: tuple[str, ...] = ()
    silence: str | None = None
    problem: str | None = None

    def why_not(self, index: int) -> str:
        """Return the reason why this device has no record."""
        if self.silence:
            return self.silence
        first = f"; passed over: {self.passed_over[0]}" if self.passed_over else ""
        return f"the tool shows no whole record of device {index}{first}"


def parse(tool: Tool, output: str) -> Parsed:
    """Return all records of an output. Two records of one device are both dropped: either may be wrong."""
    found: list[Record] = []
    damage: list[str] = []
    try:
        for candidate in texts(tool, output):
            try:
                found.append(_record(tool, candidate))
            except ValueError as error:
                damage.append(str(error))
    except ValueError as error:
        return Parsed({}, (str(error),), problem=_unreadable(tool, str(error)))
    keys: tuple[FieldName, ...] = ("index", "identity")
    for key in keys:
        counts = Counter(record.word(key) for record in found)
        twice = {word for word, count in counts.items() if word and count > 1}
        damage += [f"more than one record of {key} '{word}'" for word in sorted(twice)]
        found = [record for record in found if record.word(key) not in twice]
    problem = None if found else _why_no_record(tool, output, damage)
    return Parsed({record.index: record for record in found}, tuple(damage), problem=problem)


def _why_no_record(tool: Tool, output: str, damage: Sequence[str]) -> str | None:
    """Return why an output shows no device. None for an empty list of records, which says that there is none.

    JSON, and a CSV with a header, show an empty list as such. Other texts without a record may be anything.
    """
    if damage:
        return _unreadable(tool, damage[0])
    has_frame = tool.format == "json" or all(isinstance(where.column, str) for where in tool.fields.values())
    if has_frame:
        return None
    return _unreadable(tool, "found no record" if output.strip() else "found no output")


def _unreadable(tool: Tool, found: str) -> str:
    return f"{tool.command[0]} printed no device that vendor.yaml can read: {found}"


def _record(tool: Tool, candidate: Texts) -> Record:
    """Return a record with valid marks (index, name, identity). Raises ValueError with what was found."""
    if candidate.damage:
        raise ValueError(candidate.damage)
    marks = {field: candidate.found.get(field, "") for field in tool.fields if not units_of(field)}
    values = {field: value_in(tool, field, text) for field, text in marks.items()}
    if not re.fullmatch("[0-9]{1,6}", values["index"]):
        raise ValueError(f"found the index '{values['index']}', expected a number")
    return Record(tool, int(values["index"]), candidate)


def value_in(tool: Tool, field: FieldName, text: str) -> str:
    """Return the value within a field's text. Raises ValueError when the text does not match `matching`."""
    pattern = tool.fields[field].matching
    if pattern is None:
        return text
    match = whole_match(pattern, text)
    if match is None:
        raise ValueError(f"found the {field} '{text}', expected what matches {pattern}")
    return str((match[1] if match.re.groups else text) or "")
