"""The figures of repeated runs: the median over the repeats with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levelfield.measure.other_use import displayed_status
from levelfield.measure.series import Interval, median_interval
from levelfield.report.escapes import Markdown, escape_markdown, markdown_table
from levelfield.report.sheets import pad_row
from levelfield.report.words import format_number
from levelfield.specs.base import json_digest
from levelfield.specs.result import Result
from levelfield.specs.run_figures import MFU_NAME, MFU_TITLE, RUN_FIGURES, RunFigure, value_at
from levelfield.specs.variables import influential_variables
from levelfield.specs.vendor import HOST_SHARE

REPEATS_SCHEMA = "levelfield.repeats/1"  # of the summary of a group in JSON
# What differs in the results of two repeats. Their plans have what a result lacks, such as threads and variables.
_FIELDS_OF_ONE_RUN = {
    "run_id", "repeat", "status", "steps_done", "loss", "throughput", "utilisation", "memory", "energy", "identity",
    "alignment", "to_loss", "warnings", "other_use", "load", "disturbance", "inherited", "seal", "pace", "experts",
    "preflight", "machines",
}  # fmt: skip


@dataclass(frozen=True)
class FigureColumn:
    """One figure of a result: its name and unit in JSON; its heading, divisor and decimals in a table."""

    name: str
    unit: str
    read: Callable[[Result], float | None]
    heading: str
    divisor: float = 1
    digits: int | None = 1  # None: a figure of any size, shown with four significant digits
    largest_possible: float | None = None
    # What the figure refers to. Repeats in which this differs have no such figure.
    basis: Callable[[Result], object] = lambda result: None

    def text(self, value: float | None) -> str:
        """Return the value as a table shows it."""
        return format_number(value, self.digits, self.divisor)

    def interval_text(self, interval: Interval) -> str:
        """Return both ends of an interval as a table shows them, or that there are not enough runs for one."""
        if interval.low is None or interval.high is None:
            return "not enough runs"
        return f"[{self.text(interval.low)}, {self.text(interval.high)}]"


@dataclass(frozen=True)
class RepeatedFigure:
    """One figure over the repeats, in the column's unit."""

    column: FigureColumn
    interval: Interval


@dataclass(frozen=True)
class RepeatGroup:
    """At least two runs of one plan. Only valid runs have figures, disturbed ones where none is quiet; a figure needs
    two runs."""

    results: tuple[Result, ...]
    valid_count: int
    disturbed_count: int  # of the valid ones
    figures: tuple[RepeatedFigure, ...]

    @property
    def title(self) -> str:
        """The runs that are summarised, in one line."""
        first = self.results[0]
        name = f"{first.entry.name}: " if first.entry else ""
        return (
            f"{name}{first.case} ({first.scale}) {first.framework} {first.nodes}x{first.devices // first.nodes} "
            f"{first.chip} {first.layout}, {len(self.results)} repeats, {self.valid_count} valid"
            + f", {self.disturbed_count} of them disturbed"
            * bool(self.disturbed_count)
        )


def _figure_column(figure: RunFigure) -> FigureColumn:
    return FigureColumn(
        figure.name,
        figure.unit,
        lambda result: figure.value_and_reason(result, result.device_is == HOST_SHARE)[0],
        figure.heading,
        figure.divisor,
        figure.digits,
        figure.largest,
        lambda result: value_at(result, *figure.repeats_basis) if figure.repeats_basis else None,
    )


ALL_COLUMNS = tuple(map(_figure_column, RUN_FIGURES))
FIGURE_COLUMNS = {column.name: column for column in ALL_COLUMNS}
FigureColumns = Sequence[FigureColumn]
PlanDigests = Sequence[str | None]  # of each result: what the plans of its repeats have in common


def group_repeats(
    results: Sequence[Result], plans: PlanDigests, columns: FigureColumns = ALL_COLUMNS
) -> list[RepeatGroup]:
    """Return the groups of at least two runs of one plan, in the order of their first run.

    plans: of each result the digest that the plans of repeats share; None where no plan is at hand, and such a run is
    no repeat.
    """
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result, plan in zip(results, plans, strict=True):
        if plan is not None:
            variables = json_digest(influential_variables(result.inherited))
            key = plan, variables, result.model_dump_json(exclude=_FIELDS_OF_ONE_RUN)
            groups.setdefault(key, []).append(result)
    repeats = []
    for group in groups.values():
        valid = [result for result in group if result.status.word == "valid"]
        quiet = [result for result in valid if displayed_status(result) == "valid"]
        counted_results, figures = quiet or valid, []
        for column in columns:
            values = [value for value in map(column.read, counted_results) if value is not None]
            if len(values) > 1 and len({column.basis(result) for result in counted_results}) == 1:
                figures.append(RepeatedFigure(column, median_interval(values, column.largest_possible)))
        if len(group) > 1:
            repeats.append(RepeatGroup(tuple(group), len(valid), len(valid) - len(quiet), tuple(figures)))
    return repeats


def repeat_lines(
    results: Sequence[Result], plans: PlanDigests, columns: FigureColumns = ALL_COLUMNS, is_markdown: bool = False
) -> list[str]:
    """Return lines of a terminal, one a figure, or a table of Markdown for each group; none without repeats."""
    lines = []
    for group in group_repeats(results, plans, columns):
        columns_and_intervals = [(figure.column, figure.interval) for figure in group.figures]
        rows = [
            (column.heading, column.text(interval.median), column.interval_text(interval))
            for column, interval in columns_and_intervals
        ]
        methods = {(i.method, i.coverage, i.n) for _, i in columns_and_intervals if i.coverage is not None}
        notes = [f"interval of {n} values: {coverage:.0%}, {method}" for method, coverage, n in sorted(methods)]
        basis = FIGURE_COLUMNS[MFU_NAME].basis
        measured_peaks = {basis(result) for result in group.results if result.status.word == "valid"}
        quiet = group.valid_count - group.disturbed_count
        if not group.figures:
            counted_text = f"{quiet} quiet" if quiet and group.disturbed_count else f"{group.valid_count} valid"
            notes = [f"no figure over repeats: {counted_text} run(s), expected at least 2"]
        elif len(measured_peaks) > 1:
            notes.insert(
                0, f"{MFU_TITLE}: no median, as the runs refer to {len(measured_peaks)} different measured peaks"
            )
        if quiet and group.disturbed_count:
            notes.append(f"not counted: {group.disturbed_count} disturbed run(s), as other programs used the machine")
        if is_markdown:
            lines += ["", f"Over repeats: {escape_markdown(group.title)}", ""]
            lines += markdown_table(("figure", "median", "interval"), (map(Markdown, row) for row in rows))
            lines += ["", *map(escape_markdown, notes)]
        else:
            lines += ["", f"over repeats: {group.title}"]
            lines += [pad_row((f"  {name}", median, f" {ends}"), (19, -12), " ") for name, median, ends in rows]
            lines += [f"  {note}" for note in notes]
    return lines
