"""docs/verified/rehearsed.md, from docs/verified/rehearsed.json and the code at hand."""

from __future__ import annotations

from layouts import ROOT
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.specs.rehearsed_runs import RehearsedRow

REHEARSED = ROOT / "docs" / "verified" / "rehearsed.md"
GIB = 2**30

INTRODUCTION = """# Rehearsed: the real code on devices that only keep books

A rehearsal runs the unmodified training at full scale, with the framework's own allocator, streams and collectives.
In the place of the device is a library that counts: kernels compute nothing, and memory is only booked. So it shows
what the code asks of a device, and nothing about speed or about numbers. No row here is a result.

## All rows

GiB of the fullest device: planned without the planner's margin, then the allocator's two peaks. Failed: allocations
that failed, and flushes of its cache. Waits: how often the host waited for the device in the last step. Counts: the
code that the row rests on has not changed since. `show frameworks` and `show vendors` take only such rows, and only
where no allocation failed.
"""

EMPTY = "No rehearsal is recorded yet."
HEAD = (
    "| case | framework | chip | nodes x devices | layout | micro-batch | recompute | planned | allocated | reserved "
)
HEAD += "| failed | waits | counts |"
END = """Made by `make rehearse`, which repeats all of it; do not edit. `rehearsed.json` (schema
`levelfield.rehearsed/2`) is the evidence. It also has the date of each row, its ranks (all of them with their messages
delivered, or each alone), the layers' library, the kernels and the attention. tools/rehearsal/README.md says what the
stand-in is and is not."""


def rehearsed_page(registry: Registry) -> str:
    """The page, whole. registry: of the frameworks, whose code is compared."""
    faults = Rehearsals(registry).faults
    rows = [_row(row, fault) for row, fault in faults.items()]
    table = [HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows] if rows else [EMPTY]
    return "\n".join([*INTRODUCTION.splitlines(), "", *table, "", *END.splitlines()]) + "\n"


def _row(row: RehearsedRow, fault: str | None) -> str:
    planned = "-" if row.planned_bytes is None else _gib(row.planned_bytes)
    cells = (
        row.case, row.framework, row.chip, f"{row.nodes} x {row.devices}", row.layout, row.micro_batch,
        row.tuning.recomputation,
        planned, _gib(row.allocated_bytes), _gib(row.reserved_bytes), f"{row.failed_allocations}, {row.flushes}",
        row.waits, fault or "yes",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"
