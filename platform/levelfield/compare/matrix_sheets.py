"""A matrix of results as tables of at most 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelfield.compare.compared_fields import NOTHING
from levelfield.compare.matrix import MatrixCell, ResultMatrix
from levelfield.compare.quantities import RATE
from levelfield.report.sheets import Sheet

SCHEMA = "levelfield.matrix/1"
_COLUMNS = 3  # of one table; more columns make further tables


def sheets(found: ResultMatrix) -> Iterator[Sheet]:
    """Yield tokens/s per device by row and column, the ratios between columns, and a note on each cell."""
    for begin in range(0, max(1, len(found.columns)), _COLUMNS):
        columns = found.columns[begin : begin + _COLUMNS]
        rows = tuple((row.label, *(_shown(found.cells[row, column]) for column in columns)) for row in found.rows)
        yield Sheet(f"tokens/s/device, case x {found.dimension}", ("case", *columns), rows)
    if found.ratios:
        yield _ratios(found)
    yield Sheet("cells", notes=tuple(_notes(found)))


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
        "ratios": [
            {"column": each.column, "against": each.base, "geometric_mean": each.value, "rows": each.rows}
            for each in found.ratios
        ],
    }


def _shown(cell: MatrixCell) -> str:
    if cell.value is None:
        return cell.state
    return RATE.column.shown(cell.value) + (" *" if cell.detail else "")


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
    note = "over the rows in which both columns have a comparable result; a failed run is in no mean"
    return Sheet("ratio of tokens/s/device between columns", header, rows, (note,))


def _notes(found: ResultMatrix) -> Iterator[str]:
    """Yield the origin of each measured cell, and the reason of each empty one."""
    for row in found.rows:
        yield from (f"{row.label}, {column}: {_note(found.cells[row, column])}" for column in found.columns)
    if not found.rows:
        yield "no run was found"


def _note(cell: MatrixCell) -> str:
    said = [cell.state if cell.value is None else "", _origin(cell), cell.detail]
    return "; ".join(part for part in said if part)


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
