"""How far the planned ratio of two chips is from the published one, where one program trained one dense model on both.

Each chip counts by its fastest published row, in whatever layout that was, as a user would choose it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from levelfield.catalog.lookup import find_chip
from levelfield.catalog.registry import Registry
from levelfield.specs.constants import SPEED_VENDORS
from pages.unseen import LIKE, RECENT_RUNS, RUNS, Judged, Questions, judged, runs_of, spread


@dataclass(frozen=True)
class ChipRatio:
    """Two fastest rows of one program, model, precision, sequence and number of devices, on two chips."""

    one: Judged
    other: Judged

    @property
    def published(self) -> float:
        return (self.one.run.rate or 0) / (self.other.run.rate or 1)

    @property
    def planned(self) -> float:
        return self.one.estimate.tokens_per_second / self.other.estimate.tokens_per_second

    @property
    def off(self) -> float:
        return self.planned / self.published - 1


def chip_ratios(registry: Registry) -> list[ChipRatio]:
    """Return every pair of chips, by the programs as described."""
    found = [j for path in (RUNS, RECENT_RUNS) for j in judged(runs_of(path), Questions(registry))]
    fastest: dict[tuple[object, ...], dict[str, Judged]] = defaultdict(dict)
    for j in found:
        if j.speed_off is not None and j.run.row["model_settings"].get("experts") is None:
            run, row = j.run, j.run.row
            work = (run.program, run.framework, run.model, run.devices, row["sequence_length"], row["precision"])
            chips = fastest[work]
            chips[row["chip"]] = max(chips.get(row["chip"], j), j, key=lambda each: each.run.rate or 0)
    return [
        ChipRatio(chips[one], chips[other])
        for chips in fastest.values()
        for one, other in combinations(sorted(chips), 2)
    ]


def ratio_spread(found: Iterable[ChipRatio], registry: Registry) -> tuple[int, float, float]:
    """Return the number of pairs on chips whose makers' runs set rates, the median of their errors, and the 90th
    percentile: what `plan` prints."""
    return spread(each.off for each in found if all(maker in SPEED_VENDORS for maker in _makers(each, registry)))


def _makers(each: ChipRatio, registry: Registry) -> list[str]:
    chips = [side.run.row["chip"] for side in (each.one, each.other)]
    return [find_chip(registry, LIKE.get(chip, (chip,))[0])[0].name for chip in chips]


def ratio_lines(found: list[ChipRatio]) -> Iterator[str]:
    count, middle, high = ratio_spread(found, Registry())
    makers = " and ".join(SPEED_VENDORS)
    yield from [
        "## Two chips by one program",
        "",
        "`plan --chip A,B` divides two predictions. Where one program trained one dense model on two chips, equal in",
        "precision, sequence and number of devices, each chip counts by its fastest published row. The planned ratio",
        f"is off by {middle:.0%} in the middle and {high:.0%} at p90, of {count} pairs on chips of {makers}.",
        f"Of the {len(found)} pairs here the others have a chip of another maker, whose runs set no rate.",
        "",
        "| program | model | devices | sequence | precision | chips | published | planned | off |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_ratio_line, found),
    ]


def _ratio_line(each: ChipRatio) -> str:
    run, row = each.one.run, each.one.run.row
    chips = f"{row['chip']} / {each.other.run.row['chip']}"
    cells = (run.program, run.model, run.devices, row["sequence_length"], row["precision"], chips)
    return f"| {' | '.join(map(str, cells))} | {each.published:.2f} | {each.planned:.2f} | {each.off:+.0%} |"
