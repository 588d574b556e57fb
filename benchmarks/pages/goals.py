"""What the planner is held to: on runs that set no rate, and on programs without their own runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from levelfield.catalog.registry import Registry
from levelfield.specs.constants import RATES
from pages.own_bound import bound_words, bounded
from pages.own_runs import own_runs
from pages.points import halves, memory, memory_off, points_of
from pages.program_fit import covered, timed_points, timed_runs, without_own
from pages.unseen import (
    DESCRIPTION,
    RUNS,
    Judged,
    OwnQuestions,
    Questions,
    Run,
    judged,
    runs_of,
    spread,
    sweeps_of,
)

REGRET = 0.10
CONSTANTS_BEFORE = 29  # of speed, when each program, framework and kernel of attention had its own
TAU = 0.75


@dataclass(frozen=True)
class Goal:
    """A figure: its name, what was found in words, what is wanted, whether it is met."""

    name: str
    found: str
    wanted: str
    met: bool


def goals(registry: Registry) -> list[Goal]:
    """Return every figure, that of an unknown program first."""
    runs = runs_of(RUNS)
    described = judged(runs, Questions(registry))
    rows = timed_runs(runs, Questions(registry)) + timed_points(registry)
    found = without_own(rows)
    alone = [math.exp(off) - 1 for _, off in found]
    return [
        _errors("a program whose runs set no rate (each without its own)", alone, 0.10, 0.25),
        _errors("programs as described", [math.exp(row.off({})) - 1 for row in rows if not row.fitted], 0.10, 0.25),
        _errors(
            "own constants, which default plans use, on rows of other programs",
            _own_constants(runs, registry),
            0.10,
            0.25,
        ),
        _errors("own constants on models/*, as chips ran it", [run.off for run in own_runs()], 0.10, 0.25),
        _errors("memory", _memory(registry, described), 0.05, 0.15),
        _own(registry),
        *_sweeps(described),
        _coverage([off for row, off in found if not row.fitted]),
        _constants(),
    ]


def _own_constants(runs: Iterable[Run], registry: Registry) -> list[float | None]:
    """Return the errors of the held half where nothing is said of the published program."""
    return _held(judged([run for run in runs if not run.fitted], OwnQuestions(registry)))


def _constants() -> Goal:
    found = f"{len(RATES)} of speed, {CONSTANTS_BEFORE} before"
    return Goal("fitted constants", found, "fewer than before", len(RATES) < CONSTANTS_BEFORE)


def _own(registry: Registry) -> Goal:
    """Return whether any plan of models/* is faster than what a rehearsal counted can be."""
    found = bounded(registry)
    return Goal(
        "models/*: planned time over its bound", bound_words(found), "1 or more", all(each.holds for each in found)
    )


def by_description(registry: Registry) -> Iterator[tuple[str, int, float, float]]:
    """Yield the errors of the held half by a framework's own constants, with ever more said of the published program:
    what is known, rows, the middle, the 90th percentile. The rates are the same throughout."""
    runs, known = [run for run in runs_of(RUNS) if not run.fitted], list[str]()
    for name, fields in DESCRIPTION:
        known += fields
        yield name, *spread(_held(judged(runs, OwnQuestions(registry, known))))


def _coverage(offs: list[float]) -> Goal:
    share = covered(offs)
    found = f"{share:.0%} of {len(offs)} rows of the half that sets nothing"
    return Goal("rows within the interval of an unknown program", found, "80 to 95%", 0.8 <= share <= 0.95)


def _errors(name: str, errors: Iterable[float | None], middle: float, high: float) -> Goal:
    count, median, p90 = spread(errors)
    found = f"{median:.1%} in the middle, {p90:.1%} at p90, of {count} rows"
    return Goal(name, found, f"{middle:.0%}, {high:.0%}", median <= middle and p90 <= high)


def _held(found: Iterable[Judged]) -> list[float | None]:
    return [j.speed_off for j in found if not j.run.fitted]


def _memory(registry: Registry, described: Iterable[Judged]) -> list[float | None]:
    """Return the errors of memory of the held half, of both sets of published rows."""
    points = [p for p in points_of(registry)[0] if p.memory_bytes and p.left_out is None]
    half = {id(p) for name in {p.framework for p in points} for p in halves(points, name, memory)}
    held = [math.exp(memory_off(p, p.question.constants)) - 1 for p in points if id(p) not in half]
    return [*held, *(j.memory_off for j in described if not j.run.fitted)]


def _sweeps(found: Iterable[Judged]) -> Iterator[Goal]:
    sweeps = sweeps_of(found)
    ran, near = sum(s.first_ran for s in sweeps), sum(s.first_ran and s.regret <= REGRET for s in sweeps)
    yield Goal("the first-ranked layout ran", f"in {ran} of {len(sweeps)} sweeps", "all", ran == len(sweeps))
    share = near / len(sweeps)
    yield Goal("it is within 10 % of the best", f"in {near} of {len(sweeps)} sweeps", "80%", share >= 0.8)
    tau = statistics.median(s.tau for s in sweeps if s.tau is not None)
    yield Goal("order of the layouts (Kendall's tau)", f"{tau:.2f} in the middle", f"{TAU}", tau >= TAU)


def goals_lines(found: list[Goal]) -> Iterator[str]:
    for goal in found:
        yield f"{'met   ' if goal.met else 'MISSED'} {goal.name}: {goal.found} (wanted: {goal.wanted})"


def goals_table(found: list[Goal]) -> Iterator[str]:
    yield "| figure | found | wanted | |"
    yield "|---|---|---|---|"
    for goal in found:
        yield f"| {goal.name} | {goal.found} | {goal.wanted} | {'met' if goal.met else '**missed**'} |"
