"""Who the others wait for: planted slow ranks and nodes are named, noise and single slow steps are not."""

from __future__ import annotations

import math
import random

import pytest
from levelfield.measure.straggler import FALSE_ALARMS, MIN_STEPS, binomial_tail, find_stragglers

STEPS = range(3, 33)


def noise(ranks: int, seed: int = 0, spread: float = 0.02, steps: range = STEPS) -> dict[int, dict[int, float]]:
    """Times of equal ranks around half a second, with a common part, as a step may be slow for all."""
    draw = random.Random(seed)
    common = {step: 0.5 * draw.lognormvariate(0, 0.05) for step in steps}
    return {rank: {step: common[step] * draw.lognormvariate(0, spread) for step in steps} for rank in range(ranks)}


def slowed(times: dict[int, dict[int, float]], factor: float, *ranks: int) -> dict[int, dict[int, float]]:
    factors = {rank: factor if rank in ranks else 1.0 for rank in times}
    return {rank: {step: t * factors[rank] for step, t in steps.items()} for rank, steps in times.items()}


def nodes(count: int, size: int) -> dict[str, range]:
    return {f"node{k}": range(k * size, (k + 1) * size) for k in range(count)}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_a_rank_that_is_a_tenth_slower_is_named(ranks: int) -> None:
    slow = find_stragglers(slowed(noise(ranks), 1.10, ranks - 1), nodes(1, ranks)).stragglers
    assert [straggler.name for straggler in slow] == [f"rank {ranks - 1}"]
    assert slow[0].excess == pytest.approx(0.10, abs=0.03) and slow[0].waited_seconds == pytest.approx(0.05, abs=0.02)
    assert slow[0].chance < FALSE_ALARMS


def test_a_slow_node_is_named_once_and_not_its_ranks() -> None:
    slow = find_stragglers(slowed(noise(16), 1.12, *range(8, 16)), nodes(2, 8)).stragglers
    assert [(straggler.name, straggler.ranks) for straggler in slow] == [("node1", tuple(range(8, 16)))]
    assert slow[0].excess == pytest.approx(0.12, abs=0.02)


def test_a_slow_rank_of_a_node_does_not_make_its_node_slow() -> None:
    assert [straggler.name for straggler in find_stragglers(slowed(noise(16), 1.2, 9), nodes(2, 8)).stragglers] == [
        "rank 9"
    ]


def test_one_rank_on_each_node_is_named_as_a_node() -> None:
    assert [straggler.name for straggler in find_stragglers(slowed(noise(2), 1.1, 1), nodes(2, 1)).stragglers] == [
        "node1"
    ]


def test_two_slow_ranks_are_both_named() -> None:
    times = slowed(noise(8), 1.3, 2, 5)
    assert {straggler.name for straggler in find_stragglers(times, nodes(1, 8)).stragglers} == {"rank 2", "rank 5"}


@pytest.mark.parametrize(("ranks", "count"), [(2, 1), (2, 2), (8, 2), (16, 4)])
def test_noise_alone_gives_fewer_alarms_than_stated(ranks: int, count: int) -> None:
    """500 runs without a straggler, with noise of a tenth, so that the noticeable part holds nothing back."""
    alarms = sum(
        bool(find_stragglers(noise(ranks, seed, 0.1, range(1, 16)), nodes(count, ranks // count)).stragglers)
        for seed in range(500)
    )
    assert alarms <= 500 * FALSE_ALARMS + 6, "six more are three standard deviations"


def test_one_slow_step_names_nobody() -> None:
    times = noise(4)
    times[2][10] *= 50
    assert find_stragglers(times, nodes(1, 4)).stragglers == ()


def test_a_steady_but_tiny_difference_names_nobody() -> None:
    assert find_stragglers(slowed(noise(4, spread=1e-4), 1.01, 3), nodes(1, 4)).stragglers == ()


def test_slow_steps_of_all_ranks_name_nobody() -> None:
    times = {rank: {s: t * (3 if s > 20 else 1) for s, t in series.items()} for rank, series in noise(4).items()}
    assert find_stragglers(times, nodes(1, 4)).stragglers == ()


def test_a_rank_that_is_faster_names_nobody_of_many() -> None:
    assert find_stragglers(slowed(noise(8), 0.8, 3), nodes(1, 8)).stragglers == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_a_damaged_time_leaves_its_step_out(value: float) -> None:
    times = slowed(noise(3), 1.2, 1)
    times[0][5] = value
    pace = find_stragglers(times, nodes(1, 3))
    assert pace.steps == len(STEPS) - 1 and [straggler.name for straggler in pace.stragglers] == ["rank 1"]


def test_without_enough_it_says_why() -> None:
    assert "one rank" in (find_stragglers(noise(1), nodes(1, 1)).unchecked or "")
    few = find_stragglers(noise(2, steps=range(1, 10)), nodes(1, 2))
    assert few.stragglers == ()
    assert (few.unchecked or "").startswith("9 steps ") and f"least {MIN_STEPS}" in (few.unchecked or "")
    missing = noise(2)
    missing[1] = {}
    assert find_stragglers(missing, nodes(1, 2)).steps == 0
    assert find_stragglers({}, {}).stragglers == ()


def test_the_binomial_tail() -> None:
    assert binomial_tail(0, 10, 0.5) == 1.0 and binomial_tail(10, 10, 0.5) == pytest.approx(2**-10)
    assert binomial_tail(9, 10, 0.5) == pytest.approx(11 / 1024) and binomial_tail(11, 10, 0.5) == 0.0
    assert binomial_tail(50_100, 100_000, 0.5) == pytest.approx(0.2646, abs=0.001), "no coefficient overflows"
