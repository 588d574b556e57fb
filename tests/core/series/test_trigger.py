"""Levels and triggers: each rule finds what it is for, and stays quiet where nothing is."""

from __future__ import annotations

import math

import pytest
from gate_points import at, costs, event, noise
from levelfield.series.level import MIN_CHANGE, MIN_SCALE, accepted_level, level_of
from levelfield.series.segments import Observation
from levelfield.series.trigger import (
    FALSE_DISCOVERY_RATE,
    cusum,
    detectable_excess,
    find_suspicion,
    is_beyond,
    within_false_discovery_rate,
)

TOKENS = "tokens_per_second_per_device"


def tonight(cost: float, node: str = "n1", night: int = 90) -> Observation:
    return Observation(f"night{night}", at(night), node, "tonight", cost)


def test_a_level_is_the_median_of_at_most_thirty_nights() -> None:
    level = level_of(costs([5.0] * 20 + [0.0] * 16 + [1.0] * 14), "n1")
    assert level is not None and level.cost == 0.0 and level.night_count == 30
    assert level_of(costs([0.0] * 6), "n1") is None


def test_one_bad_night_moves_neither_level_nor_scale() -> None:
    values = noise(30)
    quiet, bad = level_of(costs(values), "n1"), level_of(costs([*values[:-1], 5.0]), "n1")
    assert quiet is not None and bad is not None
    assert bad.cost == pytest.approx(quiet.cost, abs=0.002) and bad.scale == pytest.approx(quiet.scale, rel=0.25)


def test_equal_nights_have_the_least_scale_and_the_floor() -> None:
    level = level_of(costs([0.0] * 20), "n1")
    assert level is not None and level.scale == MIN_SCALE and level.threshold(2.5) == MIN_CHANGE


def test_the_threshold_is_the_stated_formula() -> None:
    level = level_of(costs(noise(30, 0.02)), "n1")
    assert level is not None and level.freedom == 23
    # t quantile with 23 degrees for the tail of a normal 2.5 (.00621): 2.713, by statistical tables of t
    assert level.threshold(2.5) == pytest.approx(2.713 * level.scale * math.sqrt(1 + math.pi / 2 / 30), rel=1e-3)


def test_the_scale_is_the_stated_formula_and_knows_no_offset_of_a_node() -> None:
    values = [0.0, 0.01, 0.03, 0.06, 0.10, 0.15, 0.21]
    level = level_of(costs(values), "n1")
    distances = sorted(abs(a - b) for i, a in enumerate(values) for b in values[:i])
    assert level is not None and level.freedom == 5
    assert level.scale == pytest.approx(1.0483 * distances[10] * (1 - 0.62 / 6), rel=1e-3)
    apart = [*costs(values[:4]), *costs([v + 9.0 for v in values[4:]], "n2")]
    (local, other) = (level_of(apart, node) for node in ("n1", "n2"))
    assert local is not None and other is not None and local.scale == other.scale < 0.1 and local.freedom == 4
    (stranger, alone) = (level_of(apart, "n3"), level_of([*costs(values[:6]), *costs([9.0], "n2")], "n1"))
    assert stranger is not None and stranger.scale > 1, "a node without a level may be as far off as nodes are"
    assert alone is not None and alone.freedom == 4, "a night that is alone on its node says nothing of the scatter"


def test_a_node_has_its_own_level_from_three_nights_on() -> None:
    two = [Observation(f"x{i}", at(30 + i), "n2", f"x{i}", 0.05) for i in range(3)]
    level = level_of([*costs(noise(20)), *two], "n2")
    assert level is not None and level.cost == 0.05 and level.night_count == 3 and level.is_of_node
    assert level.scale < 0.02, "the offset of a node is no scatter"
    young = level_of([*costs(noise(20)), *two[:2]], "n2")
    assert young is not None and not young.is_of_node and abs(young.cost) < 0.01


@pytest.mark.parametrize("seed", range(6))
def test_one_percent_is_not_called_and_ten_percent_is_at_a_noise_of_one_percent(seed: int) -> None:
    history = costs(noise(40, 0.01, seed))
    level = level_of(history, "n1")
    assert level is not None
    assert not is_beyond(level, tonight(0.01), 1, 2.5)
    assert is_beyond(level, tonight(0.10), 1) and not is_beyond(level, tonight(-0.10), 1)
    assert is_beyond(level, tonight(-0.10), -1)


def test_the_direction_is_named() -> None:
    history = costs(noise(40))
    level = level_of(history, "n1")
    assert level is not None
    worse, better = (find_suspicion(level, None, history, tonight(value)) for value in (0.1, -0.1))
    assert worse is not None and (worse.rule, worse.direction, worse.is_clear) == ("tonight", 1, True)
    assert better is not None and better.direction == -1 and better.probability < 1e-6


def test_a_nan_is_never_inside_of_a_level_silently() -> None:
    level = level_of(costs(noise(40)), "n1")
    assert level is not None and not is_beyond(level, tonight(math.nan), 1)  # observations() lets none in


def test_a_slow_ramp_is_found_by_the_accepted_level_before_it_reaches_two_and_a_half_percent() -> None:
    """A level that follows the nights absorbs the ramp; the accepted one stays."""
    found_at = []
    for seed in range(10):
        values = noise(70, 0.01, seed)
        values = [value + 0.002 * max(0, i - 39) for i, value in enumerate(values)]
        for night in range(40, 70):
            history = costs(values[:night])
            level, accepted = level_of(history, "n1"), accepted_level(history, TOKENS, None)
            assert level is not None and accepted is not None
            if find_suspicion(level, accepted, history, tonight(values[night], night=night)):
                found_at.append(0.002 * (night - 39))
                break
    assert len(found_at) == 10 and sum(size < 0.025 for size in found_at) >= 9


