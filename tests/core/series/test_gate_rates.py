"""The rates that docs/gate.md promises, on a small sample of the simulation in benchmarks/gate_power.py."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from plans import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gate_rules.ours import judged_nights
from gate_rules.peers import PEERS
from gate_rules.worlds import WorldKind, simulated

HISTORY = 40


def words(kind: WorldKind, series: int, nights: int, has_pairs: bool = True, seed: int = 4) -> list[list[str]]:
    random = np.random.default_rng(seed)
    world = simulated(kind, series, HISTORY + nights, random)
    return [[night.word for night in judged_nights(world, i, HISTORY, random, has_pairs)] for i in range(series)]


@pytest.mark.parametrize("tail", [None, 3])
@pytest.mark.parametrize("deviation", [0.005, 0.02])
def test_nights_without_a_change_raise_no_alarm(deviation: float, tail: int | None) -> None:
    found = [word for row in words(WorldKind(deviation, True, tail), 25, 40) for word in row]
    assert len(found) == 1000 and found.count("regression") == 0 and found.count("environment step") == 0
    assert found.count("no change") > 880 and found.count("improvement") < 10


@pytest.mark.parametrize(
    ("deviation", "shift", "first", "three"),
    [
        (0.005, 0.02, 0.75, 0.95),
        (0.01, 0.02, 0.1, 0.45),
        (0.01, 0.05, 0.9, 0.98),
        (0.02, 0.05, 0.3, 0.7),
        (0.02, 0.10, 0.9, 0.98),
    ],
)
def test_a_change_is_found_as_often_as_stated(deviation: float, shift: float, first: float, three: float) -> None:
    found = words(WorldKind(deviation, True, shift=shift), 80, 3)
    assert sum(row[0] == "regression" for row in found) / 80 >= first
    assert sum("regression" in row for row in found) / 80 >= three


@pytest.mark.parametrize("kind", ["night", "run"])
def test_a_bad_night_is_no_regression(kind: str) -> None:
    found = [row[0] for row in words(WorldKind(0.01, True, bad_at_start=kind), 100, 1)]
    assert found.count("regression") == 0
    assert (found.count("bad night") > 70) == (kind == "night")


def test_the_fallback_waits_for_the_second_night_and_takes_no_bad_night_for_a_regression() -> None:
    found = words(WorldKind(0.01, True, shift=0.05), 60, 3, has_pairs=False)
    assert sum(row[0] == "regression" for row in found) <= 4
    assert sum("regression" in row for row in found) / 60 >= 0.7
    bad = [row[0] for row in words(WorldKind(0.01, True, bad_at_start="night"), 60, 1, has_pairs=False)]
    assert bad.count("regression") <= 3


def test_the_simulation_is_what_it_says() -> None:
    random = np.random.default_rng(1)
    quiet = simulated(WorldKind(0.02, False), 400, 60, random)
    assert quiet.observed.std() == pytest.approx(0.02, rel=0.05)
    shared = quiet.shared
    neighbours = np.corrcoef(shared[:, 20:-1].ravel(), shared[:, 21:].ravel())[0, 1]
    assert neighbours == pytest.approx(0.5, abs=0.05)
    pairs = np.log(np.array([quiet.pairs(i, 50, 7, random) for i in range(400)]))
    assert (pairs[:, :, 1] - pairs[:, :, 0]).std() == pytest.approx(0.02, rel=0.05)
    changed = simulated(WorldKind(0.02, False, shift=0.05), 2, 60, random).change
    assert changed[39] == 0 and np.exp(changed[40]) == pytest.approx(1.05)
    tails = simulated(WorldKind(0.02, False, 3), 400, 60, random).observed
    assert np.abs(tails).max() > 6 * 0.02, "heavier than normal"


def test_the_peers_rules_find_what_they_say_and_no_less() -> None:
    steady = np.ones((1, 60)) + 1e-4 * np.sin(np.arange(60))
    for name, rule in PEERS.items():
        assert not rule(steady, 59)[0], name
        tripled = steady.copy()
        tripled[:, 58:] *= 3.0
        caught = rule(tripled, 58)[0] or rule(tripled, 59)[0]
        assert caught, name
