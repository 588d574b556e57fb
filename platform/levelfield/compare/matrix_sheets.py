"""A matrix of results as tables of at most 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelfield.compare.compared_fields import NOTHING
from levelfield.compare.matrix import MatrixCell, MatrixRow, ResultMatrix
from levelfield.compare.quantities import RATE
from levelfield.report.sheets import Sheet

SCHEMA = "levelfield.matrix/1"
_COLUMNS = 3  # of one table; more columns make further tables


def sheets(found: ResultMatrix) -> Iterator[Sheet]:
    """Yield tokens/s per device by row and column, the ratios between columns, and what each filled cell is."""
    for begin in range(0, max(1, len(found.columns)), _COLUMNS):
        columns = found.columns[begin : begin + _COLUMNS]
        rows = [(row.label, *(_shown(found, row, column) for column in columns)) for row in found.rows]
        rows += [(case, *["not run"] * len(columns)) for case in found.not_run]
        yield Sheet(f"tokens/s/device, case x {found.dimension}", ("case", *columns), tuple(rows))
    if found.ratios:
        yield _ratios(found)
    if cells := tuple(_details(found)):
        yield Sheet("cells", ("case", found.dimension, "what it is"), cells)
    else:
        yield Sheet("no run was found")


def as_values(found: ResultMatrix) -> dict[str, Any]:
    """Return the matrix as a JSON object, in full precision."""
    return {
        "schema": SCHEMA,
        "dimension": found.dimension,
        "columns": list(found.columns),
        "rows": [
            {
                "case": row.case,
                "scale": row.scale,
                "precision": row.precision,
                "other": row.other,
                "nodes": row.nodes,
                "devices": row.devices,
                "cells": {column: _cell_values(found.cells[row, column]) for column in found.columns},
            }
            for row in found.rows
        ],
        "not_run": list(found.not_run),
        "ratios": [
            {"column": each.column, "against": each.base, "geometric_mean": each.value, "rows": each.rows}
            for each in found.ratios
        ],
    }


def _shown(found: ResultMatrix, row: MatrixRow, column: str) -> str:
    """Return the cell: its speed and the ratio to the first column, or the word for none; a star for a newer run."""
    cell, base = found.cells[row, column], found.cells[row, found.columns[0]]
    if cell.value is None:
        return cell.state
    ratio = f" ({cell.value / base.value:.3f})" if base.value is not None and base is not cell else ""
    return RATE.column.shown(cell.value) + ratio + (" *" if cell.detail else "")


def _ratios(found: ResultMatrix) -> Sheet:
    header = ("column", "against", "geometric mean", "rows with both")
    rows = tuple(
        (
            each.column,
            each.base,
            NOTHING if each.value is None else f"{each.value:.3f}",
            f"{each.rows} of {len(found.rows)}",
        )
        for each in found.ratios
    )
    notes = (
        "over the rows in which both columns have a comparable result; a failed run is in no mean",
        f"in brackets above: the ratio to {found.columns[0]}; a star: a newer run does not count",
    )
    return Sheet("ratio of tokens/s/device between columns", header, rows, notes)


def _details(found: ResultMatrix) -> Iterator[tuple[str, str, str]]:
    """Yield the origin of each measured cell, and the reason of each other one that has a run."""
    for row in found.rows:
        named = [(column, found.cells[row, column]) for column in found.columns]
        filled = [(column, _note(cell)) for column, cell in named if cell.state != "not run"]
        yield from (("" if i else row.label, column, note) for i, (column, note) in enumerate(filled))


def _note(cell: MatrixCell) -> str:
    return "; ".join(part for part in (_origin(cell), cell.detail) if part)


def _origin(cell: MatrixCell) -> str:
    if cell.side is None or cell.rate is None:
        return ""
    first = cell.side.first
    build = f"{first.series.framework} {first.subject.framework_version}"
    interval = RATE.column.ends(cell.rate.interval) if cell.rate.interval else ""
    runs = f"{len(cell.rate.values)} run(s)" + (f" {interval}" if interval else "")
    return f"{first.series.layout} mb{first.series.micro_batch}, {build}, {first.began[:10]}, {runs}"


def _cell_values(cell: MatrixCell) -> dict[str, Any]:
    side, rate = cell.side, cell.rate
    return {
        "state": cell.state,
        "detail": cell.detail or None,
        "tokens_per_second_per_device": cell.value,
        "runs": [record.run_id for record in side.counted] if side else [],
        "series": side.first.series.label if side else None,
        "interval": [rate.interval.low, rate.interval.high] if rate and rate.interval else None,
    }
