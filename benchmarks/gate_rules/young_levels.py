#!/usr/bin/env python3
"""How often tonight's rule fires by chance on levels of few nights, and the fit of its two constants.

The nights are independent and normal, on nodes that differ. Run as a program, it prints by which multiple of the scale
one night exceeds a level that is known, on one node: simulated, and by the formula of levelfield.series.level.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (1,)]
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

import numpy as np
from gate_rules.worlds import NODE_DEVIATION
from levelfield.measure.student import normal_tail, t_quantile
from levelfield.series.level import MIN_LEVEL_NIGHTS, Level, level_of
from levelfield.series.segments import Observation
from levelfield.series.trigger import SUSPICION_Z, is_beyond

DEVIATION = 0.01  # above the floor and the least scale
NOMINAL = 2 * normal_tail(SUSPICION_Z)


def fires(nights: int, nodes: int, repeats: int, random: np.random.Generator) -> int:
    """Return how many of so many nights tonight's rule takes for beyond their level, in either direction."""
    hits = 0
    for _ in range(repeats):
        *before, tonight = _nights(nights + 1, nodes, random)
        level = level_of(before, tonight.node)
        hits += level is not None and any(is_beyond(level, tonight, direction, SUSPICION_Z) for direction in (1, -1))
    return hits


def _nights(count: int, nodes: int, random: np.random.Generator) -> list[Observation]:
    offsets, node = random.normal(0, NODE_DEVIATION, nodes), random.integers(0, nodes, count)
    costs = offsets[node] + random.normal(0, DEVIATION, count)
    return [Observation(str(i), str(i), str(node[i]), str(i), float(cost)) for i, cost in enumerate(costs)]


def multiples(nights: int, repeats: int, tails: list[float], random: np.random.Generator) -> list[tuple[float, float]]:
    """Return for each tail of a normal variable the multiple of the scale that it exceeds: simulated, and stated."""
    levels = [level for _ in range(repeats) if (level := level_of(_nights(nights, 1, random), "0"))]
    scales = np.array([level.scale for level in levels])
    ratios = np.abs(random.normal(0, DEVIATION, (100, repeats)) / scales)
    return [(float(np.quantile(ratios, 1 - 2 * tail)), _assumed_multiple(levels[0], tail)) for tail in tails]


def _assumed_multiple(level: Level, tail: float) -> float:
    return t_quantile(tail, level.freedom)


def main() -> None:
    random = np.random.default_rng(20261125)
    tails = [0.025, normal_tail(2.5), normal_tail(3.0)]
    print("| nights | tail 2.5 % | z 2.5 | z 3 |\n|---|---|---|---|")
    for nights in (MIN_LEVEL_NIGHTS, 8, 10, 12, 15, 20, 30):
        cells = [f"{needed:.2f} / {assumed:.2f}" for needed, assumed in multiples(nights, 4000, tails, random)]
        print(f"| {nights} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
