"""`plan --rehearse`: what it goes with, its progress, and the table of what was measured without the device."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, RunFailed, UsageError
from levelfield.predict.layout_search import LayoutEstimate, LayoutRanking
from levelfield.report.words import GIB, NONE, wrapped
from levelfield.run.interruption import interrupted_once
from levelfield.specs.vendor import Chip
from levelfield.studies.plan_rehearsals import Rehearser, RowRehearsal

# What changes the question of the planner, and which no run takes.
PLANNED_ONLY = ("precision", "program", "attention", "explain")


class Rehearsed(NamedTuple):
    number: int
    row: LayoutEstimate
    found: RowRehearsal


def rehearser_of(options: argparse.Namespace, chip: Chip, nodes: int, devices: int) -> Rehearser:
    """Return what rehearses the rows. Raises UsageError before any work where it cannot begin here."""
    for name in PLANNED_ONLY:
        if getattr(options, name) is not None:
            raise UsageError(f"--rehearse: found --{name}, which only a plan has; leave one of the two out")
    if options.scale != "full":
        raise UsageError("--rehearse: found --scale smoke, expected full: a smoke scale runs on any processor")
    if not 1 <= options.rehearse <= options.top:
        raise UsageError(f"--rehearse {options.rehearse}: expected 1 to {options.top}, the rows of --top")
    found = Rehearser(f"{options.case}:{options.framework}:{chip.name}:{nodes}:{devices}", tuple(_passed_on(options)))
    found.require()
    return found


def _passed_on(options: argparse.Namespace) -> Iterator[str]:
    """Yield what a run needs to know the same names. The script starts it in another folder, so paths are absolute."""
    for folder in options.plugins:
        yield from ("--plugins", str(folder.absolute()))
    for file in options.case_file:
        yield from ("--case-file", str(file.absolute()))
    if options.chips:
        yield from ("--chips", str(options.chips.absolute()))
    if options.compile:
        yield "--compile"


def rows_to_rehearse(found: LayoutRanking, options: argparse.Namespace) -> Sequence[LayoutEstimate]:
    """Return the first rows; of an asked layout also one that does not fit. Raises UsageError where there is none."""
    rows = found.rows or (found.beyond if options.layout else ())
    if not rows:
        raise UsageError(
            "--rehearse: no layout fits, so there is no row to rehearse; --layout rehearses one all the same"
        )
    return rows[: options.rehearse]


def rehearse_rows(rehearser: Rehearser, rows: Sequence[LayoutEstimate], done: list[Rehearsed]) -> None:
    """Rehearse the rows and say on stderr how far it is. `done` gets each one at its end, also before an interrupt."""
    say = Terminal(quiet=False).say
    with interrupted_once():
        for number, row in enumerate(rows, 1):
            which = f"row {number} of {len(rows)}"
            say(f"{which}: rehearsing {row.layout}, micro-batch {row.tuning.micro_batch}, {row.tuning.recompute} again")
            found = rehearser.rehearse(row, partial(_say_of, say, which))
            say(f"{which}: {'failed' if found.why else 'done'} after {found.seconds:.0f} s")
            done.append(Rehearsed(number, row, found))


def _say_of(say: Callable[[str], None], which: str, text: str) -> None:
    say(f"{which}: {text}")


def lines_of(done: Sequence[Rehearsed]) -> Iterator[str]:
    """Yield the table in lines of 80 columns."""
    yield ""
    yield "measured without the device: GiB of the fullest rank that was rehearsed"
    yield f"{'row':>3} {'layout':<26} {'planned':>7} {'allocated':>9} {'reserved':>8} {'failed':>6} {'flushes':>7}"
    for number, row, found in done:
        if found.why:
            yield wrapped(f"{number:>3} {row.layout!s:<26} {_gib(found.planned_bytes):>7} failed: {found.why}", 4)
            continue
        yield (
            f"{number:>3} {row.layout!s:<26} {_gib(found.planned_bytes):>7} {_gib(found.allocated_bytes):>9} "
            f"{_gib(found.reserved_bytes):>8} {found.failed_allocations:>6} {found.flushes:>7}"
        )
    yield ""
    for number, _, found in done:
        yield from (wrapped(f"row {number}: FINDING: {said}", 2) for said in found.findings)
        yield from _compiled(number, found)
    yield wrapped(
        "planned: without the reserve of the process; allocated, reserved: peaks of torch's allocator; failed: "
        "allocations; flushes: of its cache, in the last step. The framework and the training are real, the device is "
        "pretended: nothing here is a speed. docs/planner.md says more",
        0,
    )


def _compiled(number: int, found: RowRehearsal) -> Iterator[str]:
    if found.graph_breaks is None:
        return
    many = sum(found.graph_breaks.values())
    breaks = f"{many} graph break{'s' if many > 1 else ''}" if many else "no graph break"
    yield f"row {number} compiled: {found.kernels_a_layer:,.1f} kernels a layer, {breaks}"
    yield from (wrapped(f"  {times} x {why}", 4) for why, times in found.graph_breaks.items())


def _gib(size: int | None) -> str:
    return NONE if size is None else f"{size / GIB:.2f}"


def content_of(done: Sequence[Rehearsed]) -> list[dict[str, object]]:
    """Return the same figures, for `--json`."""
    return [
        {
            "row": number,
            "layout": str(row.layout),
            "micro_batch": row.tuning.micro_batch,
            "virtual_pipeline": row.tuning.virtual_pipeline,
            "recompute": row.tuning.recompute,
            **asdict(found),
        }
        for number, row, found in done
    ]


def exit_code(done: Sequence[Rehearsed]) -> int:
    """Return 3 where a row did not run to its end, 4 where one has findings, else 0."""
    if any(found.why for _, _, found in done):
        return RunFailed.exit_code
    return GateFailed.exit_code if any(found.findings for _, _, found in done) else 0
