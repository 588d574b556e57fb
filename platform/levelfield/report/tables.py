"""Tables of many results, in four formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence

from levelfield.report import repeats
from levelfield.report.escapes import markdown, one_line, spreadsheet_cell, table
from levelfield.report.words import COLUMNS, WIDTH, wrapped
from levelfield.specs.result import Result

FORMATS = ("table", "markdown", "csv", "json")
_NARROW = ("case", "scale", "framework", "layout", "status", "tokens/s/device", "MFU (palm)", "loss")
Columns = Mapping[str, Callable[[Result], str]]


def as_json(results: Sequence[Result], more: Sequence[Mapping[str, object]] = ()) -> str:
    """Return every figure of every result as JSON, in full precision, with a summary of each group of repeats.

    more: objects behind them, each with its schema.
    """
    rows = [{"schema": r.schema_name(), **r.model_dump(mode="json")} for r in results]
    return json.dumps([*rows, *repeats.as_values(results), *more], indent=2, ensure_ascii=False) + "\n"


def as_csv(results: Sequence[Result]) -> str:
    """Return one CSV row per run for programs: raw numbers without rounding, units in the names."""
    return csv_text([plain(r) for r in results])


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
    work, corpus = (digest.removeprefix("sha256:")[:8] for digest in (result.identity.work, result.identity.corpus))
    return f"work {work}, corpus {corpus}"


def _markdown_group(heading: str, results: Sequence[Result], columns: Columns) -> str:
    lines = table(columns, ([write(r) for write in columns.values()] for r in results))
    above = [f"### {markdown(heading)}", ""] if heading else []
    return "\n".join([*above, *lines, *map(markdown, _notes(results))]) + "\n"


def _text_group(heading: str, results: Sequence[Result], width: int, columns: Columns) -> str:
    names = [name for name in (*_NARROW, "peak") if name in columns]
    rows = [{name: one_line(columns[name](r)) for name in names} for r in results]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names} if rows else {}
    if sum(widths.values()) + 2 * len(widths) <= width:
        lines = [_padded({n: n for n in widths}, widths), *(_padded(row, widths) for row in rows)]
    else:
        lines = [wrapped(line, 4) for r in results for line in _two_lines(r, columns)]
    notes = [wrapped(note, 2) for note in _notes(results)]
    above = [wrapped(one_line(heading), 2)] if heading else []
    return "\n".join([*above, *lines, *notes]) + "\n"


def _padded(row: dict[str, str], widths: dict[str, int]) -> str:
    return "  ".join(row[name].ljust(size) for name, size in widths.items()).rstrip()


def _two_lines(result: Result, columns: Columns) -> list[str]:
    said = {name: write(result) for name, write in columns.items()}
    peak = f"peak {said['peak']}  " if "peak" in said else ""
    return [
        f"{said['case']} ({said['scale']})  {said['framework']}  {said['chip']}  {said['layout']}",
        f"  {said['status']}  {said['tokens/s/device']} tokens/s/device  MFU {said['MFU (palm)']}  {peak}"
        f"{said['memory']}  loss {said['loss']}",
    ]


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [f"{r.run_id}: {reason}" for r in results for reason in (*r.status.reasons, *r.deviations)]
    return ["", *notes] if notes else []


def plain(result: Result) -> dict[str, object]:
    """Return a result's figures in one row, by names with units."""
    throughput = result.throughput
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
        "status": result.status.word,
        "failure": result.status.failure,
        "tokens_per_second_per_device": throughput and throughput.tokens_per_second_per_device,
        "step_seconds_median": throughput and throughput.step_seconds.median,
        **{f"{u.kind.lower()}_{u.formula}": u.value for u in result.utilisation},
        "device_used_peak_bytes": result.memory.device_used_peak.value,
        "process_peak_bytes": result.memory.process_peak.value,
        "expected_memory_bytes": result.memory.expected_bytes,
        "memory_over_expected": result.memory.expectation and result.memory.expectation.ratio,
        "joules_per_token": result.energy.joules_per_token.value,
        "loss_first": result.loss.first,
        "loss_tail_mean": result.loss.tail_mean,
        **({"expert_imbalance": result.experts.imbalance} if result.experts else {}),
        "alignment": result.alignment.verdict,
    }
