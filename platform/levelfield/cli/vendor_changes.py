"""`show --diff`: prints what a vendor's tuning changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from levelfield.catalog.tuning_changes import RowChanges, RunPlace, row_changes
from levelfield.report.words import wrapped
from levelfield.specs.case import Case, Scale
from levelfield.specs.tuning import TuningRow


def print_changes(
    case: Case, vendor: str, rows: Sequence[TuningRow], scales: Sequence[Scale], place: RunPlace, as_json: bool
) -> int:
    """Print every row that may apply, with its changes and its reason. Return 0."""
    found = {scale: list(row_changes(case, rows, scale, place)) for scale in scales}
    if as_json:
        content = {scale: [_as_json(row) for row in changed] for scale, changed in found.items()}
        print(json.dumps({"case": case.name, "vendor": vendor, **content}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(wrapped(line, 8) for line in _lines(case, vendor, found)))
    return 0


def _as_json(found: RowChanges) -> dict[str, Any]:
    changes = [{"field": c.field, "from": c.before, "to": c.after} for c in found.changes]
    return {"row": found.number, **found.row.conditions, "changes": changes, "why": found.row.why}


def _lines(case: Case, vendor: str, found: dict[Scale, list[RowChanges]]) -> Iterator[str]:
    for scale, rows in found.items():
        changes = "changes free fields only" if rows else "changes nothing"
        yield f"{case.name} at {scale} scale: {vendor} {changes}"
        for row in rows:
            where = ", ".join(f"{name} {value}" for name, value in row.row.conditions.items()) or "anywhere"
            yield f"  row {row.number}: {where}"
            yield from (f"    {c.field:<17}{_said(c.before)} -> {_said(c.after)}" for c in row.changes)
            if not row.changes:
                yield "    no change: the case has these values"
            yield f"    why: {row.row.why}"


def _said(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items()) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
