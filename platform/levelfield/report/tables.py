"""Tables of many results, in four formats; and of suites, with the plans of a dry run or with the results."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from levelfield.errors import UnknownName
from levelfield.report import repeats
from levelfield.report.escapes import markdown, one_line, spreadsheet_cell, table
from levelfield.report.repeats import FigureColumn, PlanDigests
from levelfield.report.result_words import COLUMNS, chosen_fields, status, tuning_lines, worst_memory
from levelfield.report.sheets import aligned, widths_of
from levelfield.report.words import GIB, NONE, WIDTH, number, wrapped
from levelfield.specs.plan import Plan
from levelfield.specs.readable_json import json_text
from levelfield.specs.result import Result
from levelfield.specs.run_figures import RUN_FIGURES
from levelfield.specs.short_names import short_digest
from levelfield.specs.suite import EntryUsed
from levelfield.specs.vendor import HOST_SHARE

_NARROW = ("case", "scale", "framework", "layout", "tuning", "status", "tokens/s/device", "MFU (palm)", "loss")
Columns = Mapping[str, Callable[[Result], str]]
Cells = tuple[str, ...]
Row = TypeVar("Row", Plan, Result)
_PLANNED: tuple[Cells, Cells] = (
    ("entry", "case:framework", "fits", ""),
    ("  hardware", "layout", "batches", "recompute", "memory, GiB"),
)
_RAN: Cells = ("entry", "result", "aligned", "tokens/s/device", "memory, GiB")
_FITS = {True: "yes", False: "NO", None: "unknown"}
HIDDEN = "*"
# The columns that may be hidden, and the columns that give each one away. MFU is tokens/s over the chip's peak, J/token
# is watts over tokens/s, and the tokens to a loss are known from other runs of the same training.
GIVEN_AWAY_BY = {
    "chip": ("MFU (palm)", "J/token"),
    "layout": (),
    "tokens/s/device": ("MFU (palm)", "J/token", "s to loss"),
    "MFU (palm)": ("tokens/s/device",),
    "memory": (),
    "J/token": (),
    "loss": ("s to loss", "alignment"),
    "s to loss": (),
    "alignment": (),
}
# The columns that stay beside hidden ones. A new column must be placed here or above before such a table shows it.
OPEN = ("case", "scale", "framework", "precision", "tuning", "tuned", "status")


def as_json(
    results: Sequence[Result],
    plans: PlanDigests,
    more: Sequence[Mapping[str, object]] = (),
    figures: Sequence[FigureColumn] = repeats.ALL,
) -> str:
    """Return every figure of every result as JSON, in full precision, with a summary of each group of repeats.

    plans: as `repeats_of` takes them. more: objects behind them, each with its schema. figures: those of the summaries.
    """
    rows = [{"schema": r.schema_name(), **r.model_dump(mode="json")} for r in results]
    return json_text([*rows, *repeats.as_values(results, plans, figures), *more]) + "\n"


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, with every column that any row has."""
    out = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)  # a run without figures lacks their columns
    writer = csv.DictWriter(out, fieldnames=list(names) or ["run_id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def as_markdown(results: Sequence[Result], columns: Columns = COLUMNS) -> str:
    """Return a Markdown table of each training with every column; below it, the reasons for missing figures."""
    return "\n".join(_markdown_group(*group, columns) for group in _groups(results))


def as_text(results: Sequence[Result], width: int = WIDTH, columns: Columns = COLUMNS) -> str:
    """Return a text table of each training within `width` columns. A run takes two lines when one is too short."""
    return "\n".join(_text_group(*group, width, columns) for group in _groups(results))


def hidden_columns(names: Iterable[str]) -> list[str]:
    """Return the columns to hide: the named ones, and those that give them away. A name may be a column's beginning.

    Without the chip nobody can look up its peak, so MFU and tokens/s do not give each other away. Raises UnknownName.
    """
    pending = [_column(name) for name in names]
    hidden = set(pending)
    while pending:
        column = pending.pop()
        if column == "MFU (palm)" and "chip" in hidden:
            continue
        more = [name for name in GIVEN_AWAY_BY[column] if name not in hidden]
        hidden.update(more)
        pending += more
    return [name for name in COLUMNS if name in hidden]


def _column(name: str) -> str:
    matches = [column for column in GIVEN_AWAY_BY if column.lower().startswith(name.lower())]
    if len(matches) != 1 or not name:
        raise UnknownName("column", name, GIVEN_AWAY_BY, hint=f"--hide takes one of {', '.join(GIVEN_AWAY_BY)}.")
    return matches[0]


def with_hidden(form: str, results: Sequence[Result], hidden: Collection[str]) -> str:
    """Return a table in one of the four formats, with `*` in the hidden columns and nothing beside the columns.

    Run ids, reasons, deviations and repeats are left out: a start time shows how long runs took, and a sentence may
    contain a figure.
    """
    columns = {name: write for name, write in COLUMNS.items() if name in OPEN or name in GIVEN_AWAY_BY}
    columns |= dict.fromkeys(hidden, lambda result: HIDDEN)
    silent = {"reasons": (), "evidence": None}
    bare = [r.model_copy(update={"deviations": (), "status": r.status.model_copy(update=silent)}) for r in results]
    rows = [{name: write(result) for name, write in columns.items()} for result in bare]
    writers = {
        "table": lambda: as_text(bare, columns=columns),
        "markdown": lambda: as_markdown(bare, columns),
        "csv": lambda: csv_text(rows),
        "json": lambda: json_text({"hidden": list(hidden), "rows": rows}) + "\n",
    }
    return writers[form]()


def _groups(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Return the results of each training with its heading. Only cells of one training may be compared.

    Results of one training have no heading.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        key = (result.case, result.scale, result.window, result.identity.work, result.identity.corpus)
        groups.setdefault(key, []).append(result)
    headings = [_heading(group[0]) for group in groups.values()]
    if len(groups) < 2:
        return [("", list(results))]
    named = zip(headings, groups.values(), strict=True)
    return [(heading if headings.count(heading) == 1 else f"{heading}, {_work(g[0])}", g) for heading, g in named]


def _heading(result: Result) -> str:
    first, last = result.window
    return f"{result.case} ({result.scale}), {result.precision}, steps {first} to {last}"


def _work(result: Result) -> str:
    """Return what tells two trainings of one name apart: the beginnings of their digests."""
    work, corpus = (short_digest(digest, 8) for digest in (result.identity.work, result.identity.corpus))
    return f"work {work}, corpus {corpus}"


def _markdown_group(heading: str, results: Sequence[Result], columns: Columns) -> str:
    lines = table(columns, ([write(r) for write in columns.values()] for r in results))
    above = [f"### {markdown(heading)}", ""] if heading else []
    return "\n".join([*above, *lines, *map(markdown, _notes(results))]) + "\n"


def _text_group(heading: str, results: Sequence[Result], width: int, columns: Columns) -> str:
    names = [*_NARROW, *_more(columns)]
    rows = [names, *([one_line(columns[name](r)) for name in names] for r in results)]
    lines = aligned(rows) if results else [""]
    if results and sum(widths_of(rows)) + 2 * len(names) > width:
        lines = [wrapped(line, 4) for r in results for line in _two_lines(r, columns)]
    notes = [wrapped(note, 2) for note in _notes(results)]
    above = [wrapped(one_line(heading), 2)] if heading else []
    return "\n".join([*above, *lines, *notes]) + "\n"


def _two_lines(result: Result, columns: Columns) -> list[str]:
    said = {name: write(result) for name, write in columns.items()}
    tuning = "".join(tuning_lines(result))
    more = "".join(f"{name} {said[name]}  " for name in _more(columns))
    return [
        f"{said['case']} ({said['scale']})  {said['framework']}  {said['chip']}  {said['layout']}  {tuning}",
        f"  {said['status']}  {said['tokens/s/device']} tokens/s/device  MFU (palm) {said['MFU (palm)']}  {more}"
        f"{said['memory']}  loss {said['loss']}",
    ]


def _more(columns: Columns) -> list[str]:
    """Return the columns beyond the usual ones."""
    return [name for name in columns if name not in COLUMNS]


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [f"{r.run_id}: {reason}" for r in results for reason in (*r.status.reasons, *r.deviations)]
    return ["", *notes] if notes else []


def plain(result: Result) -> dict[str, object]:
    """Return a result's figures in one row, by names with units."""
    return {
        "run_id": result.run_id,
        "case": result.case,
        "scale": result.scale,
        "framework": result.framework,
        "framework_version": result.framework_version,
        "vendor": result.vendor,
        "chip": result.chip,
        "device_is": result.device_is,
        "nodes": result.nodes,
        "devices": result.devices,
        "layout": str(result.layout),
        "micro_batch": result.micro_batch,
        "virtual_pipeline": result.virtual_pipeline,
        "precision": result.precision,
        "tuning": result.tuning and result.tuning.word,
        "tuned": chosen_fields(result) or None,
        "status": result.status.word,
        "failure": result.status.failure,
        **{figure.name: figure.of(result, result.device_is == HOST_SHARE)[0] for figure in RUN_FIGURES},
        **{f"{u.kind.lower()}_{u.formula}": u.value for u in result.utilisation},
        "device_used_peak_bytes": result.memory.device_used_peak.value,
        "process_peak_bytes": result.memory.process_peak.value,
        "expected_memory_bytes": result.memory.expected_bytes,
        "memory_over_expected": result.memory.expectation and result.memory.expectation.ratio,
        **_of_nodes(result),
        "loss_first": result.loss.first,
        "loss_level": result.to_loss and result.to_loss.level,
        "tokens_to_loss": result.to_loss and result.to_loss.tokens,
        **({"expert_imbalance": result.experts.imbalance} if result.experts else {}),
        "alignment": result.alignment.verdict,
    }


def _of_nodes(result: Result) -> dict[str, object]:
    """Return the cells of whole nodes. A table without node power has no column of it."""
    nodes = result.energy.nodes
    if nodes is None:
        return {}
    return {
        "joules_per_token_not_of_chips": nodes.other_joules_per_token.value,
    }


def planned(plans: Sequence[Plan]) -> list[str]:
    """Return two lines per entry, under the headings of groups, and notes on single entries below."""
    once = [plan for plan in plans if plan.repeat == 1]
    firsts = _in_columns([_PLANNED[0], *(_first_cells(plan) for plan in once)])
    seconds = _in_columns([_PLANNED[1], *(_second_cells(plan) for plan in once)])
    lines = [f"suite {_entry_of(once[0]).suite}: {len(once)} entries", "", firsts[0], seconds[0]]
    for heading, first, second in zip(_group_headings(once), firsts[1:], seconds[1:], strict=True):
        lines += [*heading, first, second]
    return [*lines, *(wrapped(note, 2) for note in _plan_notes(once))]


def ran(results: Sequence[Result]) -> list[str]:
    """Return one line per entry, under the headings of groups; below, reasons for missing figures and deviations."""
    rows = _in_columns([_RAN, *(_entry_outcome(result) for result in results)])
    lines = [f"suite {_entry_of(results[0]).suite}", "", rows[0]]
    for heading, row in zip(_group_headings(results), rows[1:], strict=True):
        lines += [*heading, row]
    notes = [f"{_entry_of(r).name}: {said}" for r in results for said in (*_reasons(r), *r.deviations)]
    return [*lines, *(wrapped(note, 2) for note in (["", *notes] if notes else []))]


def by_suite(found: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each suite, in order of first appearance. Rows without a suite are left out."""
    suites: dict[str, list[Row]] = {}
    for row in found:
        if row.entry:
            suites.setdefault(row.entry.suite, []).append(row)
    return list(suites.values())


def _entry_of(of: Plan | Result) -> EntryUsed:
    return of.entry or EntryUsed(suite=NONE, name=of.run_id)


def _group_headings(rows: Sequence[Plan | Result]) -> Iterator[list[str]]:
    """Return the lines before each row: the group's name when it changes."""
    before = None
    for row in rows:
        group = _entry_of(row).group
        yield [f"[{group}]"] if group and group != before else []
        before = group


def _first_cells(plan: Plan) -> Cells:
    memory = plan.expected_memory
    fits = memory.total_bytes <= memory.available_bytes if memory.available_bytes else None
    state = "ASSUMED" if plan.hardware.assumed else plan.scale
    return _entry_of(plan).name, f"{plan.case}:{plan.implementation.framework}", _FITS[fits], state


def _second_cells(plan: Plan) -> Cells:
    tuning, hardware, memory = plan.tuning, plan.hardware, plan.expected_memory
    return (
        f"  {hardware.nodes}x{hardware.devices_per_node} {hardware.chip.name}",
        str(tuning.layout),
        f"{tuning.micro_batch} x {plan.accumulation}",
        tuning.recomputation,
        f"{_short_gib(memory.total_bytes)} of {_short_gib(memory.available_bytes)}",
    )


def _short_gib(size_bytes: int | None) -> str:
    """Return GiB with at most four digits, so that the line fits."""
    gib = (size_bytes or 0) / GIB
    return "unknown" if size_bytes is None else f"{gib:.{1 if gib < 100 else 0}f}"


def _plan_notes(plans: Sequence[Plan]) -> Iterator[str]:
    yield ""
    yield "batches: micro-batch x accumulation; memory: expected on the fullest device. --json shows every plan whole."
    if any(plan.hardware.assumed for plan in plans):
        yield (
            "ASSUMED: this hardware is not here. A run takes such an entry at smoke scale, with its layout cut down "
            "to what is here; --scale smoke --dry-run shows how."
        )
    for plan in plans:
        refusal = f"CANNOT RUN: {plan.refusal}" if plan.refusal else None
        said = [_entry_of(plan).note, refusal, *plan.deviations, *plan.notices, plan.environment.lacking]
        yield from (f"{_entry_of(plan).name}: {sentence}" for sentence in said if sentence)


def _entry_outcome(result: Result) -> Cells:
    name = _entry_of(result).name + (f" ({result.repeat})" if result.repeat > 1 else "")
    speed = result.throughput.tokens_per_second_per_device if result.throughput else None
    memory = worst_memory(result)[1]
    return name, status(result), result.alignment.verdict, number(speed), number(memory / GIB if memory else None, 2)


def _reasons(result: Result) -> Iterator[str]:
    yield from result.status.reasons
    if result.status.word != "valid" and result.status.evidence:
        yield result.status.evidence


def _in_columns(rows: Sequence[Cells]) -> list[str]:
    return aligned([[" ".join(cell.splitlines()) for cell in row] for row in rows])
