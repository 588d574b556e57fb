"""The fit of the rates of all programs, on half of the published runs, and each program predicted without its own runs.

The fit moves one rate after another, within the ranges given here, to the least mean of absolute logarithms of
predicted over published speeds. An error above CUT counts as CUT, so that one odd row moves nothing, and a program
counts by the root of its number of rows, so that a large table does not outweigh the others.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.predict.machines import MachineRates
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.predict.timing import predicted_step
from levelfield.specs import constants as constants_file
from levelfield.specs.constants import FITTED_FIELDS, SPEED_VENDORS, Pace
from pages.points import Point, halves, points_of, throughput
from pages.unseen import RECENT_RUNS, RUNS, Questions, Run, runs_of

CUT = 0.5
# The range of each rate.
RANGES = {
    "matmul_efficiency": (0.6, 1.15),
    "memory_efficiency": (0.3, 1),
    "network_efficiency": (0.2, 1),
    "launch_seconds": (1e-6, 6e-5),
}
# Runs that stay out of every fit, by group, with the reason.
LEFT_OUT = {
    "aa_13B_2048_64|flash_attention2": (
        "from micro-batch 1 to 8 its rows of two stages lose 39 %, as with a global batch of 256; 2048 was inferred"
    ),
}
# How the names begin of programs that are one publication's; each other program is a family of its own.
FAMILIES = ("aleph_alpha", "llm_foundry", "nemo", "torchtitan")
Rates = dict[str, float]
# The mean error of a family's rows by its name and rates: fits without one family compute those of the others alike.
Means = dict[tuple[object, ...], float]


@dataclass(frozen=True)
class Timed:
    """A published speed beside what predicts it. family: the programs of one publication; fitted: it may set the rates;
    kind: dense or mixture. name, chip, program: as published."""

    name: str
    family: str
    program: str
    chip: str
    kind: str
    fitted: bool
    setup: TrainingSetup
    machine: MachineRates
    pace: Pace
    tokens: float
    rate: float

    def off(self, rates: Rates) -> float:
        """Return the logarithm of the predicted over the published rate."""
        time = predicted_step(self.setup, self.machine, self.pace.model_copy(update=rates)).total
        return math.log(self.tokens / time / self.rate)


def timed_runs(runs: Iterable[Run], questions: Questions) -> list[Timed]:
    """Return the runs whose speed counts."""
    return [_timed_run(run, questions) for run in runs if run.rate and run.speed_stated and run.group not in LEFT_OUT]


def fit_rows(registry: Registry) -> list[Timed]:
    """Return all rows of the fit and those that are held out of it: of the recent runs those of dense models, as parts
    of mixtures are not modelled, on chips of vendors whose programs are described."""
    questions = Questions(registry)
    recent = [run for run in runs_of(RECENT_RUNS) if not run.is_mixture]
    recent = [run for run in recent if find_chip(registry, run.listed_chip)[0].name in SPEED_VENDORS]
    return [*timed_runs([*runs_of(RUNS), *recent], questions), *timed_points(registry)]


def _timed_run(run: Run, questions: Questions) -> Timed:
    question = questions.question(run)
    programs = questions.constants_with_programs(run.framework).programs
    program = run.program if run.program in programs else run.framework
    return Timed(
        name=run.name,
        family=next((family for family in FAMILIES if program.startswith(family)), program),
        program=program,
        chip=run.row["chip"],
        kind="mixture" if question.work.model.experts else "dense",
        fitted=run.fitted,
        setup=training_setup(question.work, run.tuning, False, question.constants.keeping),
        machine=question.machine,
        pace=question.constants.pace,
        tokens=question.work.training.tokens_per_step / run.devices,
        rate=run.rate or math.nan,
    )


def timed_points(registry: Registry) -> list[Timed]:
    """Return the rows of configs/published whose speed counts."""
    points, _ = points_of(registry)
    frameworks = sorted({p.framework for p in points})
    half = {id(p) for name in frameworks for p in halves(points, name, throughput)}
    return [_timed_point(p, id(p) in half) for p in points if p.tokens_per_second and p.left_out is None]


def _timed_point(point: Point, fitted: bool) -> Timed:
    question, setting = (
        replace(point.question, constants=point.stated_constants(point.question.constants)),
        point.row.setting,
    )
    return Timed(
        name=point.row.name,
        family=point.set_name,
        program=point.framework,
        chip=setting.chip or "",
        kind="dense",
        fitted=fitted,
        setup=training_setup(question.work, point.tuning, False, question.constants.keeping),
        machine=question.machine,
        pace=question.constants.pace,
        tokens=question.work.training.tokens_per_step / setting.devices,
        rate=point.tokens_per_second or math.nan,
    )


def fitted_rates(rows: Iterable[Timed], steps: float = 0.01, means: Means | None = None) -> Rates:
    """Return the rates that fit the rows best. The search starts in the middle of each range, so that it always ends at
    the same place: one rate moves at a time, by a share of its range's ratio that halves when no move helps.

    means: what fits with the same rows of each family have computed.
    """
    cases: dict[str, list[Timed]] = {}
    for row in rows:
        cases.setdefault(row.family, []).append(row)
    means = {} if means is None else means
    rates = {name: float(f"{math.sqrt(low * high):.3g}") for name, (low, high) in RANGES.items()}
    best, step = _loss(cases, rates, means), 0.25
    while step > steps:
        before = best
        for name in RANGES:
            for sign in (1, -1):
                rates, best = _moved(cases, name, sign * step, rates, best, means)
        if best > before - 1e-4:
            step /= 2
    return rates


def _moved(
    cases: dict[str, list[Timed]], name: str, step: float, rates: Rates, best: float, means: Means
) -> tuple[Rates, float]:
    low, high = RANGES[name]
    while True:
        value = min(high, max(low, rates[name] * (high / low) ** (step / 2)))
        changed = {**rates, name: float(f"{value:.3g}")}
        if changed[name] == rates[name] or not (loss := _loss(cases, changed, means)) < best - 1e-5:
            return rates, best
        rates, best = changed, loss


def _loss(cases: dict[str, list[Timed]], rates: Rates, means: Means) -> float:
    for family, rows in cases.items():
        key = (family, *rates.values())
        if key not in means:
            means[key] = statistics.mean(min(CUT, abs(row.off(rates))) for row in rows)
    weights = {family: math.sqrt(len(rows)) for family, rows in cases.items()}
    weighted = (weight * means[(family, *rates.values())] for family, weight in weights.items())
    return sum(weighted) / sum(weights.values())


def without_own(rows: list[Timed]) -> list[tuple[Timed, float]]:
    """Return each row with its logarithm by the rates that its program's rows did not set."""
    errors = []
    means: Means = {}
    for name in sorted({row.family for row in rows}):
        rates = fitted_rates((row for row in rows if row.fitted and row.family != name), means=means)
        errors += [(row, row.off(rates)) for row in rows if row.family == name]
    return errors


def committed_rates() -> Rates:
    """Return the rates in the platform, which are the defaults of Pace."""
    return {name: Pace.model_fields[name].default for name in FITTED_FIELDS}


def written(rates: Rates) -> tuple[Path, str]:
    """Return the file with the rates, and its text with these. All other words stay."""
    path = Path(constants_file.__file__)
    text = path.read_text()
    for name, value in rates.items():
        pattern = re.compile(rf"(\n    {name}: float = Field\(default=)[\d.e+-]+(,)")
        text, count = pattern.subn(rf"\g<1>{value:g}\g<2>", text)
        if count != 1:
            raise SystemExit(f"{path.name}: found {count} defaults of {name}, expected one")
    return path, text
