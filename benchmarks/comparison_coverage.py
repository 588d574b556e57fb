#!/usr/bin/env python3
"""How often the interval of `compare` covers the true ratio, and how often identical pairs are called different.

Seeded runs with noise between them, normal or with heavy tails (Student's t with 3 degrees of freedom, log-normal
one-sided), with equal and unequal noise and numbers of runs. Beside it: Welch's interval without the rounding and the
cap, and a bootstrap over the steps of one run a side. Percent with 95 % intervals of the simulation itself.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from levelfield.compare.ratios import T_QUANTILES, SideValues, compute_ratio

Draw = Callable[[np.random.Generator, int], np.ndarray]
NOISE: dict[str, Draw] = {
    "normal": lambda random, n: random.standard_normal(n),
    "Student t, 3": lambda random, n: random.standard_t(3, n) / math.sqrt(3),
    "one-sided": lambda random, n: (np.exp(random.normal(0, 0.8, n)) - math.exp(0.32)) / 1.30,
}
COUNTS = ((3, 3), (3, 5), (3, 10), (3, 30), (5, 5), (10, 10))
DEVIATIONS = ((0.01, 0.01), (0.01, 0.03), (0.03, 0.01))
STEPS, STEP_DEVIATION, BETWEEN = 30, 0.01, 0.007


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of each cell (default %(default)s)")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(50 if arguments.quick else arguments.pairs, arguments.seed)
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))


def measure(pairs: int, seed: int) -> list[dict[str, object]]:
    """Return the share of identical pairs that each rule calls different, by noise and numbers of runs."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, object]] = [
        {
            "noise": name,
            "runs": f"{counts[0]} and {counts[1]}",
            "deviations": f"{of[0]:.0%} and {of[1]:.0%}",
            "compare": shares(called(random, draw, counts, of, pairs, compare_rule), pairs),
            "plain Welch": shares(called(random, draw, counts, of, pairs, plain_welch), pairs),
        }
        for name, draw in NOISE.items()
        for counts in COUNTS
        for of in DEVIATIONS
    ]
    bootstrap = sum(steps_differ(random) for _ in range(max(20, pairs // 20)))
    last = {"noise": "steps of one run", "runs": "1 and 1", "deviations": f"{BETWEEN:.1%} between runs"}
    return [*rows, {**last, "bootstrap": shares(bootstrap, max(20, pairs // 20))}]


def called(random: np.random.Generator, draw: Draw, counts: tuple[int, int], of: tuple[float, float], pairs: int,
           differ: Callable[[np.ndarray, np.ndarray], bool]) -> int:  # fmt: skip
    """Return how many of the identical pairs the rule calls different: 1 less the coverage of its interval."""
    sides = ([deviation * draw(random, n) for n, deviation in zip(counts, of, strict=True)] for _ in range(pairs))
    return sum(differ(one, two) for one, two in sides)


def compare_rule(one: np.ndarray, two: np.ndarray) -> bool:
    comparison = compute_ratio(SideValues(tuple(100 * np.exp(one))), SideValues(tuple(100 * np.exp(two))))
    return comparison.standing in ("higher", "lower")


def plain_welch(one: np.ndarray, two: np.ndarray) -> bool:
    """Welch with the quantile between two table rows, and no cap."""
    parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in (one, two)]
    both = sum(variance for variance, _ in parts)
    freedom = both**2 / sum(variance**2 / freedom_of_side for variance, freedom_of_side in parts)
    quantile = float(np.interp(freedom, list(T_QUANTILES), list(T_QUANTILES.values())))
    return bool(abs(one.mean() - two.mean()) > quantile * math.sqrt(both))


def steps_differ(random: np.random.Generator) -> bool:
    """A 95 % bootstrap over the steps of one run a side, of runs with one true speed."""
    sides = [random.normal(random.normal(0, BETWEEN), STEP_DEVIATION, STEPS) for _ in range(2)]
    means = [side[random.integers(0, STEPS, (1000, STEPS))].mean(axis=1) for side in sides]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return bool(low > 0 or high < 0)


def shares(count: int, pairs: int) -> tuple[float, float, float]:
    """Return the share in percent with its 95 % interval (Wilson, 1927)."""
    share, z = count / pairs, 1.96
    middle, below = (share + z * z / (2 * pairs)), 1 + z * z / pairs
    half = z * math.sqrt(share * (1 - share) / pairs + z * z / (4 * pairs**2))
    return round(100 * share, 2), round(100 * (middle - half) / below, 2), round(100 * (middle + half) / below, 2)


def text(figures: list[dict[str, Any]]) -> str:
    lines = ["identical pairs called different, percent; promised at most 5 with normal noise", ""]
    for row in figures:
        rules = [name for name in ("compare", "plain Welch", "bootstrap") if name in row]
        shares_text = "  ".join("{} {:5.2f} [{:.2f}, {:.2f}]".format(name, *row[name]) for name in rules)
        lines.append(f"{row['noise']:<16} {row['runs']:<10} {row['deviations']:<18} {shares_text}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
