"""docs/verified/rehearsed.md and its rows, from docs/verified/rehearsed.json and the code at hand."""

from __future__ import annotations

import csv
import io

from layouts import ROOT
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.specs.rehearsed_runs import RehearsedRow

REHEARSED = ROOT / "docs" / "verified" / "rehearsed.md"
REHEARSED_ROWS = ROOT / "docs" / "data" / "rehearsed.csv"
GIB = 2**30

INTRODUCTION = """# Rehearsed: the real code on simulated devices

A rehearsal runs the unmodified training at full scale on simulated NVIDIA devices: kernels compute nothing, memory is
only booked. It shows what the code asks of a device, and nothing about speed or numbers. No row here is a result.

    make rehearse
    .venvs/dev/bin/python tools/rehearse.py CASE

GiB of the fullest device. *Error*: the largest difference of planned, without margin, from allocated. *Failed*:
allocations. *Counts*: rows whose code has not changed since; `show frameworks` and `show vendors` take only these. [All
rows, with the reason where one does not count](../data/rehearsed.csv); `rehearsed.json` (schema
`levelfield.rehearsed/2`) is the evidence.
"""

EMPTY = "No rehearsal is recorded yet."
SUMMARY_HEAD = "| case, framework | plans | counts | devices | allocated | error | failed |\n" + "|---" * 7 + "|"
HEAD = (
    *("case", "framework", "chip", "nodes", "devices", "layout", "micro_batch", "recompute", "planned_gib"),
    *("allocated_gib", "reserved_gib", "failed_allocations", "flushes", "waits", "counts"),
)
END = "Made by `tools/matrix.py --docs`; do not edit. tools/rehearsal/README.md says what the simulation leaves out."


def rehearsed_page(registry: Registry) -> str:
    """The page, whole. registry: of the frameworks, whose code is compared."""
    faults = Rehearsals(registry).faults
    names = dict.fromkeys((row.case, row.framework) for row in faults)
    lines = [
        _summary(name, {row: fault for row, fault in faults.items() if (row.case, row.framework) == name})
        for name in names
    ]
    table = [SUMMARY_HEAD, *lines] if lines else [EMPTY]
    return "\n".join([*INTRODUCTION.splitlines(), "", *table, "", END]) + "\n"


def rehearsed_rows(registry: Registry) -> str:
    """Every row as CSV, with the reason where it does not count."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEAD)
    for row, fault in Rehearsals(registry).faults.items():
        planned = "" if row.planned_bytes is None else _gib(row.planned_bytes)
        table.writerow((
            row.case, row.framework, row.chip, row.nodes, row.devices, row.layout, row.micro_batch,
            row.tuning.recomputation, planned, _gib(row.allocated_bytes), _gib(row.reserved_bytes),
            row.failed_allocations, row.flushes, row.waits, fault or "yes",
        ))  # fmt: skip
    return text.getvalue()


def _summary(name: tuple[str, str], rows: dict[RehearsedRow, str | None]) -> str:
    errors = [abs(row.planned_bytes / row.allocated_bytes - 1) for row in rows if row.planned_bytes is not None]
    cells = (
        " ".join(name), len(rows), sum(fault is None for fault in rows.values()),
        _span([row.nodes * row.devices for row in rows], "{:d}"),
        _span([row.allocated_bytes / GIB for row in rows], "{:.1f}"),
        f"{max(errors):.1%}" if errors else "-", sum(row.failed_allocations for row in rows),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _span(values: list[int] | list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"
