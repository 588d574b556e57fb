"""Makes the matrices case x vendor and case x framework: the latest good result of each cell, and column ratios.

A row is one training on one kind of machine: everything is equal but the column and the free choices of a tuning. A
cell is the fastest series of its row and column, by the runs that stand for it. An empty cell says why it is empty. A
run that other programs disturbed is in a cell, and a row of such runs in a mean, only where there is no quiet one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from levelfield.compare.comparability import FIXED_READERS, NO_VALUE, caution_texts, chip_of, equal_and_unequal
from levelfield.compare.comparison import (
    Duels,
    Histories,
    SideFigure,
    ratio_json,
    side_figure,
    side_ratio,
    side_values,
)
from levelfield.compare.deciding import deciding_commands
from levelfield.compare.ratios import Ratio, SidePair, SideValues, geometric_mean, mean_ratio
from levelfield.compare.series_runs import choose_runs
from levelfield.compare.sides import (
    DIFFERING_VERDICTS,
    RATE,
    ComparedSide,
    disturbance,
    exclusion_reason,
    series_exclusion_reason,
    side_of,
    start_time,
    tuned_fields,
    tuning_of,
)
from levelfield.report.sheets import Sheet
from levelfield.specs.record import RunRecord, Series
from levelfield.specs.short_names import short_digest

Dimension = Literal["vendor", "framework"]

SCHEMA = "levelfield.matrix/1"
DERIVED_MARK = "+"  # in the name of a case: a named one with changes
_SCALES_BY_PREFERENCE = ("full", "smoke")
_COLUMNS_PER_TABLE = 3


class Training(NamedTuple):
    """What is equal in all runs of a training, in a row of a matrix and on the pages."""

    case: str
    scale: str
    precision: str
    nodes: int
    devices: int
    work: str
    corpus: str
    device_is: str

    @property
    def name_fields(self) -> tuple[str, str, str, int, int]:
        """The fields of its name, which trainings of different digests may share."""
        return self.case, self.scale, self.precision, self.nodes, self.devices

    @property
    def fields_without_devices(self) -> tuple[str, ...]:
        """What is equal in the same training on any number of nodes and devices."""
        return self.case, self.scale, self.precision, self.work, self.corpus, self.device_is

    @property
    def digests(self) -> str:
        """The beginnings of the digests of work and corpus: they tell trainings of the same name apart."""
        return f"{short_digest(self.work, 6)}/{short_digest(self.corpus, 6)}"


def training_of(series: Series) -> Training:
    return Training(*(getattr(series, name) for name in Training._fields))


@dataclass(frozen=True, order=True)
class MatrixRow:
    """What is equal along a row."""

    training: Training
    other: str  # the framework in a matrix by vendor, the chip in one by framework
    is_ambiguous: bool = False  # another row has the same name

    @property
    def label(self) -> str:
        name = f"{self.training.case} ({self.training.scale}) {self.other}"
        name += f" {self.training.nodes}x{self.training.devices // self.training.nodes}"
        return f"{name} {self.training.digests}" if self.is_ambiguous else name


@dataclass(frozen=True)
class MatrixCell:
    """One cell. Only a measured one has a side, a rate and values."""

    state: str  # `measured`, `not run`, `not comparable`, or the word of its newest run, such as `oom`
    detail: str = ""  # why it is empty, or what to know about it
    side: ComparedSide | None = None
    rate: SideFigure | None = None
    values: SideValues | None = None
    ratio: Ratio | None = None  # to the cell of the first column, where both are measured
    cautions: tuple[str, ...] = ()  # what `compare` would name in this side, with its value

    @property
    def value(self) -> float | None:
        """Return the median tokens/s per device of a cell that counts."""
        return self.rate.interval.median if self.state == "measured" and self.rate and self.rate.interval else None

    @property
    def is_disturbed(self) -> bool:
        """Whether its speed is of runs that other programs disturbed, as there is no quiet one."""
        return self.value is not None and self.side is not None and self.side.is_disturbed


@dataclass(frozen=True)
class ColumnRatio:
    """The geometric mean of column over base, over the trainings that both have, which are the rows of a matrix."""

    column: str
    base: str
    ratio: Ratio
    trainings: int  # how many are in the mean
    disturbed_left_out: int = 0  # trainings that are left out, as a side of them is disturbed
    is_disturbed: bool = False  # a side of every training is disturbed, so none is left out
    scale: str = ""  # of the trainings in the mean
    outside_mean: tuple[tuple[str, str], ...] = ()  # trainings of both that the mean leaves out, with the reason


@dataclass(frozen=True)
class TrainingPair:
    """Two sides of one training: of a column, and of the base."""

    training: str  # its label
    sides: tuple[ComparedSide, ComparedSide]
    values: SidePair  # of the two sides
    number: int = 0  # tells trainings of one label apart

    @property
    def scale(self) -> str:
        return self.sides[0].first.series.scale

    @property
    def is_disturbed(self) -> bool:
        return any(side.is_disturbed for side in self.sides)

    @property
    def reason(self) -> str:
        """Why the pair is in no mean with other trainings; empty for a named case that is aligned on both sides."""
        if DERIVED_MARK in self.sides[0].first.series.case:
            return "a derived case"
        verdicts = dict.fromkeys(run.verdict for side in self.sides for run in side.counted)
        return ", ".join(verdict for verdict in verdicts if verdict != "aligned")


@dataclass(frozen=True)
class ResultMatrix:
    """The newest results by case and column."""

    dimension: Dimension
    columns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    cells: dict[tuple[MatrixRow, str], MatrixCell]
    ratios: tuple[ColumnRatio, ...]  # of every column after the first against it
    not_run: tuple[str, ...] = ()  # cases without a run


def make_matrix(
    records: Iterable[RunRecord],
    dimension: Dimension,
    expected: Sequence[str] = (),
    cases: Sequence[str] = (),
    histories: Histories | None = None,
    duels: Duels = (),
) -> ResultMatrix:
    """Return the matrix over runs. expected: columns that are shown even without a run; cases: rows likewise.

    histories: stored runs of their series, which show the noise of a cell of few runs, as in `compare`.
    """
    runs_of_rows: dict[MatrixRow, dict[str, list[RunRecord]]] = {}
    for record in records:
        names = record.series.framework_label, chip_of(record.series)
        name, other = names if dimension == "framework" else names[::-1]
        # Base and peak have a column each, as in SPEC CPU; runs of an earlier version have another.
        column = " ".join(filter(None, (name, tuning_of(record))))
        runs_by_column = runs_of_rows.setdefault(MatrixRow(training_of(record.series), other), {})
        runs_by_column.setdefault(column, []).append(record)
    labels = Counter((row.label, row.training.precision) for row in runs_of_rows)
    runs_by_position = {
        (replace(row, is_ambiguous=labels[row.label, row.training.precision] > 1), column): runs
        for row, runs_by_column in runs_of_rows.items()
        for column, runs in runs_by_column.items()
    }
    rows = tuple(sorted({row for row, _ in runs_by_position}))
    cells_by_position = {
        position: column_cell(runs, histories or {}, duels) for position, runs in runs_by_position.items()
    }
    headings = {column for _, column in cells_by_position}
    headings |= {name for name in expected if not headings & {name, f"{name} base", f"{name} peak"}}
    counts = Counter(column for (_, column), cell in cells_by_position.items() if cell.value is not None)
    # every other column is compared with the first
    columns = most_results_first({name: counts[name] for name in headings})
    cells = {position: cell for row in rows for position, cell in _row_cells(row, columns, cells_by_position).items()}
    ratios = []
    for column in columns[1:]:  # over the rows in which both columns have a comparable figure
        pairs = []
        for number, row in enumerate(rows):
            cell, first = cells[row, column], cells[row, columns[0]]
            if cell.ratio and cell.ratio.value and cell.side and cell.values and first.side and first.values:
                pairs.append(TrainingPair(row.label, (cell.side, first.side), (cell.values, first.values), number))
        ratios.append(column_ratio(column, columns[0], pairs))
    cases_not_run = tuple(case for case in cases if case not in {row.training.case for row in rows})
    return ResultMatrix(dimension, columns, rows, cells, tuple(ratios), cases_not_run)


def most_results_first(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of columns with their numbers of results in order; equal ones by name."""
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def column_cell(runs: Sequence[RunRecord], histories: Histories, duels: Duels = ()) -> MatrixCell:
    """Return the cell of a row and column: its fastest series, by the runs that stand for it.

    runs: of one training, chip, framework and tuning. Where none counts, the cell says why the newest does not.
    """
    ordered = sorted(runs, key=lambda run: (str(start_time(run) or ""), run.run_id))
    newest, runs_by_series = ordered[-1], dict[str, list[RunRecord]]()
    for run in ordered:
        runs_by_series.setdefault(run.series.fingerprint(), []).append(run)
    measured, cell_without_speed = [], None
    for members in runs_by_series.values():
        if chosen := choose_runs(members):
            side = side_of("cell", [run for run in chosen.runs if exclusion_reason(run) is None])
            rate, values = side_figure(RATE, side.counted), side_values(RATE, side, histories, duels)
            if rate.interval is None:
                cell_without_speed = MatrixCell("no speed", str(rate.reason), side)
            else:
                speed = geometric_mean(values) or 0.0
                measured.append(
                    ((not side.is_disturbed, speed), chosen, MatrixCell("measured", "", side, rate, values))
                )
    if not measured:
        state = newest.verdict if newest.verdict in DIFFERING_VERDICTS else "contradictory"
        state = newest.evidence if newest.evidence != "sealed" else newest.word if newest.word != "valid" else state
        return cell_without_speed or MatrixCell(state, f"{newest.run_id}: {series_exclusion_reason(newest)}")
    _, chosen, cell = max(measured, key=itemgetter(0))
    note = (
        ""
        if (reason := series_exclusion_reason(newest)) is None
        else f"a newer run does not count: {newest.run_id}: {reason}"
    )
    if not note and (failed := [run for run in chosen.runs if exclusion_reason(run) is not None]):
        last_failed = f"{failed[-1].run_id}: {exclusion_reason(failed[-1])}"
        note = f"{len(failed)} of {len(chosen.runs)} repeats do not count: {last_failed}"
    disturbed = []
    if cell.side and not cell.side.is_disturbed:  # quiet runs stand for the column, so disturbed ones are left out
        ids = {run.run_id for run in chosen.runs}
        eligible = [run for run in ordered if series_exclusion_reason(run) is None and disturbance(run)]
        disturbed = [run for run in eligible if run.run_id in ids or ordered.index(run) > ordered.index(cell.side.last)]
    left_out = f"{len(disturbed)} left out, as quiet ones are there: " if disturbed else ""
    left_out += "".join(f"{run.run_id}: {disturbance(run)}" for run in disturbed[-1:])
    return replace(cell, detail="; ".join(filter(None, (note, left_out))))


