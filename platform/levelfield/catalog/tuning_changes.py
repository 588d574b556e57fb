"""What a vendor's tuning makes of a case: by row, and all rows of one place together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.specs.case import Case, Scale
from levelfield.specs.tuning import Tuning, TuningChoice, TuningRow

# What holds where nobody chooses; the rest are the schema's defaults.
UNCHOSEN: dict[str, Any] = {"layout": "data parallel over all devices", "threads": "the framework's choice"}


@dataclass(frozen=True)
class Place:
    """Where a case would run; None: anywhere."""

    chip: str | None = None
    framework: str | None = None
    devices: int | None = None

    def admits(self, row: TuningRow) -> bool:
        """Whether the row may apply here: nothing that is known speaks against it."""
        pairs = ((self.chip, row.chip), (self.framework, row.framework), (self.devices, row.devices))
        return all(None in pair or pair[0] == pair[1] for pair in pairs)

    def meets(self, row: TuningRow, scale: Scale) -> bool:
        """Whether the row does apply here, with what is known."""
        return row.applies(scale, self.chip, self.framework, self.devices)


@dataclass(frozen=True)
class Change:
    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RowChanges:
    """One row by its number in the file, and what it changes. Fields that it leaves as they are do not appear."""

    number: int
    row: TuningRow
    changes: tuple[Change, ...]


def row_changes(case: Case, rows: Sequence[TuningRow], scale: Scale, place: Place) -> Iterator[RowChanges]:
    """What each row that may apply changes of the case and of those rows before it that apply wherever it does."""
    for number, row in enumerate(rows):
        if row.scale != scale or not place.admits(row):
            continue
        before = _values(
            case, [r for r in rows[:number] if r.applies(scale, row.chip, row.framework, row.devices)], scale
        )
        after = overlaid(before, row.set)
        fields = [name for name in after if after[name] != before[name]]
        yield RowChanges(number, row, tuple(Change(name, before[name], after[name]) for name in fields))


def tuned(case: Case, rows: Sequence[TuningRow], scale: Scale, place: Place) -> dict[str, Any]:
    """All free fields as case and vendor choose them at one place."""
    return _values(case, [row for row in rows if place.meets(row, scale)], scale)


def overlaid(before: dict[str, Any], choice: TuningChoice) -> dict[str, Any]:
    """The fields after a choice; variables of the environment join those before."""
    given = choice.model_dump(exclude_none=True)
    if "environment" in given:
        given["environment"] = {**before["environment"], **given["environment"]}
    return {**before, **given}


def _values(case: Case, rows: Sequence[TuningRow], scale: Scale) -> dict[str, Any]:
    values = {**Tuning().model_dump(mode="json"), **UNCHOSEN}
    for choice in (case.tuning.get(scale, TuningChoice()), *(row.set for row in rows)):
        values = overlaid(values, choice)
    return values
