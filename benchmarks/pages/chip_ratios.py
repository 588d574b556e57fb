"""How far the planned ratio of two chips is from the published one, where one program trained one dense model on both.

Each chip counts by its fastest published row, in whatever layout that was, as a user would choose it. A pair of chips
counts once, by the median over its models, so that a large table of two chips does not stand for all.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.specs.constants import SPEED_VENDORS
from pages.unseen import LIKE, RECENT_RUNS, RUNS, Judged, OwnQuestions, Questions, judge_runs, runs_of


@dataclass(frozen=True)
class ChipRatio:
    """The fastest rows of one program, model, precision, sequence and number of devices, on two chips."""

    one: Judged
    other: Judged

    @property
    def chips(self) -> tuple[str, str]:
        return self.one.run.row["chip"], self.other.run.row["chip"]

    @property
    def published(self) -> float:
        return (self.one.run.rate or 0) / (self.other.run.rate or 1)

    @property
    def planned(self) -> float:
        return self.one.estimate.tokens_per_second / self.other.estimate.tokens_per_second

    @property
    def off(self) -> float:
        return self.planned / self.published - 1


def chip_ratios(questions: Questions) -> list[ChipRatio]:
    """Return every ratio, by the constants of these questions."""
    runs = [j for path in (RUNS, RECENT_RUNS) for j in judge_runs(runs_of(path), questions)]
    fastest: dict[tuple[object, ...], dict[str, Judged]] = defaultdict(dict)
    for j in runs:
        if j.speed_off is not None and j.run.row["model_settings"].get("experts") is None:
            run, row = j.run, j.run.row
            work = (run.program, run.framework, run.model, run.devices, row["sequence_length"], row["precision"])
            chips = fastest[work]
            chips[row["chip"]] = max(chips.get(row["chip"], j), j, key=lambda candidate: candidate.run.rate or 0)
    return [
        ChipRatio(chips[one], chips[other])
        for chips in fastest.values()
        for one, other in combinations(sorted(chips), 2)
    ]


def errors_by_chips(ratios: list[ChipRatio]) -> Mapping[tuple[str, str], float]:
    """Return the median error of each pair of chips."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ratio in ratios:
        errors[ratio.chips].append(ratio.off)
    return {chips: statistics.median(offs) for chips, offs in errors.items()}


def known_pairs(ratios: list[ChipRatio], registry: Registry) -> tuple[int, float, float]:
    """Return of the pairs on chips whose makers' runs set rates: how many, the median of their errors, the largest."""
    sizes = [
        abs(off)
        for chips, off in errors_by_chips(ratios).items()
        if all(find_chip(registry, LIKE.get(chip, (chip,))[0])[0].name in SPEED_VENDORS for chip in chips)
    ]
    return len(sizes), statistics.median(sizes), max(sizes)


def ratio_lines(registry: Registry) -> Iterator[str]:
    pairs, middle, most = known_pairs(chip_ratios(Questions(registry)), registry)
    _, own_middle, own_most = known_pairs(chip_ratios(OwnQuestions(registry)), registry)
    makers = " and ".join(SPEED_VENDORS)
    text = (
        "`plan --chip A,B` divides two predictions. Here one program trained one dense model on two chips, equal in "
        "precision, sequence and number of devices; each chip counts by its fastest published row, a pair of chips by "
        f"the median over its models. {pairs} pairs, all on chips of {makers} ([rows](data/planner_chip_ratios.csv)):"
    )
    yield from [
        "## Two chips by one program",
        "",
        *textwrap.wrap(text, 118),
        "",
        "| constants | median error of the ratio | max |",
        "|---|---|---|",
        f"| of the programs | {middle:.0%} | {most:.0%} |",
        f"| a framework's own (what `plan` prints) | {own_middle:.0%} | {own_most:.0%} |",
    ]


def ratio_rows(registry: Registry) -> Iterator[list[str]]:
    yield [
        *("program", "model", "devices", "sequence", "precision", "chip", "other_chip", "published", "planned"),
        *("off", "own_constants_off"),
    ]
    described, by_own_constants = chip_ratios(Questions(registry)), chip_ratios(OwnQuestions(registry))
    for ratio, own_ratio in zip(described, by_own_constants, strict=True):
        run, row = ratio.one.run, ratio.one.run.row
        cells = (run.program, run.model, run.devices, row["sequence_length"], row["precision"], *ratio.chips)
        offs = f"{ratio.off:+.0%}", f"{own_ratio.off:+.0%}"
        yield [*map(str, cells), f"{ratio.published:.2f}", f"{ratio.planned:.2f}", *offs]
