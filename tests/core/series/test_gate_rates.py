"""The rates that docs/gate.md promises, on a small sample of the simulation in benchmarks/gate_power.py."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from plans import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from gate_rules.ours import fleet_reports, judged_nights
from gate_rules.peers import PEERS
from gate_rules.worlds import Array, Nights, WorldKind, simulated
from gate_rules.young_levels import NOMINAL, fires


def words(kind: WorldKind, series: int, nights: int, has_pairs: bool = True, seed: int = 4) -> list[list[str]]:
    random = np.random.default_rng(seed)
    world = simulated(kind, series, kind.start + nights, random)
    return [[night.word for night in row] for row in judged_nights(world, random, has_pairs)]


def thorough(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


# The worst of the four: the most noise, with heavy tails.
@pytest.mark.parametrize(
    ("deviation", "tail"), [thorough(0.005, None), thorough(0.005, 3), thorough(0.02, None), (0.02, 3)]
)
def test_nights_without_a_change_raise_no_alarm(deviation: float, tail: int | None) -> None:
    seen = [word for row in words(WorldKind(deviation, True, tail), 25, 40) for word in row]
    assert len(seen) == 1000 and seen.count("regression") == 0 and seen.count("environment step") == 0
    assert seen.count("no change") > 880 and seen.count("improvement") < 10


@pytest.mark.parametrize(
    ("deviation", "shift", "first", "three"),
    [
        thorough(0.005, 0.02, 0.75, 0.95),
        (0.01, 0.02, 0.1, 0.45),
        (0.01, 0.05, 0.9, 0.98),
        thorough(0.02, 0.05, 0.3, 0.7),
        thorough(0.02, 0.10, 0.9, 0.98),
    ],
)
def test_a_change_is_found_as_often_as_stated(deviation: float, shift: float, first: float, three: float) -> None:
    seen = words(WorldKind(deviation, True, shift=shift), 80, 3)
    assert sum(row[0] == "regression" for row in seen) / 80 >= first
    assert sum("regression" in row for row in seen) / 80 >= three


@pytest.mark.parametrize("kind", ["night", "run"])
def test_a_bad_night_is_no_regression(kind: Literal["night", "run"]) -> None:
    seen = [row[0] for row in words(WorldKind(0.01, True, bad_at_start=kind), 100, 1)]
    assert seen.count("regression") == 0
    assert (seen.count("bad night") > 70) == (kind == "night")


def test_the_fallback_waits_for_the_second_night_and_takes_no_bad_night_for_a_regression() -> None:
    seen = words(WorldKind(0.01, True, shift=0.05), 60, 3, has_pairs=False)
    assert sum(row[0] == "regression" for row in seen) <= 4
    assert sum("regression" in row for row in seen) / 60 >= 0.7
    bad = [row[0] for row in words(WorldKind(0.01, True, bad_at_start="night"), 60, 1, has_pairs=False)]
    assert bad.count("regression") <= 3


@pytest.mark.parametrize(("kind", "in_first", "in_all"), [
    thorough(WorldKind(0.01, True, shift=0.03, start=15), 8, 27),
    thorough(WorldKind(0.01, True, shift=0.03, start=15, is_accepted=True), 8, 28),
    thorough(WorldKind(0.01, True, shift=0.03, start=7), 10, 25),
])  # fmt: skip
def test_what_the_first_night_does_not_find_is_found_later_and_stays(
    kind: WorldKind, in_first: int, in_all: int
) -> None:
    """With or without an accepted level: A of the pairs is not a night that has the regression itself."""
    seen = words(kind, 30, 25)
    assert in_first <= sum(row[0] == "regression" for row in seen) < in_all - 3
    regressed = [row for row in seen if "regression" in row]
    assert len(regressed) >= in_all
    stay = [row for row in regressed if set(row[row.index("regression") :]) == {"regression"}]
    assert len(stay) == len(regressed), "nights in which pairs do not decide keep the word"


def test_a_fall_of_five_percent_after_seven_nights_is_found_within_three_nights_and_stays() -> None:
    seen = words(WorldKind(0.01, True, shift=0.05, start=7), 40, 6)
    regressed = [row for row in seen if "regression" in row[:3]]
    assert len(regressed) >= 38
    assert all(set(row[row.index("regression") :]) == {"regression"} for row in regressed)


def test_a_fall_from_a_gain_that_nobody_accepted_is_found() -> None:
    seen = words(WorldKind(0.01, True, shift=-0.05, lasts=15), 30, 18)
    assert not any("regression" in row[:15] for row in seen)
    assert sum("regression" in row[15:] for row in seen) >= 24


def test_the_simulation_is_what_it_says() -> None:
    random = np.random.default_rng(1)
    quiet = simulated(WorldKind(0.02, False), 400, 60, random)
    assert quiet.observed.std() == pytest.approx(0.02, rel=0.05)
    shared = quiet.shared
    neighbours = np.corrcoef(shared[:, 20:-1].ravel(), shared[:, 21:].ravel())[0, 1]
    assert neighbours == pytest.approx(0.5, abs=0.05)
    pairs = np.log(np.array([quiet.pairs(i, 50, (0, 50), 7, random) for i in range(400)]))
    assert (pairs[:, :, 1] - pairs[:, :, 0]).std() == pytest.approx(0.02, rel=0.05)
    changed = simulated(WorldKind(0.02, False, shift=0.05, fallen=1), 2, 60, random).change
    assert changed[0, 39] == 0 and np.exp(changed[0, 40]) == pytest.approx(1.05) and not changed[1].any()
    tails = simulated(WorldKind(0.02, False, 3), 400, 60, random).observed
    assert np.abs(tails).max() > 6 * 0.02, "heavier than normal"


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("nights", "repeats"), [(7, 1500), (10, 1500), (15, 1200), (30, 800)])
def test_tonights_rule_fires_as_often_on_young_levels_as_it_says(nights: int, repeats: int, nodes: int) -> None:
    share = fires(nights, nodes, repeats, np.random.default_rng([nights, nodes])) / repeats
    assert pytest.approx(0.0124, abs=1e-4) == NOMINAL
    assert 0.004 < share < 0.025


def test_every_harsher_world_is_what_it_says() -> None:
    random, quiet = np.random.default_rng(3), WorldKind(0.01, False)

    def world(**changes: Any) -> Nights:
        return simulated(replace(quiet, **changes), 400, 60, random)

    def differences(nights: Nights, night: int = 50, is_null: bool = False) -> Array:
        builds = (0, 0 if is_null else night)
        pairs = np.log(np.array([nights.pairs(i, night, builds, 7, random) for i in range(400)]))
        return pairs[:, :, 1] - pairs[:, :, 0]

    shared = world(memory=0.8).shared
    assert np.corrcoef(shared[:, 20:-1].ravel(), shared[:, 21:].ravel())[0, 1] == pytest.approx(0.8, abs=0.05)
    assert np.isnan(world(missing=0.3).observed).mean() == pytest.approx(0.3, abs=0.02)
    assert set(world(nodes=3).node.ravel()) == {0, 1, 2}
    tripled = world(noise=3.0)
    assert tripled.observed[:, :40].std() == pytest.approx(0.01, rel=0.05)
    assert tripled.observed[:, 40:].std() == pytest.approx(0.03, rel=0.05)
    assert differences(tripled).std() == pytest.approx(0.03, rel=0.05)
    assert differences(tripled, 39).std() == pytest.approx(0.01, rel=0.05)
    outliers = world(outliers=0.05)
    assert (outliers.observed > 0.045).mean() == pytest.approx(0.05, abs=0.01)
    assert (np.abs(differences(outliers)) > 0.045).mean() == pytest.approx(0.095, abs=0.02)
    by_night, by_run = world(states="night"), world(states="run")
    assert differences(by_night).std() == pytest.approx(0.01, rel=0.05), "both runs of a pair have the night's clock"
    assert differences(by_run).std() > 0.019
    for clocks in (by_night, by_run):
        assert clocks.observed.mean() == pytest.approx(0.3 * np.log(1.03), abs=0.001)
    driver = world(driver=-0.05, shift=0.05)
    assert driver.shared[:, 40:].mean() == pytest.approx(np.log(0.95), abs=0.002)
    assert driver.observed[:, :40].mean() == pytest.approx(0, abs=0.002)
    assert differences(driver).mean() == pytest.approx(np.log(1.05), abs=0.001), "both builds have the driver"
    biased = world(arm_bias=0.015, shift=0.05)
    assert differences(biased).mean() == pytest.approx(np.log(1.015) + np.log(1.05), abs=0.001)
    assert differences(biased, is_null=True).mean() == pytest.approx(np.log(1.015), abs=0.001)
    assert biased.observed[:, 40:].mean() == pytest.approx(np.log(1.05), abs=0.002), "nights have no arms"
    gain = world(shift=-0.05, lasts=15)
    assert [round(float(np.exp(gain.change[0, night])), 2) for night in (39, 40, 54, 55)] == [1, 0.95, 0.95, 1]
    tails = [world(tail=3, is_scaled=scaled).observed for scaled in (True, False)]
    assert np.median(np.abs(tails[1])) == pytest.approx(3**0.5 * np.median(np.abs(tails[0])), rel=0.05)


def test_a_new_driver_is_seen_by_the_gate_and_a_missing_night_is_none() -> None:
    random = np.random.default_rng(5)
    kind = WorldKind(0.005, True, driver=0.10, missing=0.3)
    rows = judged_nights(simulated(kind, 20, 45, random), random)
    seen = [night.word for row in rows for night in row]
    assert seen.count("environment step") > 40 and 15 < seen.count("") < 45
    (report, *_) = fleet_reports(simulated(replace(kind, missing=0.0), 120, 41, random), random)
    (step,) = [finding for finding in report.findings if finding.word == "environment step"]
    assert report.compared_count == 120 and len(step.runs) == 120 and "10 nodes" in step.detail
    assert all(finding.pairs for finding in report.findings if finding.word == "no change"), "those are of the build"


def test_the_peers_rules_find_what_they_say_and_no_less() -> None:
    steady = np.ones((1, 60)) + 1e-4 * np.sin(np.arange(60))
    for name, rule in PEERS.items():
        assert not rule(steady, 59)[0], name
        tripled = steady.copy()
        tripled[:, 58:] *= 3.0
        caught = rule(tripled, 58)[0] or rule(tripled, 59)[0]
        assert caught, name