def test_the_level_that_follows_alone_misses_a_very_slow_ramp() -> None:
    values = [0.0005 * i for i in range(80)]
    history = costs(values[:-1])
    level, accepted = level_of(history, "n1"), accepted_level(history, TOKENS, None)
    assert level is not None and accepted is not None
    assert find_suspicion(level, None, history, tonight(values[-1])) is None
    drift = find_suspicion(level, accepted, history, tonight(values[-1]))
    assert drift is not None and drift.rule != "tonight" and drift.direction == 1


def test_a_drift_to_the_better_is_found_as_well() -> None:
    values = [0.001 * math.sin(i) for i in range(40)] + [-0.02] * 6
    history = costs(values[:-1])
    level, accepted = level_of(history[-30:], "n1"), accepted_level(history, TOKENS, None)
    assert level is not None and accepted is not None
    suspicion = find_suspicion(level, accepted, history, tonight(values[-1]))
    assert suspicion is not None and suspicion.direction == -1


def test_one_bad_night_is_no_drift_however_few_nights_were_not_cleared() -> None:
    history = costs(noise(40, 0.005))
    level, accepted = level_of(history, "n1"), accepted_level(history, TOKENS, None)
    assert level is not None and accepted is not None
    for cleared in range(34, 40):
        suspicion = find_suspicion(level, accepted, history, tonight(0.2), last_cleared=history[cleared].began)
        assert suspicion is not None and suspicion.rule == "tonight"


def test_one_night_adds_little_to_the_sum_however_bad_it_is() -> None:
    assert cusum([50.0]) == cusum([3.0]) == 2.5
    assert cusum([1.0] * 8) == 4.0 and cusum([-1.0] * 8) == 0.0
    assert cusum([3.0, 3.0, -9.0]) == 0.0


def test_what_pairs_found_unchanged_is_not_summed_again() -> None:
    history = costs([0.0] * 30 + [0.006] * 10)
    level, accepted = level_of(costs([0.0] * 30), "n1"), accepted_level(costs([0.0] * 30), TOKENS, None)
    assert level is not None and accepted is not None
    suspicion = find_suspicion(level, accepted, history, tonight(0.006))
    assert suspicion is not None and suspicion.rule not in ("tonight", "drift")
    assert find_suspicion(level, accepted, history, tonight(0.006), last_cleared=history[-1].began) is None


def test_an_accepted_baseline_is_the_level_and_knows_its_nodes() -> None:
    stated = event(
        "baseline", 50, level={TOKENS: 1000.0}, data={"nodes": {TOKENS: {"n2": 900.0}}}, runs=["a", "b", "c"]
    )
    accepted = accepted_level(costs(noise(10)), TOKENS, stated)
    assert accepted is not None and accepted.build_run == "c" and accepted.night_count == 3
    assert math.exp(-accepted.cost_on("n2")) == pytest.approx(900.0)
    assert math.exp(-accepted.cost_on("elsewhere")) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    "nodes", [3, {TOKENS: 3}, {TOKENS: {"n2": "x"}}, {TOKENS: {"n2": -1.0}}, {TOKENS: {"n2": None}}]
)
def test_nodes_that_are_not_numbers_are_not_used(nodes: object) -> None:
    stated = event("baseline", 50, level={TOKENS: 1000.0}, data={"nodes": nodes})
    accepted = accepted_level([], TOKENS, stated)
    assert accepted is not None and accepted.cost_by_node == {}


def test_many_looks_keep_the_clear_ones() -> None:
    assert within_false_discovery_rate([1e-6, 0.006, 0.2], 300, FALSE_DISCOVERY_RATE) == [True, False, False]
    # Benjamini and Hochberg step up: the largest p within its line keeps all smaller ones.
    line = [FALSE_DISCOVERY_RATE * rank / 300 for rank in (1, 2, 3)]
    assert (
        within_false_discovery_rate([line[0] * 2, line[1] * 1.2, line[2] * 0.9], 300, FALSE_DISCOVERY_RATE)
        == [True] * 3
    )
    assert within_false_discovery_rate([], 300, FALSE_DISCOVERY_RATE) == []
    assert within_false_discovery_rate([float("nan"), 1e-9], 300, FALSE_DISCOVERY_RATE) == [False, True]


def test_what_a_series_shows_is_what_the_trigger_sees_in_nine_of_ten_nights() -> None:
    history = costs(noise(40, 0.02))
    level = level_of(history, "n1")
    assert level is not None and detectable_excess(level, 3) < detectable_excess(level)
    shift, generator = detectable_excess(level), noise(4000, 1.0, 7)
    seen = sum(is_beyond(level, tonight(level.cost + shift + level.scale * z), 1, 2.5) for z in generator)
    assert seen / 4000 == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(("nights", "is_suspect"), [(7, True), (14, True), (15, False), (30, False)])
def test_a_young_series_is_suspicious_earlier_and_only_of_what_is_worse(nights: int, is_suspect: bool) -> None:
    history = costs(noise(nights))
    level = level_of(history, "n1")
    assert level is not None
    off = (level.threshold(1.5) + level.threshold(2.5)) / 2
    assert level.threshold(1.5) > MIN_CHANGE
    worse = find_suspicion(level, None, history, tonight(level.cost + off))
    assert (worse is not None) == is_suspect
    assert find_suspicion(level, None, history, tonight(level.cost - off)) is None
