"""False alarms and power of the limits, on recorded differences of a small GPT and a small Llama from torch's.

    .venvs/dev/bin/python tools/limit_rates.py

Limits are learned on random rows, and every other row is a run to be judged: a false alarm where it exceeds them. The
rows are honest: other layouts, micro-batches, recomputation and frameworks. The faults are those of
tools/faults/in_torch.py in torch. `tools/record_noise.py` recorded both.
"""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.measure.alignment import AlignmentLimits, Limit, Place, limit_of_place
from levelfield.measure.calibration import Noise, PlaceValues, merge_noise, tolerance_limits

DATA = Path(__file__).parent / "data" / "noise_rows.json"
ROWS, DRAWS = (2, 4, 6, 9), 200


class Rates(NamedTuple):
    """(false alarms, runs) of kinds that the rows have, of other kinds, and by the former rule; (seen, faults)."""

    same_kind: tuple[int, int]
    other_kinds: tuple[int, int]
    former: tuple[int, int]
    faults: tuple[int, int]


def recorded(family: str) -> tuple[list[Noise], dict[str, Noise]]:
    """Return the honest rows that count, and the faults by name."""
    family_rows = [row for row in json.loads(DATA.read_text()) if row["family"] == family]
    honest = merge_noise(_noise(row) for row in family_rows if not row["fault"])
    return [row for row in honest if any(row.curve.values())], {r["name"]: _noise(r) for r in family_rows if r["fault"]}


def rates(family: str, rows: int, draws: int = DRAWS) -> Rates:
    honest, faults = recorded(family)
    draw = random.Random(rows)
    same_kind, other_kinds, former, seen = ([0, 0] for _ in range(4))
    for _ in range(draws):
        learned = draw.sample(honest, rows)
        limits, maxima = tolerance_limits(learned, ""), four_times_the_largest(learned)
        for run in honest:
            if run in learned:
                continue
            place = same_kind if run.kind in {row.kind for row in learned} else other_kinds
            _count(place, exceeds(run, limits))
            _count(former, exceeds(run._replace(weights=None), maxima))
        for fault in faults.values():
            _count(seen, exceeds(fault, limits))
    return Rates(*((hits, runs) for hits, runs in (same_kind, other_kinds, former, seen)))


def exceeds(run: Noise, limits: AlignmentLimits) -> bool:
    """Whether a difference of the run is beyond its limit."""
    parts: tuple[tuple[PlaceValues | None, Limit | None], ...] = (
        ({None: run.first_step}, limits.first_step),
        (run.gradient, limits.gradient),
        (run.curve, limits.curve),
        (run.weights, limits.weights),
    )
    return any(
        not value <= limit_of_place(limit, place)
        for differences, limit in parts
        if differences is not None and limit is not None
        for place, value in differences.items()
    )


def four_times_the_largest(rows: list[Noise]) -> AlignmentLimits:
    """The rule that was used before: one number for each layer."""
    first_step, gradient, curve = (
        max(4 * max(differences), 4 * 2**-23)
        for differences in (
            [row.first_step for row in rows],
            [value for row in rows for value in (row.gradient or {}).values()],
            [value for row in rows for value in row.curve.values()],
        )
    )
    return AlignmentLimits(first_step, gradient, curve, "four times the largest")


def _count(counter: list[int], hit: bool) -> None:
    counter[0] += hit
    counter[1] += 1


def _noise(row: Mapping[str, Any]) -> Noise:
    gradient: dict[Place, float] = {
        (int(step), group): v for step, groups in row["gradients"].items() for group, v in groups.items()
    }
    weights: dict[Place, float] = {
        (group, figure): v for group, figures in row["weights"].items() for figure, v in figures.items()
    }
    curve: dict[Place, float] = dict(enumerate(row["losses"], start=1))
    return Noise(row["first_step"], gradient, curve, weights, kind=row["kind"], setting=row["name"])


def _share(pair: tuple[int, int]) -> str:
    return f"{pair[0] / pair[1]:.1%} of {pair[1]:,}" if pair[1] else "none"


def main() -> None:
    for family in ("gpt", "llama"):
        honest, faults = recorded(family)
        print(f"\n{family}: {len(honest)} different rows, {len(faults)} faults\n")
        print(
            "| rows | false alarms, kinds with rows | other kinds | former rule | faults seen |\n|---|---|---|---|---|"
        )
        for rows in ROWS:
            print(f"| {rows} | " + " | ".join(map(_share, rates(family, rows))) + " |")


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
