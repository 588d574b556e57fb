"""The changes of a vendor's tuning to a case: by row, and all rows for one target together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, LayoutError, UnknownName, UsageError
from levelfield.specs.case import Case, Scale
from levelfield.specs.derivation import split_name
from levelfield.specs.layout import parse_layout
from levelfield.specs.tuning import Tuning, TuningChoice, TuningFile, TuningRow

# The values without a choice; the other fields have the schema's defaults.
UNCHOSEN_VALUES: dict[str, Any] = {"layout": "chosen for the devices", "threads": "the rank's share of its cores"}


@dataclass(frozen=True)
class RunTarget:
    """What a run is on: chip, framework, devices of a node, and nodes. None: any."""

    chip: str | None = None
    framework: str | None = None
    devices: int | None = None
    nodes: int | None = 1

    def may_apply(self, row: TuningRow) -> bool:
        """Return whether the row may apply to the run: no known value contradicts it."""
        return all(getattr(self, name) in (None, value) for name, value in row.criteria.items())

    def applies(self, row: TuningRow, scale: Scale) -> bool:
        """Return whether the row applies to the run with the known values."""
        return row.applies(scale, self.chip, self.framework, self.devices, self.nodes)


@dataclass(frozen=True)
class FieldChange:
    """A free field whose value a row changes."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RowChanges:
    """One row of a vendor's tuning, and the fields that it changes."""

    number: int  # of the row in the file, from 0
    row: TuningRow
    changes: tuple[FieldChange, ...]


def tuning_rows(registry: Registry, vendor: str, case: str) -> tuple[TuningRow, ...]:
    """Return the rows of the vendor's tuning for this case; none when it has no such file.

    A derived case keeps them while its steps have the same tokens. Raises DocumentError for a row that can never apply,
    or with an unreadable layout.
    """
    case, derivation = split_name(case)
    if not derivation.keeps_the_batch:
        return ()
    path = registry.vendors[vendor].parent / "tuning" / f"{case}.yaml"
    if not path.is_file():
        return ()
    file = registry.document_cache.document(TuningFile, path)
    if file.case != case:
        raise UsageError(f"{path}: key 'case': found '{file.case}', expected '{case}' as in the file name")
    chips = [chip.name for chip in registry.vendor_file(vendor).chips]
    for number, row in enumerate(file.rows):
        where = f"{path}: key 'rows.{number}"
        if row.chip is not None and row.chip not in chips:
            raise DocumentError(f"{where}.chip': {UnknownName(f'chip of {vendor}', row.chip, chips)}")
        if row.framework is not None and row.framework not in registry.frameworks:
            raise DocumentError(f"{where}.framework': {UnknownName('framework', row.framework, registry.frameworks)}")
        try:
            if row.set.layout is not None:
                parse_layout(row.set.layout)
        except LayoutError as error:
            raise DocumentError(f"{where}.set.layout': {error}") from None
    return file.rows


def row_changes(case: Case, rows: Sequence[TuningRow], scale: Scale, target: RunTarget) -> Iterator[RowChanges]:
    """Yield each row that may apply, with its changes to the case and to earlier rows that apply wherever it does."""
    for number, row in enumerate(rows):
        if row.scale != scale or not target.may_apply(row):
            continue
        row_target = RunTarget(row.chip, row.framework, row.devices, row.nodes)
        before, after = (tuned_values(case, rows[:end], scale, row_target) for end in (number, number + 1))
        fields = [name for name in after if after[name] != before[name]]
        yield RowChanges(number, row, tuple(FieldChange(name, before[name], after[name]) for name in fields))


def tuned_values(case: Case, rows: Sequence[TuningRow], scale: Scale, target: RunTarget) -> dict[str, Any]:
    """Return all free fields with the choices of case and vendor for one target."""
    values = {**Tuning().model_dump(mode="json"), **UNCHOSEN_VALUES}
    rows_here = (row.set for row in rows if target.applies(row, scale))
    for choice in (case.tuning.get(scale, TuningChoice()), *rows_here):
        changes = choice.model_dump(exclude_none=True)
        if "environment" in changes:  # its variables are added to the present ones
            changes["environment"] = {**values["environment"], **changes["environment"]}
        values |= changes
    return values