def _row_cells(
    row: MatrixRow, columns: Sequence[str], cells_by_position: dict[tuple[MatrixRow, str], MatrixCell]
) -> dict[tuple[MatrixRow, str], MatrixCell]:
    """Return the cells of a row. One that differs from the first measured cell in what must be equal has no ratio."""
    cells = {column: cells_by_position.get((row, column), MatrixCell("not run")) for column in columns}
    base = next((cell for cell in cells.values() if cell.state == "measured"), None)
    for column, cell in cells.items():
        if base is None or base.side is None or cell.side is None or cell.state != "measured" or cell is base:
            continue
        if differing := unequal_fields_text(base.side, cell.side):
            cells[column] = replace(cell, state="not comparable", detail=differing)
    # each measured cell gets its ratio to the first one, and its cautions
    first = cells[columns[0]]
    for column, cell in cells.items():
        if not cell.value or cell.side is None or cell.values is None:
            continue
        if cell is first or first.side is None or not first.value or first.values is None:
            cells[column] = replace(cell, cautions=tuple(caution_texts([cell.side])))
        else:
            to_first = side_ratio(RATE, cell.values, first.values)
            cells[column] = replace(cell, ratio=to_first, cautions=tuple(caution_texts([first.side, cell.side])))
    return {(row, column): cell for column, cell in cells.items()}


