"""docs/verified/rehearsed.md, from docs/verified/rehearsed.json and the code at hand."""

from __future__ import annotations

from layouts import ROOT
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.specs.rehearsed import RehearsedRow

REHEARSED = ROOT / "docs" / "verified" / "rehearsed.md"
GIB = 2**30

INTRODUCTION = """# Rehearsed: the real code on devices that only keep books

A rehearsal runs the unmodified training at full scale, with the framework's own allocator, streams and collectives.
In the place of the device is a library that counts: kernels compute nothing, and memory is only booked. So it shows
what the code asks of a device, and nothing about speed or about numbers. No row here is a result.

`rehearsed.json` (schema `levelfield.rehearsed/1`) is its evidence. Each row rests on the files that its ranks
imported, as a recorded run of the processor does. `list frameworks` and `list vendors` say when a framework or a
vendor's chip was rehearsed last, as long as that code has not changed and no allocation failed. GiB of the fullest
device: planned without the planner's margin, the allocator's peaks beside it.
"""

EMPTY = "No rehearsal is recorded yet."
HEAD = "| case | framework | chip | nodes x devices | layout | micro-batch | recompute | planned | allocated | reserved | failed allocations | date | counts |"  # noqa: E501


def rehearsed_page(registry: Registry) -> str:
    """The page, whole. registry: of the frameworks, whose code is compared."""
    faults = Rehearsals(registry).faults
    rows = [_row(row, fault) for row, fault in faults.items()]
    table = [HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows] if rows else [EMPTY]
    return "\n".join([*INTRODUCTION.splitlines(), "", *table]) + "\n"


def _row(row: RehearsedRow, fault: str | None) -> str:
    planned = "-" if row.planned_bytes is None else _gib(row.planned_bytes)
    cells = (
        row.case, row.framework, row.chip, f"{row.nodes} x {row.devices}", row.layout, row.micro_batch, row.recompute,
        planned, _gib(row.allocated_bytes), _gib(row.reserved_bytes), row.failed_allocations, row.date,
        fault or "yes",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"
