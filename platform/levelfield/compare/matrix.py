"""Matrices case x vendor and case x framework: the latest good result of each cell, and ratios between columns.

A row is one training on one kind of machine, with everything equal but the column and the free choices of a tuning. A
cell is the newest valid and sealed run of its row and column, with its repeats. An empty cell says why it is empty.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from levelfield.compare.cautions import began
from levelfield.compare.comparability import checked, device_meaning, window_tokens
from levelfield.compare.compared_fields import Reader, chip_of
from levelfield.compare.comparison import SideFigure, side_figure
from levelfield.compare.evidence import DIFFERS, ComparedSide, exclusion, side_of
from levelfield.compare.quantities import RATE
from levelfield.compare.repeat_groups import newest_group
from levelfield.specs.record import RunRecord

Dimension = Literal["vendor", "framework"]


@dataclass(frozen=True, order=True)
class MatrixRow:
    """What is equal along a row. other: the framework of a matrix by vendor, the chip of one by framework."""

    case: str
    scale: str
    precision: str
    other: str
    nodes: int
    devices: int

    @property
    def label(self) -> str:
        return f"{self.case} ({self.scale}) {self.other} {self.nodes}x{self.devices // self.nodes}"


@dataclass(frozen=True)
class MatrixCell:
    """One cell. state: `measured`, `not run`, `not comparable`, or the word of its newest run, such as `oom`.

    detail: why it is empty, or what to know about it; side and rate: of a measured cell.
    """

    state: str
    detail: str = ""
    side: ComparedSide | None = None
    rate: SideFigure | None = None

    @property
    def value(self) -> float | None:
        """Return the median tokens/s per device of a cell that counts."""
        return self.rate.interval.median if self.state == "measured" and self.rate and self.rate.interval else None


@dataclass(frozen=True)
class ColumnRatio:
    """The geometric mean of column over base, over the `rows` that have both. None: they share no row."""

    column: str
    base: str
    value: float | None
    rows: int


@dataclass(frozen=True)
class ResultMatrix:
    """cells: by row and column. ratios: of every column after the first against it. not_run: cases without a run."""

    dimension: Dimension
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    cells: dict[tuple[MatrixRow, str], MatrixCell]
    ratios: tuple[ColumnRatio, ...]
    not_run: tuple[str, ...] = ()


def matrix(
    records: Iterable[RunRecord], dimension: Dimension, expected: Sequence[str] = (), cases: Sequence[str] = ()
) -> ResultMatrix:
    """Return the matrix over runs. expected: columns that are shown even without a run; cases: rows likewise."""
    found: dict[tuple[MatrixRow, str], list[RunRecord]] = {}
    for record in records:
        found.setdefault((_row_of(record, dimension), _column_of(record, dimension)), []).append(record)
    rows = tuple(sorted({row for row, _ in found}))
    latest = {place: _cell(runs) for place, runs in found.items()}
    columns = _columns(latest, expected)
    cells = {place: cell for row in rows for place, cell in _row_cells(row, columns, latest).items()}
    ratios = tuple(_ratio(rows, columns, cells, column) for column in columns[1:])
    absent = tuple(case for case in cases if case not in {row.case for row in rows})
    return ResultMatrix(dimension, columns, rows, cells, ratios, absent)


def _row_of(record: RunRecord, dimension: Dimension) -> MatrixRow:
    series = record.series
    other = series.framework_label if dimension == "vendor" else chip_of(series)
    return MatrixRow(series.case, series.scale, series.precision, other, series.nodes, series.devices)


def _column_of(record: RunRecord, dimension: Dimension) -> str:
    return record.series.framework_label if dimension == "framework" else chip_of(record.series)


def _columns(cells: dict[tuple[MatrixRow, str], MatrixCell], expected: Sequence[str]) -> tuple[str, ...]:
    """Return the columns, the one with most results first; every other is compared with it."""
    names = {column for _, column in cells} | set(expected)
    counts = {name: sum(cell.value is not None for (_, c), cell in cells.items() if c == name) for name in names}
    return tuple(sorted(names, key=lambda name: (-counts[name], name)))


def _cell(runs: Sequence[RunRecord]) -> MatrixCell:
    """Return the newest good runs of a cell; without any, why the newest run does not count."""
    ordered = sorted(runs, key=lambda run: (str(began(run) or ""), run.run_id))
    good = [run for run in ordered if _reason(run) is None]
    last = ordered[-1]
    if not good:
        return MatrixCell(_word(last), f"{last.run_id}: {_reason(last)}")
    side = side_of("cell", newest_group(good))
    rate = side_figure(RATE, side.counted)
    if rate.interval is None:
        return MatrixCell("no speed", str(rate.reason), side)
    newer = "" if good[-1] is last else f"a newer run does not count: {last.run_id}: {_reason(last)}"
    return MatrixCell("measured", newer, side, rate)


def _word(run: RunRecord) -> str:
    """Return one word for a run that does not count."""
    if run.evidence != "sealed":
        return run.evidence
    return run.word if run.word != "valid" else run.verdict if run.verdict in DIFFERS else "contradictory"


def _reason(run: RunRecord) -> str | None:
    return exclusion(run) or (f"the training is {run.verdict}" if run.verdict in DIFFERS else None)


_EQUAL: dict[str, Reader] = {
    "work": lambda r: r.series.work,
    "corpus": lambda r: r.series.corpus,
    "window": lambda r: f"steps {r.window[0]} to {r.window[1]}",
    "tokens of the window": window_tokens,
    "device": device_meaning,
}


def _row_cells(
    row: MatrixRow, columns: Sequence[str], latest: dict[tuple[MatrixRow, str], MatrixCell]
) -> dict[tuple[MatrixRow, str], MatrixCell]:
    """Return the cells of a row. One that differs from the first measured cell in what must be equal has no ratio."""
    cells = {column: latest.get((row, column), MatrixCell("not run")) for column in columns}
    base = next((cell.side for cell in cells.values() if cell.state == "measured"), None)
    return {(row, column): _against(base, cell) for column, cell in cells.items()}


def _against(base: ComparedSide | None, cell: MatrixCell) -> MatrixCell:
    if base is None or cell.side is None or cell.state != "measured" or cell.side is base:
        return cell
    unequal = checked([base, cell.side], _EQUAL)[1]
    if not unequal:
        return cell
    said = "; ".join(f"{field.name} {field.cells[1]} against {field.cells[0]}" for field in unequal)
    return MatrixCell("not comparable", said, cell.side, cell.rate)


def _ratio(
    rows: Sequence[MatrixRow], columns: Sequence[str], cells: dict[tuple[MatrixRow, str], MatrixCell], column: str
) -> ColumnRatio:
    """Return the geometric mean over the rows in which both columns have a comparable figure."""
    base = columns[0]
    pairs = [(cells[row, column].value, cells[row, base].value) for row in rows]
    logs = [math.log(own / other) for own, other in pairs if own is not None and other is not None]
    return ColumnRatio(column, base, math.exp(statistics.fmean(logs)) if logs else None, len(logs))
