"""configs/planner/residuals.csv: published runs that set no rate, beside their plans, and how far others may be off.

`benchmarks/planner_unseen.py --fit` writes it.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

RESIDUALS_FILE = "configs/planner/residuals.csv"
NEAREST_RUNS = 30  # of which the interval is, with all that are as near as the last of them
# Of these runs within the interval. Runs of one publication are off alike, so those of a new one are within it less
# often: docs/planner-accuracy.md has how often, with the whole publication left out.
COVERAGE = 0.94
# How far two runs are from each other, by what they differ in. 8-bit and 4-bit products need casts and scales.
DISTANCES = {"is_mixture": 8, "vendor": 4, "framework": 4, "has_16_bits": 1, "precision": 1, "chip": 1}


class RunKind(NamedTuple):
    """What a published run and a row of a plan have in common."""

    vendor: str  # of the chip
    chip: str
    framework: str
    precision: str  # of the products
    is_mixture: bool

    @property
    def has_16_bits(self) -> bool:
        """Whether the products have 16 bits or more."""
        return self.precision not in ("fp8", "nvfp4")


@dataclass(frozen=True)
class Residual:
    """A published run beside its plans: the published speed over that by the framework's own constants, and over that
    by those of the program that ran it."""

    run: str
    publication: str
    kind: RunKind
    over_framework: float
    over_program: float

    def ratio(self, is_program: bool) -> float:
        """Return the published speed over the planned one."""
        return self.over_program if is_program else self.over_framework


@dataclass(frozen=True)
class PlanError:
    """How far plans of published runs were off. low, high: the published over the planned speed, between which COVERAGE
    of the nearest runs are. nearest_runs: how many these are; vendor_runs: on chips of the vendor. same_runs: how many
    differ in the chip alone; median_error: theirs, None without any."""

    low: float
    high: float
    nearest_runs: int
    vendor_runs: int
    median_error: float | None
    same_runs: int


def read_residuals(path: Path) -> tuple[Residual, ...]:
    """Return the rows of the file; none where it is missing."""
    if not path.exists():
        return ()
    with path.open(newline="") as file:
        return tuple(
            Residual(
                row["run"],
                row["publication"],
                RunKind(row["vendor"], row["chip"], row["framework"], row["precision"], row["mixture"] == "yes"),
                float(row["over_framework"]),
                float(row["over_program"]),
            )
            for row in csv.DictReader(file)
        )


def plan_error(residuals: Sequence[Residual], kind: RunKind, is_program: bool) -> PlanError | None:
    """Return how far a plan may be off by the published runs nearest to it; None without any.

    The ends are ranks of n + 1: the next run lies between them as often as each of the n others.
    """
    if not residuals:
        return None
    distances = [(_distance(kind, residual.kind), residual) for residual in residuals]
    limit = sorted(distance for distance, _ in distances)[:NEAREST_RUNS][-1]
    nearest = [residual for distance, residual in distances if distance <= limit]
    ratios = sorted(residual.ratio(is_program) for residual in nearest)
    count, outside = len(ratios), (1 - COVERAGE) / 2
    low = max(1, math.floor(outside * (count + 1)))
    alike = [residual for _, residual in distances if residual.kind._replace(chip=kind.chip) == kind]
    errors = [abs(1 / residual.ratio(is_program) - 1) for residual in alike]
    return PlanError(
        low=ratios[low - 1],
        high=ratios[count - low],
        nearest_runs=count,
        vendor_runs=sum(residual.kind.vendor == kind.vendor for residual in nearest),
        median_error=statistics.median(errors) if errors else None,
        same_runs=len(alike),
    )


def _distance(one: RunKind, other: RunKind) -> int:
    return sum(steps for name, steps in DISTANCES.items() if getattr(one, name) != getattr(other, name))
