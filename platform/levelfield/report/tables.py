"""Tables of many results, in four formats; and of suites, with the plans of a dry run or with the results."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from levelfield.errors import UnknownName
from levelfield.report import repeats
from levelfield.report.escapes import escape_markdown, markdown_table, one_line, spreadsheet_cell
from levelfield.report.repeats import FigureColumn, PlanDigests
from levelfield.report.result_words import COLUMNS, chosen_fields, first_known_memory, status_in_words, tuning_lines
from levelfield.report.sheets import align_rows, column_widths
from levelfield.report.words import GIB, NONE, WIDTH, format_number, wrapped
from levelfield.specs.plan import Plan
from levelfield.specs.readable_json import json_text
from levelfield.specs.result import Result
from levelfield.specs.run_figures import MFU_TITLE, RUN_FIGURES
from levelfield.specs.short_names import short_digest
from levelfield.specs.suite import EntryUsed
from levelfield.specs.vendor import HOST_SHARE

_NARROW_COLUMNS = ("case", "scale", "framework", "layout", "tuning", "status", "tokens/s/device", MFU_TITLE, "loss")
CellWriters = Mapping[str, Callable[[Result], str]]
Cells = tuple[str, ...]
Row = TypeVar("Row", Plan, Result)
_PLAN_HEADERS: tuple[Cells, Cells] = (
    ("entry", "case:framework", "fits", ""),
    ("  hardware", "layout", "batches", "recompute", "memory, GiB"),
)
_RESULT_HEADER: Cells = ("entry", "result", "aligned", "tokens/s/device", "memory, GiB")
_FITS_WORDS = {True: "yes", False: "NO", None: "unknown"}
HIDDEN_CELL = "*"
# The columns that may be hidden, and the columns that give each one away. MFU is tokens/s over the chip's peak, J/token
# is watts over tokens/s, and the tokens to a loss are known from other runs of the same training.
REVEALED_BY = {
    "chip": (MFU_TITLE, "J/token"),
    "layout": (),
    "tokens/s/device": (MFU_TITLE, "J/token", "s to loss"),
    MFU_TITLE: ("tokens/s/device",),
    "memory": (),
    "J/token": (),
    "loss": ("s to loss", "alignment"),
    "s to loss": (),
    "alignment": (),
}
# The columns that stay beside hidden ones. A new column must be placed here or above before such a table shows it.
NEVER_HIDDEN = ("case", "scale", "framework", "precision", "tuning", "tuned", "status")


def format_json(
    results: Sequence[Result],
    plans: PlanDigests,
    extra_objects: Sequence[Mapping[str, object]] = (),
    figures: Sequence[FigureColumn] = repeats.ALL_COLUMNS,
) -> str:
    """Return every figure of every result as JSON, in full precision, with a summary of each group of repeats.

    plans: as `group_repeats` takes them. extra_objects: what follows the results, each with its schema. figures:
    those of the summaries.
    """
    rows: list[Mapping[str, object]] = [{"schema": r.schema_name(), **r.model_dump(mode="json")} for r in results]
    for group in repeats.group_repeats(results, plans, figures):
        summary = {f.column.name: {"unit": f.column.unit, **asdict(f.interval)} for f in group.figures}
        runs = [result.run_id for result in group.results]
        summary_row = {"schema": repeats.REPEATS_SCHEMA, "title": group.title, "runs": runs, "valid": group.valid_count}
        summary_row["disturbed"] = group.disturbed_count
        rows.append({**summary_row, "figures": summary})
    return json_text([*rows, *extra_objects]) + "\n"


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, with every column that any row has."""
    out = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)  # a run without figures lacks their columns
    writer = csv.DictWriter(out, fieldnames=list(names) or ["run_id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def format_markdown(results: Sequence[Result], columns: CellWriters = COLUMNS) -> str:
    """Return a Markdown table of each training with every column; below it, the reasons for missing figures."""
    groups = []
    for heading, group, notes in _group_by_training(results):
        heading_lines = [f"### {escape_markdown(heading)}", ""] if heading else []
        lines = markdown_table(columns, ([write(result) for write in columns.values()] for result in group))
        groups.append("\n".join([*heading_lines, *lines, *map(escape_markdown, notes)]) + "\n")
    return "\n".join(groups)


def format_text(results: Sequence[Result], width: int = WIDTH, columns: CellWriters = COLUMNS) -> str:
    """Return a text table of each training within `width` columns. A run takes two lines when one is too short."""
    added_columns = [name for name in columns if name not in COLUMNS]
    names = [*_NARROW_COLUMNS, *added_columns]
    groups = []
    for heading, group, notes in _group_by_training(results):
        heading_lines = [wrapped(one_line(heading), 2)] if heading else []
        rows = [names, *([one_line(columns[name](result)) for name in names] for result in group)]
        lines = align_rows(rows) if group else [""]
        if group and sum(column_widths(rows)) + 2 * len(names) > width:
            lines = []
            for result in group:
                cells = {name: write(result) for name, write in columns.items()}
                tuning, others = (
                    "".join(tuning_lines(result)),
                    "".join(f"{name} {cells[name]}  " for name in added_columns),
                )
                first = "{case} ({scale})  {framework}  {chip}  {layout}  ".format_map(cells) + tuning
                second = f"  {cells['status']}  {cells['tokens/s/device']} tokens/s/device  {MFU_TITLE} "
                second += f"{cells[MFU_TITLE]}  {others}{cells['memory']}  loss {cells['loss']}"
                lines += [wrapped(first, 4), wrapped(second, 4)]
        groups.append("\n".join([*heading_lines, *lines, *(wrapped(note, 2) for note in notes)]) + "\n")
    return "\n".join(groups)


def hidden_columns(names: Iterable[str]) -> list[str]:
    """Return the columns to hide: the named ones, and those that give them away. A name may be a column's beginning.

    Without the chip nobody can look up its peak, so MFU and tokens/s do not give each other away. Raises UnknownName.
    """
    pending = []
    for name in names:
        matches = [column for column in REVEALED_BY if column.lower().startswith(name.lower())]
        if len(matches) != 1 or not name:
            raise UnknownName("column", name, REVEALED_BY, hint=f"--hide takes one of {', '.join(REVEALED_BY)}.")
        pending += matches
    hidden = set(pending)
    while pending:
        column = pending.pop()
        if column == MFU_TITLE and "chip" in hidden:
            continue
        more = [name for name in REVEALED_BY[column] if name not in hidden]
        hidden.update(more)
        pending += more
    return [name for name in COLUMNS if name in hidden]


def format_with_hidden(form: str, results: Sequence[Result], hidden: Collection[str]) -> str:
    """Return a table in one of the four formats, with `*` in the hidden columns and nothing beside the columns.

    Run ids, reasons, deviations and repeats are left out: a start time shows how long runs took, and a sentence may
    contain a figure.
    """
    columns = {name: write for name, write in COLUMNS.items() if name in NEVER_HIDDEN or name in REVEALED_BY}
    columns |= dict.fromkeys(hidden, lambda result: HIDDEN_CELL)
    without_sentences = {"reasons": (), "evidence": None}
    stripped_results = [
        r.model_copy(update={"deviations": (), "status": r.status.model_copy(update=without_sentences)})
        for r in results
    ]
    rows = [{name: write(result) for name, write in columns.items()} for result in stripped_results]
    writers = {
        "table": lambda: format_text(stripped_results, columns=columns),
        "markdown": lambda: format_markdown(stripped_results, columns),
        "csv": lambda: csv_text(rows),
        "json": lambda: json_text({"hidden": list(hidden), "rows": rows}) + "\n",
    }
    return writers[form]()


def _group_by_training(results: Sequence[Result]) -> Iterator[tuple[str, list[Result], list[str]]]:
    """Yield heading, results and notes of each training. Only cells of one training may be compared.

    Results of one training have no heading. Notes: the reasons for missing figures, and deviations.
    """
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        key = (result.case, result.scale, result.window, result.identity.work, result.identity.corpus)
        groups.setdefault(key, []).append(result)
    firsts = [group[0] for group in groups.values()]
    headings = [f"{r.case} ({r.scale}), {r.precision}, steps {r.window[0]} to {r.window[1]}" for r in firsts]
    for heading, group in zip(headings, groups.values(), strict=True) if groups else [("", [])]:
        notes = [f"{r.run_id}: {reason}" for r in group for reason in (*r.status.reasons, *r.deviations)]
        shown_heading = heading if len(groups) > 1 else ""
        if headings.count(heading) > 1:
            work, corpus = (short_digest(d, 8) for d in (group[0].identity.work, group[0].identity.corpus))
            shown_heading = f"{heading}, work {work}, corpus {corpus}"
        yield shown_heading, group, ["", *notes] if notes else []


def figure_row(result: Result) -> dict[str, object]:
    """Return a result's figures in one row, by names with units."""
    nodes = result.energy.nodes  # a table without node power has no column of it
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
        **{figure.name: figure.value_and_reason(result, result.device_is == HOST_SHARE)[0] for figure in RUN_FIGURES},
        **{f"{u.kind.lower()}_{u.formula}": u.value for u in result.utilisation},
        "device_used_peak_bytes": result.memory.device_used_peak.value,
        "process_peak_bytes": result.memory.process_peak.value,
        "expected_memory_bytes": result.memory.expected_bytes,
        "memory_over_expected": result.memory.expectation and result.memory.expectation.ratio,
        **({"joules_per_token_not_of_chips": nodes.other_joules_per_token.value} if nodes else {}),
        "loss_first": result.loss.first,
        "loss_level": result.to_loss and result.to_loss.level,
        "tokens_to_loss": result.to_loss and result.to_loss.tokens,
        **({"expert_imbalance": result.experts.imbalance} if result.experts else {}),
        "alignment": result.alignment.verdict,
    }


def plan_lines(plans: Sequence[Plan]) -> list[str]:
    """Return two lines for each entry of a suite, under the headings of groups, and notes on single entries below."""
    first_repeats = [plan for plan in plans if plan.repeat == 1]
    first_lines, second_lines = [_PLAN_HEADERS[0]], [_PLAN_HEADERS[1]]
    for plan in first_repeats:
        tuning, hardware, memory = plan.tuning, plan.hardware, plan.expected_memory
        fits = memory.total_bytes <= memory.available_bytes if memory.available_bytes else None
        scale_text = "ASSUMED" if hardware.assumed else plan.scale
        sizes = []
        for size in (memory.total_bytes, memory.available_bytes):
            gib = (size or 0) / GIB  # at most four digits, so that the line fits
            sizes.append("unknown" if size is None else f"{gib:.{1 if gib < 100 else 0}f}")
        first_lines.append(
            (_entry_of(plan).name, f"{plan.case}:{plan.implementation.framework}", _FITS_WORDS[fits], scale_text)
        )
        second_lines.append(
            (
                f"  {hardware.nodes}x{hardware.devices_per_node} {hardware.chip.name}",
                str(tuning.layout),
                f"{tuning.micro_batch} x {plan.accumulation}",
                tuning.recomputation,
                " of ".join(sizes),
            )
        )
    suite, *lines = _lines_by_group(first_repeats, first_lines, second_lines)
    notes = [
        "",
        "batches: micro-batch x accumulation; memory: expected on the fullest device. --json shows every plan whole.",
    ]
    if any(plan.hardware.assumed for plan in first_repeats):
        notes.append(
            "ASSUMED: this hardware is not here. A run takes such an entry at smoke scale, with its layout cut down "
            "to what is here; --scale smoke --dry-run shows how."
        )
    for plan in first_repeats:
        refusal = f"CANNOT RUN: {plan.refusal}" if plan.refusal else None
        sentences = [_entry_of(plan).note, refusal, *plan.deviations, *plan.notices, plan.environment.lacking]
        notes += [f"{_entry_of(plan).name}: {sentence}" for sentence in sentences if sentence]
    return [f"{suite}: {len(first_repeats)} entries", *lines, *(wrapped(note, 2) for note in notes)]


def suite_lines(results: Sequence[Result]) -> list[str]:
    """Return a line for each entry of a suite, under the headings of groups; below, reasons for missing figures and
    deviations."""
    rows, notes = [_RESULT_HEADER], []
    for result in results:
        name, run_status = _entry_of(result).name, result.status
        speed = result.throughput.tokens_per_second_per_device if result.throughput else None
        memory = first_known_memory(result)[1]
        label = name + (f" ({result.repeat})" if result.repeat > 1 else "")
        gib = format_number(memory / GIB if memory else None, 2)
        rows.append((label, status_in_words(result), result.alignment.verdict, format_number(speed), gib))
        evidence = [run_status.evidence] if run_status.word != "valid" and run_status.evidence else []
        notes += [f"{name}: {reason}" for reason in (*run_status.reasons, *evidence, *result.deviations)]
    return [*_lines_by_group(results, rows), *(wrapped(note, 2) for note in (["", *notes] if notes else []))]


def group_by_suite(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each suite, in order of first appearance. Rows without a suite are left out."""
    suites: dict[str, list[Row]] = {}
    for row in rows:
        if row.entry:
            suites.setdefault(row.entry.suite, []).append(row)
    return list(suites.values())


def _entry_of(row: Plan | Result) -> EntryUsed:
    return row.entry or EntryUsed(suite=NONE, name=row.run_id)


def _lines_by_group(rows: Sequence[Plan | Result], *tables: Sequence[Cells]) -> list[str]:
    """Return the lines of all tables, row by row; each table has a header before its rows.

    The name of a group stands before its first row.
    """
    columns = [align_rows([[" ".join(cell.splitlines()) for cell in row] for row in cells]) for cells in tables]
    headers, *others = zip(*columns, strict=True)
    lines, previous_group = [f"suite {_entry_of(rows[0]).suite}", "", *headers], None
    for row, texts in zip(rows, others, strict=True):
        group = _entry_of(row).group
        lines += [*([f"[{group}]"] if group and group != previous_group else []), *texts]
        previous_group = group
    return lines
