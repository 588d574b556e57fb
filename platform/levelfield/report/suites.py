"""Tables of suites: the plans of a dry run, and the results. Both fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from levelfield.report.words import GIB, NONE, number, status, worst_memory, wrapped
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.suite import EntryUsed

Cells = tuple[str, ...]
Row = TypeVar("Row", Plan, Result)
_PLANNED: tuple[Cells, Cells] = (
    ("entry", "case:framework", "fits", ""),
    ("  hardware", "layout", "batches", "recompute", "memory, GiB"),
)
_RAN: Cells = ("entry", "result", "aligned", "tokens/s/device", "memory, GiB")
_FITS = {True: "yes", False: "NO", None: "unknown"}


def planned(plans: Sequence[Plan]) -> list[str]:
    """Return two lines per entry, under the headings of groups, and notes on single entries below."""
    once = [plan for plan in plans if plan.repeat == 1]
    firsts = _aligned([_PLANNED[0], *(_first(plan) for plan in once)])
    seconds = _aligned([_PLANNED[1], *(_second(plan) for plan in once)])
    lines = [f"suite {_entry(once[0]).suite}: {len(once)} entries", "", firsts[0], seconds[0]]
    for heading, first, second in zip(_headings(once), firsts[1:], seconds[1:], strict=True):
        lines += [*heading, first, second]
    return [*lines, *(wrapped(note, 2) for note in _notes(once))]


def ran(results: Sequence[Result]) -> list[str]:
    """Return one line per entry, under the headings of groups; below, reasons for missing figures and deviations."""
    rows = _aligned([_RAN, *(_outcome(result) for result in results)])
    lines = [f"suite {_entry(results[0]).suite}", "", rows[0]]
    for heading, row in zip(_headings(results), rows[1:], strict=True):
        lines += [*heading, row]
    notes = [f"{_entry(r).name}: {said}" for r in results for said in (*_reasons(r), *r.deviations)]
    return [*lines, *(wrapped(note, 2) for note in (["", *notes] if notes else []))]


def by_suite(found: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each suite, in order of first appearance. Rows without a suite are left out."""
    suites: dict[str, list[Row]] = {}
    for row in found:
        if row.entry:
            suites.setdefault(row.entry.suite, []).append(row)
    return list(suites.values())


def _entry(of: Plan | Result) -> EntryUsed:
    return of.entry or EntryUsed(suite=NONE, name=of.run_id)


def _headings(rows: Sequence[Plan | Result]) -> Iterator[list[str]]:
    """Return the lines before each row: the group's name when it changes."""
    before = None
    for row in rows:
        group = _entry(row).group
        yield [f"[{group}]"] if group and group != before else []
        before = group


def _first(plan: Plan) -> Cells:
    memory = plan.expected_memory
    fits = memory.total_bytes <= memory.available_bytes if memory.available_bytes else None
    state = "ASSUMED" if plan.hardware.assumed else plan.scale
    return _entry(plan).name, f"{plan.case}:{plan.implementation.framework}", _FITS[fits], state


def _second(plan: Plan) -> Cells:
    tuning, hardware, memory = plan.tuning, plan.hardware, plan.expected_memory
    return (
        f"  {hardware.nodes}x{hardware.devices_per_node} {hardware.chip.name}",
        str(tuning.layout),
        f"{tuning.micro_batch} x {plan.accumulation}",
        tuning.recompute,
        f"{_gib(memory.total_bytes)} of {_gib(memory.available_bytes)}",
    )


def _gib(size_bytes: int | None) -> str:
    """Return GiB with at most four digits, so that the line fits."""
    gib = (size_bytes or 0) / GIB
    return "unknown" if size_bytes is None else f"{gib:.{1 if gib < 100 else 0}f}"


def _notes(plans: Sequence[Plan]) -> Iterator[str]:
    yield ""
    yield "batches: micro-batch x accumulation; memory: expected on the fullest device. --json shows every plan whole."
    if any(plan.hardware.assumed for plan in plans):
        yield (
            "ASSUMED: this hardware is not here. A run takes such an entry at smoke scale, with its layout cut down "
            "to what is here; --scale smoke --dry-run shows how."
        )
    for plan in plans:
        refusal = f"CANNOT RUN: {plan.refusal}" if plan.refusal else None
        said = [_entry(plan).note, refusal, *plan.deviations, *plan.notices, plan.environment.lacking]
        yield from (f"{_entry(plan).name}: {sentence}" for sentence in said if sentence)


def _outcome(result: Result) -> Cells:
    name = _entry(result).name + (f" ({result.repeat})" if result.repeat > 1 else "")
    speed = result.throughput.tokens_per_second_per_device if result.throughput else None
    memory = worst_memory(result)[1]
    return name, status(result), result.alignment.verdict, number(speed), number(memory / GIB if memory else None, 2)


def _reasons(result: Result) -> Iterator[str]:
    yield from result.status.reasons
    if result.status.word != "valid" and result.status.evidence:
        yield result.status.evidence


def _aligned(rows: Sequence[Cells]) -> list[str]:
    rows = [tuple(" ".join(cell.splitlines()) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
