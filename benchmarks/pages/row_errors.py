"""How far plans are from published runs like them: equal in the chip's maker, the framework, precision and kind of
model. A plan takes the framework's own constants, or with --program those of a program of others."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.specs.constants import RowErrors, RowKind
from pages.unseen import (
    CONTEXT_RUNS,
    LIKE,
    MIXTURE_RUNS,
    RECENT_RUNS,
    RUNS,
    OwnQuestions,
    Questions,
    Run,
    judge_runs,
    runs_of,
)


def row_errors(registry: Registry) -> dict[RowKind, RowErrors]:
    """Return the errors of the runs that set no rate, by their kind."""
    offs: dict[RowKind, list[float]] = defaultdict(list)
    runs = [run for path in (CONTEXT_RUNS, RECENT_RUNS, MIXTURE_RUNS) for run in runs_of(path)]
    runs += [run for run in runs_of(RUNS) if not run.fitted]
    for is_program, questions in ((False, OwnQuestions(registry)), (True, Questions(registry))):
        for j in judge_runs(runs, questions):
            if j.speed_off is not None:
                offs[row_kind(j.run, registry, is_program)].append(abs(j.speed_off))
    return {kind: RowErrors(round(statistics.median(errors), 2), len(errors)) for kind, errors in sorted(offs.items())}


def row_kind(run: Run, registry: Registry, is_program: bool) -> RowKind:
    """Return the kind of a run that is planned with its program's constants, or with the framework's own."""
    row = run.row
    vendor = find_chip(registry, LIKE.get(row["chip"], (row["chip"],))[0])[0].name
    return RowKind(
        vendor, run.framework, row["precision"], row["model_settings"].get("experts") is not None, is_program
    )


def row_errors_lines(registry: Registry) -> Iterator[str]:
    yield from [
        "## Rows like a plan's",
        "",
        "The `error` of `plan --chip A,B`: the median error of published runs like the row. None of them sets a rate.",
        "",
        "| vendor, framework, precision, model | runs | own constants | of the program |",
        "|---|---|---|---|",
    ]
    errors = row_errors(registry)
    for kind, own in errors.items():
        if not kind.is_program:
            described = errors[kind._replace(is_program=True)]
            model = "MoE" if kind.is_mixture else "dense"
            name = " ".join((kind.vendor, kind.framework, kind.precision, model))
            yield f"| {name} | {own.run_count} | {own.median_error:.0%} | {described.median_error:.0%} |"
