"""Published runs that set no rate beside their plans, and whether the interval of a plan holds for runs of a table that
is left out of it. A plan takes the framework's own constants, or with --program those of a program of others."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.specs.residuals import PlanError, Residual, RunKind, plan_error
from pages.program_fit import fit_rows
from pages.unseen import (
    CONTEXT_RUNS,
    LATER_RUNS,
    MIXTURE_RUNS,
    RECENT_RUNS,
    RUNS,
    Judged,
    OwnQuestions,
    Questions,
    Run,
    judge_runs,
    runs_of,
)

HEAD = ("run", "publication", "vendor", "chip", "framework", "precision", "mixture", "over_framework", "over_program")


def residuals(registry: Registry) -> tuple[Residual, ...]:
    """Return the runs that set no rate and state their settings, beside their plans."""
    runs = [run for path in (CONTEXT_RUNS, MIXTURE_RUNS, LATER_RUNS) for run in runs_of(path)]
    set_rates = {row.name for row in fit_rows(registry) if row.fitted}
    runs += [run for path in (RUNS, RECENT_RUNS) for run in runs_of(path) if run.name not in set_rates]
    plans = (judge_runs(runs, questions) for questions in (OwnQuestions(registry), Questions(registry)))
    return tuple(
        Residual(own.run.name, publication(own.run), run_kind(own.run, registry), _ratio(own), _ratio(described))
        for own, described in zip(*plans, strict=True)
        if own.speed_off is not None
    )


def publication(run: Run) -> str:
    """Return whose tables have the run, by the first word of its group: `bridge` of all releases of Megatron-Bridge."""
    return re.split(r"[_|]", run.group)[0]


def _ratio(judged: Judged) -> float:
    """Return the published over the planned speed, as the file has it."""
    return round(1 / (1 + (judged.speed_off or 0)), 3)


def run_kind(run: Run, registry: Registry) -> RunKind:
    vendor = find_chip(registry, run.listed_chip)[0].name
    return RunKind(vendor, run.listed_chip, run.framework, run.row["precision"], run.is_mixture)


def residuals_text(rows: Iterable[Residual]) -> str:
    """Return the file of the platform that has them."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(HEAD)
    for row in rows:
        vendor, chip, framework, precision, is_mixture = row.kind
        kind = (vendor, chip, framework, precision, "yes" if is_mixture else "no")
        writer.writerow((row.run, row.publication, *kind, row.over_framework, row.over_program))
    return written.getvalue()


def error_without(source: str, kind: RunKind, rows: Iterable[Residual], is_program: bool) -> PlanError | None:
    """Return the error of a plan by the runs of other publications than this one."""
    return plan_error([row for row in rows if row.publication != source], kind, is_program)


def covers(error: PlanError | None, ratio: float) -> bool:
    """Return whether a published speed, over its plan's, is within the plan's interval."""
    return error is not None and error.low <= ratio <= error.high


def covered(rows: tuple[Residual, ...], is_program: bool) -> list[bool]:
    """Return for each run whether it is within the interval by the runs of other publications."""
    return [covers(error_without(row.publication, row.kind, rows, is_program), row.ratio(is_program)) for row in rows]


def row_errors_lines(rows: tuple[Residual, ...]) -> Iterator[str]:
    yield from [
        "## Rows like a plan's",
        "",
        "The `error` of `plan --chip A,B`: the median error of published runs that differ in the chip alone. None sets",
        "a rate. The interval of a plan is that of its 30 nearest runs, by kind of model, vendor, framework, precision",
        "and chip; `configs/planner/residuals.csv` has all. It is tested with the whole publication of a run left out.",
        "",
        "| vendor, framework, precision, model | runs | own constants | of the program |",
        "|---|---|---|---|",
    ]
    for kind in sorted({row.kind._replace(chip="") for row in rows}):
        errors = [plan_error(rows, kind, is_program) for is_program in (False, True)]
        model = "MoE" if kind.is_mixture else "dense"
        name = " ".join((kind.vendor, kind.framework, kind.precision, model))
        own, described = (error.median_error or 0 for error in errors if error)
        yield f"| {name} | {errors[0].same_runs if errors[0] else 0} | {own:.0%} | {described:.0%} |"
