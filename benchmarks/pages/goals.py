"""What the planner is held to: on runs that set no rate, and on programs without their own runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from levelfield.catalog.registry import Registry
from levelfield.specs.constants import FITTED_FIELDS
from pages.own_bound import bound_words, bounded
from pages.own_runs import own_runs
from pages.points import halves, memory, memory_off, points_of
from pages.program_fit import fit_rows, without_own
from pages.row_errors import covered, covers, error_without, publication, residuals, run_kind
from pages.unseen import (
    DESCRIPTION,
    RUNS,
    Judged,
    OwnQuestions,
    Questions,
    Run,
    judge_runs,
    runs_of,
    spread,
    sweeps_of,
)

REGRET = 0.10
CONSTANTS_BEFORE = 29  # of speed, when each program, framework and kernel of attention had its own
TAU = 0.75


@dataclass(frozen=True)
class Goal:
    """An aim of the planner: its name, its figure now and its target in words, whether it is met."""

    name: str
    figure: str
    target: str
    met: bool


def goals(registry: Registry) -> list[Goal]:
    """Return every figure, that of an unknown program first."""
    runs = runs_of(RUNS)
    described = judge_runs(runs, Questions(registry))
    rows = fit_rows(registry)
    errors = without_own(rows)
    alone = [math.exp(off) - 1 for _, off in errors]
    return [
        _errors("a program whose runs set no rate", alone, 0.10, 0.25),
        _errors("programs as described", [math.exp(row.off({})) - 1 for row in rows if not row.fitted], 0.10, 0.25),
        _errors(
            "own constants (default plans) on other programs",
            _own_constants(runs, registry),
            0.10,
            0.25,
        ),
        _errors("own constants on models/* on chips", [run.off for run in own_runs()], 0.10, 0.25),
        _errors("memory", _memory(registry, described), 0.05, 0.15),
        _own_plans(registry),
        *_sweeps(described),
        _coverage("rows within the interval by other publications", covered(residuals(registry), True)),
        _coverage("the same by own constants", covered(residuals(registry), False)),
        _constants(),
    ]


def goals_of_later_runs(runs: list[Judged], registry: Registry) -> list[Goal]:
    """Return the figures of runs that no fit has used. Rows that do not state all settings count for the interval
    alone."""
    others = registry.planner_residuals
    inside = [
        covers(error_without(publication(j.run), run_kind(j.run, registry), others, True), 1 / (1 + j.rate_off))
        for j in runs
        if j.rate_off is not None
    ]
    ran = [j for j in runs if not j.run.ran_out and j.run.has_all_settings]
    fit = sum(j.estimate.fits for j in ran)
    return [
        _errors("speed", [j.speed_off for j in runs], 0.09, 0.25),
        _errors("memory", [j.memory_off for j in runs], 0.05, 0.15),
        _coverage("rows within the interval by other publications", inside),
        Goal("ran and planned to fit", f"{fit} of {len(ran)} rows", "all", fit == len(ran)),
    ]


def _own_constants(runs: Iterable[Run], registry: Registry) -> list[float | None]:
    """Return the errors of the held half where nothing is said of the published program."""
    return _held_out_errors(judge_runs([run for run in runs if not run.fitted], OwnQuestions(registry)))


def _constants() -> Goal:
    counts = f"{len(FITTED_FIELDS)} of speed, {CONSTANTS_BEFORE} before"
    return Goal("fitted constants", counts, "fewer", len(FITTED_FIELDS) < CONSTANTS_BEFORE)


def _own_plans(registry: Registry) -> Goal:
    """Return whether any plan of models/* is faster than what a rehearsal counted can be."""
    bounds = bounded(registry)
    return Goal(
        "planned time over its bound, models/*", bound_words(bounds), "1 or more", all(plan.holds for plan in bounds)
    )


def errors_by_description(registry: Registry) -> Iterator[tuple[str, int, float, float]]:
    """Yield the errors of the held half by a framework's own constants, with ever more said of the published program:
    what is known, rows, the middle, the 90th percentile. The rates are the same throughout."""
    runs, fields_so_far = [run for run in runs_of(RUNS) if not run.fitted], list[str]()
    for name, fields in DESCRIPTION:
        fields_so_far += fields
        yield name, *spread(_held_out_errors(judge_runs(runs, OwnQuestions(registry, fields_so_far))))


def _coverage(name: str, inside: list[bool]) -> Goal:
    share = sum(inside) / len(inside) if inside else math.nan
    return Goal(name, f"{share:.0%} of {len(inside)} rows", "80 to 95%", 0.8 <= share <= 0.95)


def _errors(name: str, errors: Iterable[float | None], middle: float, high: float) -> Goal:
    count, median, p90 = spread(errors)
    spread_text = f"median {median:.1%}, p90 {p90:.1%}, {count} rows"
    return Goal(name, spread_text, f"{middle:.0%}, {high:.0%}", median <= middle and p90 <= high)


def _held_out_errors(runs: Iterable[Judged]) -> list[float | None]:
    return [j.speed_off for j in runs if not j.run.fitted]


def _memory(registry: Registry, described: Iterable[Judged]) -> list[float | None]:
    """Return the errors of memory of the held half, of both sets of published rows."""
    points = [p for p in points_of(registry)[0] if p.memory_bytes and p.left_out is None]
    half = {id(p) for name in {p.framework for p in points} for p in halves(points, name, memory)}
    held_out = [math.exp(memory_off(p, p.question.constants)) - 1 for p in points if id(p) not in half]
    return [*held_out, *(j.memory_off for j in described if not j.run.fitted)]


def _sweeps(runs: Iterable[Judged]) -> Iterator[Goal]:
    sweeps = sweeps_of(runs)
    ran, near = sum(s.first_ran for s in sweeps), sum(s.first_ran and s.regret <= REGRET for s in sweeps)
    yield Goal("the first-ranked layout ran", f"in {ran} of {len(sweeps)} sweeps", "all", ran == len(sweeps))
    share = near / len(sweeps)
    yield Goal("it is within 10 % of the best", f"in {near} of {len(sweeps)} sweeps", "80%", share >= 0.8)
    tau = statistics.median(s.tau for s in sweeps if s.tau is not None)
    yield Goal("order of the layouts (Kendall's tau)", f"median {tau:.2f}", f"{TAU}", tau >= TAU)


def goals_lines(rows: list[Goal]) -> Iterator[str]:
    for goal in rows:
        yield f"{'met   ' if goal.met else 'MISSED'} {goal.name}: {goal.figure} (wanted: {goal.target})"


def goals_table(rows: list[Goal]) -> Iterator[str]:
    yield "| figure | now | target | |"
    yield "|---|---|---|---|"
    for goal in rows:
        yield f"| {goal.name} | {goal.figure} | {goal.target} | {'met' if goal.met else '**missed**'} |"