def unequal_fields_text(base: ComparedSide, side: ComparedSide) -> str:
    """Return the fields that must be equal and are not, with both values; empty where both sides may be compared."""
    unequal = equal_and_unequal([base, side], FIXED_READERS)[1]
    return "; ".join(f"{field.name} {field.cells[1]} against {field.cells[0]}" for field in unequal)


def column_ratio(column: str, base: str, pairs: Sequence[TrainingPair]) -> ColumnRatio:
    """Return the geometric mean over the pairs of one scale, of named trainings that are aligned on both sides.

    Full scale comes first, unless only smoke scale has an interval. Other trainings are in it where there are no such
    ones, and those with a disturbed side where all have one.
    """
    tiers = [[pair for pair in pairs if pair.scale == scale and not pair.reason] for scale in _SCALES_BY_PREFERENCE]
    tiers = [tier for tier in tiers if tier] or [
        [pair for pair in pairs if pair.scale == scale] for scale in _SCALES_BY_PREFERENCE
    ]
    means = [(tier, *_quiet_mean(tier)) for tier in tiers if tier] or [([], [], mean_ratio([]))]
    tier_pairs, mean_pairs, ratio = next((mean for mean in means if mean[2].low is not None), means[0])
    used_trainings, all_trainings = (
        len({(pair.training, pair.number) for pair in entries}) for entries in (mean_pairs, tier_pairs)
    )
    outside = dict.fromkeys((p.training, p.reason or f"{p.scale} scale") for p in pairs if p not in tier_pairs)
    return ColumnRatio(
        column,
        base,
        ratio,
        used_trainings,
        all_trainings - used_trainings,
        is_disturbed=bool(mean_pairs) and all(pair.is_disturbed for pair in mean_pairs),
        scale=mean_pairs[0].scale if mean_pairs else "",
        outside_mean=tuple(outside),
    )


def _quiet_mean(pairs: Sequence[TrainingPair]) -> tuple[Sequence[TrainingPair], Ratio]:
    mean_pairs = [pair for pair in pairs if not pair.is_disturbed] or pairs
    return mean_pairs, mean_ratio([pair.values for pair in mean_pairs])


def matrix_sheets(results: ResultMatrix) -> Iterator[Sheet]:
    """Yield tokens/s per device by row and column, the ratios between columns, and what each filled cell is."""
    for begin in range(0, max(1, len(results.columns)), _COLUMNS_PER_TABLE):
        columns = results.columns[begin : begin + _COLUMNS_PER_TABLE]
        rows = []
        for row in results.rows:
            texts = []
            for cell in (results.cells[row, column] for column in columns):
                if cell.value is None:
                    texts.append(cell.state)
                    continue
                # the speed and its ratio to the first column; a star: a run is left out; an exclamation mark: caution
                ratio = f" ({cell.ratio.label})" if cell.ratio else ""
                marks = "".join(mark for mark, text in (("*", cell.detail), ("!", cell.cautions)) if text)
                disturbed = "disturbed" if cell.is_disturbed else ""
                texts.append(" ".join(filter(None, (RATE.column.text(cell.value) + ratio, marks, disturbed))))
            rows.append((row.label, *texts))
        rows += [(case, *["not run"] * len(columns)) for case in results.not_run]
        yield Sheet(f"tokens/s/device, case x {results.dimension}", ("case", *columns), tuple(rows))
    if results.ratios:
        yield _ratio_sheet(results)
    if cells := tuple(_cell_details(results)):
        yield Sheet(
            "cells", ("case", results.dimension, "what it is"), cells, commands=tuple(_deciding_commands(results))
        )
    else:
        yield Sheet("no run was found")


def matrix_json(results: ResultMatrix) -> dict[str, Any]:
    """Return the matrix as a JSON object, in full precision."""
    return {
        "schema": SCHEMA,
        "dimension": results.dimension,
        "columns": list(results.columns),
        "rows": [
            {
                **row.training._asdict(),
                "other": row.other,
                "cells": {column: _cell_json(results, row, column) for column in results.columns},
            }
            for row in results.rows
        ],
        "not_run": list(results.not_run),
        "ratios": [
            {
                **{
                    "column": pair.column,
                    "against": pair.base,
                    "geometric_mean": pair.ratio.value,
                    "rows": pair.trainings,
                },
                **{"disturbed_left_out": pair.disturbed_left_out, "disturbed": pair.is_disturbed},
                "scale": pair.scale,
                "apart": [{"row": row, "reason": reason} for row, reason in pair.outside_mean],
            }
            | {name: getattr(pair.ratio, name) for name in ("low", "high", "standing", "reason", "pairs")}
            for pair in results.ratios
        ],
    }


def _ratio_sheet(results: ResultMatrix) -> Sheet:
    header = ("column", "against", "geometric mean", "95 % interval", "rows with both")
    rows = tuple(
        (
            pair.column,
            pair.base,
            pair.ratio.label if pair.trainings else NO_VALUE,
            pair.ratio.ends,
            f"{pair.trainings} of {len(results.rows)}",
        )
        for pair in results.ratios
    )
    all_ratios = [pair.ratio for pair in results.ratios]
    all_ratios += [cell.ratio for cell in results.cells.values() if cell.ratio]
    disturbed = [
        f"{pair.column}: "
        + (
            "disturbed: other programs used the machine during runs of every row of the mean"
            if pair.is_disturbed
            else f"{pair.disturbed_left_out} row(s) of disturbed runs are in no mean, as quiet ones are there"
        )
        for pair in results.ratios
        if pair.is_disturbed or pair.disturbed_left_out
    ]
    notes = (
        "over the rows in which both columns have a comparable result; a failed run is in no mean",
        "the interval is of the noise of the runs; ~: a difference that is within noise",
        *dict.fromkeys(f"inconclusive: {r.reason}" for r in all_ratios if r.standing == "inconclusive"),
        *dict.fromkeys(disturbed),
        *dict.fromkeys(
            f"{pair.column}: not in its mean: {row}: {reason}"
            for pair in results.ratios
            for row, reason in pair.outside_mean
        ),
        f"in brackets above: the ratio to {results.columns[0]}; a star: runs are left out; !: asks for caution",
    )
    return Sheet("ratio of tokens/s/device between columns", header, rows, notes)


def _cell_details(results: ResultMatrix) -> Iterator[tuple[str, str, str]]:
    """Yield the origin of each measured cell, and of every other cell with a run why it has no figure.

    Each text also names what asks for caution.
    """
    for row in results.rows:
        cells = {column: results.cells[row, column] for column in results.columns}
        run_cells = [(column, cell) for column, cell in cells.items() if cell.state != "not run"]
        for number, (column, cell) in enumerate(run_cells):
            parts = [cell.detail]
            if cell.side and cell.rate:
                run = cell.side.first
                ends = RATE.column.interval_text(cell.rate.interval) if cell.rate.interval else ""
                runs = f"{len(cell.rate.values)} run(s)" + (f" {ends}" if len(cell.rate.values) > 1 else "")
                tuned_text = f", chosen: {fields}" if (fields := tuned_fields(run)) else ""
                build = f"{run.series.framework} {run.subject.framework_version}, {run.began[:10]}"
                parts.insert(0, f"{run.series.layout} mb{run.series.micro_batch}, {build}, {runs}{tuned_text}")
            if cell.cautions:
                parts.append(f"caution: {', '.join(cell.cautions)}")
            if cell.ratio and cell.ratio.pairs:
                parts.append(f"ratio {cell.ratio.reason}")
            yield "" if number else row.label, column, "; ".join(filter(None, parts))


def _deciding_commands(results: ResultMatrix) -> Iterator[tuple[str, str]]:
    """Yield the commands that decide the inconclusive ratios, behind what each decides and where it has to run."""
    first_column, *others = results.columns or ("",)
    for row, column in product(results.rows, others):
        cell, first = results.cells[row, column], results.cells[row, first_column]
        if cell.ratio and cell.ratio.standing == "inconclusive" and cell.side and first.side:
            sides = replace(cell.side, name=column), replace(first.side, name=first_column)
            for command in deciding_commands(*sides):
                yield f"to decide {row.label}, {column}/{first_column}, on {command.machine}", command.text


def _cell_json(results: ResultMatrix, row: MatrixRow, column: str) -> dict[str, Any]:
    cell, first = results.cells[row, column], results.cells[row, results.columns[0]].side
    side, rate = cell.side, cell.rate
    return {
        "state": cell.state,
        "detail": cell.detail or None,
        "disturbed": cell.is_disturbed,
        "tokens_per_second_per_device": cell.value,
        "runs": [record.run_id for record in side.counted] if side else [],
        "series": side.first.series.label if side else None,
        "interval": [rate.interval.low, rate.interval.high] if rate and rate.interval else None,
        "ratio": ratio_json(cell.ratio, side, first) if cell.ratio and side and first else None,
        "cautions": list(cell.cautions),
    }
