"""Two groups of curves: the interval covers what it promises, and nothing is claimed from too little."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import pytest
from levelfield.measure.curves import (
    MAX_TAIL_FALL,
    Curve,
    TailVerdict,
    compare_tails,
    fill_lost_steps,
    lost_steps,
    mean_log_loss,
    tail_share_of_fall,
)

STEPS = 400
SEEDS = json.loads((Path(__file__).parents[3] / "tools" / "data" / "loss_curves" / "seeds.json").read_text())


def curve(offset: float = 0.0, wave: float = 0.0, steps: int = STEPS, fast: float = 20.0) -> Curve:
    """A loss that falls early; `offset` is relative, `wave` makes neighbouring steps alike."""
    return {s: (2 + 5 * math.exp(-s / fast)) * (1 + offset + wave * math.sin(s / 30)) for s in range(1, steps + 1)}


def group(*offsets: float, wave: float = 0.0, steps: int = STEPS, fast: float = 20.0) -> list[Curve]:
    return [curve(offset, wave, steps, fast) for offset in offsets]


NEAR = (-0.001, 0.0, 0.001)
WITHIN, BEYOND, OPEN, BROKEN = get_args(TailVerdict)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (group(*NEAR), group(*NEAR), WITHIN),
        (group(*NEAR, wave=0.003), group(*NEAR, wave=-0.003), WITHIN),
        (group(0.03, 0.031), group(0.0, 0.001), BEYOND),
        (group(-0.03, -0.031), group(0.0, 0.001), BEYOND),
        (group(0.009, 0.011), group(0.0, 0.001), OPEN),  # on the margin
        (group(-0.02, 0.02), group(-0.02, 0.02), OPEN),  # seeds differ by more than the margin
    ],
)
def test_the_word_follows_from_the_interval_and_the_margin(
    ours: list[Curve], theirs: list[Curve], word: TailVerdict
) -> None:
    comparison = compare_tails(ours, theirs, margin=0.01)
    assert comparison.word == word, comparison.reason
    low, difference, high = comparison.low, comparison.difference, comparison.high
    assert low is not None and difference is not None and high is not None
    assert low < difference < high


def test_a_shift_of_one_percent_is_seen_where_seeds_differ_by_a_tenth_of_it() -> None:
    assert compare_tails(group(*NEAR), group(*NEAR), 0.005).word == WITHIN
    assert compare_tails([{s: x * 1.01 for s, x in c.items()} for c in group(*NEAR)], group(*NEAR), 0.005).word == (
        BEYOND
    )


def test_one_run_a_side_claims_nothing_but_prints_the_difference() -> None:
    comparison = compare_tails(group(0.001), group(0.0, 0.001), 0.01)
    assert comparison.word == OPEN and "least 2 runs" in comparison.reason
    assert comparison.difference is not None and comparison.low is None


def test_curves_that_still_fall_claim_nothing() -> None:
    comparison = compare_tails(group(*NEAR, fast=300.0), group(*NEAR, fast=300.0), 0.01)
    assert comparison.word == OPEN and "still falls" in comparison.reason


def test_a_short_tail_claims_nothing() -> None:
    comparison = compare_tails(group(*NEAR, steps=30), group(*NEAR, steps=30), 0.01)
    assert comparison.word == OPEN
    assert "15 steps" in comparison.reason and "least 20" in comparison.reason
    assert compare_tails(group(*NEAR), group(*NEAR), 0.01, from_step=STEPS - 5).word == OPEN


def test_curves_that_share_no_step_claim_nothing() -> None:
    odd, even = ([{s: x for s, x in c.items() if s % 2 == rest} for c in group(*NEAR)] for rest in (1, 0))
    assert " 0 steps" in compare_tails(odd, even, 0.01).reason


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_loss_that_is_no_positive_number_breaks_its_curve(value: float) -> None:
    comparison = compare_tails([curve(), {**curve(), 7: value}], group(*NEAR), 0.01)
    assert comparison.word == BROKEN
    assert comparison.reason.startswith("curve 2: ") and "step 7, " in comparison.reason
    later = compare_tails([curve(), {**curve(), 7: value}], group(*NEAR), 0.01, from_step=200)
    assert later.word == WITHIN, later.reason


def picked(steps: Collection[int], offset: float = 0.0) -> Curve:
    return {s: x for s, x in curve(offset).items() if s in steps}


HOLED: dict[str, tuple[Collection[int], str]] = {
    "one step is missing": ({*range(1, 401)} - {61}, "no number as loss at step 61, expected a positive number"),
    "steps in the middle are missing": ({*range(1, 401)} - {*range(61, 81)}, "at step 61, "),
    "two steps apart are missing": ({*range(1, 401)} - {61, 63}, "at step 61, "),
    "it ends early": (range(1, 61), "ends at step 60, expected steps up to 400"),
    "it ends one step early": (range(1, 400), "ends at step 399, expected steps up to 400"),
    "it begins late": (range(101, 401), "begins at step 101, expected step 1"),
    "every tenth step, and one is missing": ({*range(10, 401, 10)} - {200}, "at step 200, "),
    "every tenth step, and the last is missing": (range(10, 400, 10), "ends at step 390, expected steps up to 400"),
}


@pytest.mark.parametrize("name", HOLED)
def test_a_curve_that_lacks_a_step_of_its_own_interval_is_broken(name: str) -> None:
    steps, message = HOLED[name]
    comparison = compare_tails(group(*NEAR), [curve(), picked(steps)], 0.01, names=[*"abc", "whole", "holed"])
    assert comparison.word == BROKEN
    assert comparison.reason.startswith("holed: ") and message in comparison.reason
    assert comparison.difference is None and comparison.steps is None


@pytest.mark.parametrize(
    "steps",
    [
        range(10, 401, 10),  # other trainers print each tenth step,
        [1, *range(10, 401, 10)],  # and the first,
        [*range(4, 400, 5), 400],  # or count from 0, and print the last
        [*range(1, 200), *range(200, 401, 5)],  # seldom from some step on
        [*range(1, 401, 20), *range(382, 401)],
        [10 * s + s % 3 for s in range(41)],  # at no interval
        [*sorted(random.Random(5).sample(range(2, 400), 150)), 400],  # a sample, as of TensorBoard's tables
    ],
)
def test_another_interval_is_no_hole(steps: Collection[int]) -> None:
    near = [picked(steps, offset) for offset in NEAR]
    comparison = compare_tails(near, group(*NEAR), 0.01)
    assert comparison.word != BROKEN, comparison.reason
    assert compare_tails(near, near, 0.01).word != BROKEN


def test_steps_that_count_from_0_are_as_many() -> None:
    from_0 = [{s - 1: x for s, x in c.items()} for c in group(*NEAR)]
    assert compare_tails(from_0, group(*NEAR), 0.01).word == WITHIN
    first = [{**c, 0: 9.0} for c in group(*NEAR)]  # a look before the training
    assert compare_tails(first, group(*NEAR), 0.01).word == WITHIN


def test_steps_before_a_chosen_tail_do_not_break_a_curve() -> None:
    holed = [picked({*range(101, 401)} - {150}, offset) for offset in NEAR]
    assert compare_tails(holed, group(*NEAR), 0.01, from_step=200).word == WITHIN
    assert compare_tails(holed, group(*NEAR), 0.01, from_step=120).word == BROKEN
    ended = [picked(range(1, 300), offset) for offset in NEAR]
    assert compare_tails(ended, group(*NEAR), 0.01, from_step=200).word == BROKEN
    assert compare_tails(ended, group(*NEAR), 0.01, from_step=350).word == BROKEN


def test_a_step_that_the_optimizer_skipped_is_no_hole() -> None:
    skipped = {**curve(), **dict.fromkeys((1, 2, 3, 100), None)}
    assert compare_tails([skipped, curve(0.001)], group(*NEAR), 0.01).word == WITHIN


def test_lost_steps_are_those_that_the_interval_has() -> None:
    assert lost_steps([10, 20, 30, 40, 60], range(65)) == [*range(41, 60)]
    assert lost_steps([10, 20, 30], range(40)) == [] and lost_steps([10, 20, 30], range(46)) == [*range(40, 46)]
    assert lost_steps([3, 4, 5, 71], range(3, 6)) == [] and lost_steps([3, 4, 5, 71], range(71, 74)) == [72, 73]
    assert lost_steps([5, 6, 7], range(8)) == [1, 2, 3, 4] and lost_steps([1], range(3)) == [2]
    skips = fill_lost_steps({2: 3.0, 3: 2.0, 5: 1.0}, range(1, 8), skipped=(1, 4, 6, 7))
    assert (skips[1], skips[4]) == (None, None)
    assert math.isnan(skips[6] or 0.0) and math.isnan(skips[7] or 0.0)


def test_curves_of_one_value_have_no_interval_to_fall_in() -> None:
    flat = [dict.fromkeys(range(1, 101), 2.0)] * 2
    assert "still falls" in compare_tails(flat, flat, 0.01).reason


def test_the_share_of_the_fall_in_the_tail() -> None:
    line = {s: 10.0 - s * 0.01 for s in range(1, 401)}
    assert tail_share_of_fall(line, sorted(line), range(201, 401)) == pytest.approx(0.40, abs=0.01)
    assert tail_share_of_fall(curve(), sorted(curve()), range(201, 401)) < 0.01 < MAX_TAIL_FALL


@pytest.mark.parametrize(
    ("runs", "spreads"),
    [
        ((3, 3), (1.0, 1.0)),
        ((2, 5), (1.0, 3.0)),
        pytest.param((8, 2), (1.0, 1.0), marks=pytest.mark.thorough),
    ],
)
def test_the_interval_covers_the_truth_at_least_as_often_as_promised(
    runs: tuple[int, int], spreads: tuple[float, float]
) -> None:
    """Runs whose seed shifts the whole curve: steps of one curve would promise a certainty that is not there."""
    random.seed(20)
    steps, trials, covered = range(1, 41), 750, 0
    early = {0: 100.0}  # all but a little of the fall lies before the tail
    for _ in range(trials):
        ours, theirs = (
            [{**early, **dict.fromkeys(steps, math.exp(random.gauss(0, 0.001 * spread)))} for _ in range(count)]
            for count, spread in zip(runs, spreads, strict=True)
        )
        comparison = compare_tails(ours, theirs, margin=0.5)
        assert comparison.low is not None and comparison.high is not None
        covered += comparison.low < 0 < comparison.high
    assert covered / trials > 0.885
    assert covered / trials < 0.96 or runs[0] != runs[1], "equal groups: not much wider either"


# ---- trainings of one small model with other seeds, and of changed models; measured


def seeds(name: str) -> list[Curve]:
    return [{i + 1: loss for i, loss in enumerate(losses)} for losses in SEEDS["runs"][name]]


def test_other_seeds_of_one_training_are_within_the_margin_that_the_seeds_allow() -> None:
    base = seeds("as the case")
    assert compare_tails(base[::2], base[1::2], 0.02).word == WITHIN
    assert compare_tails(base[::2], base[1::2], 0.001).word == OPEN


@pytest.mark.parametrize("name", SEEDS["seen"])
def test_a_change_that_shows_in_the_tail_is_seen(name: str) -> None:
    assert compare_tails(seeds(name), seeds("as the case"), 0.01).word == BEYOND


@pytest.mark.parametrize("name", [name for name in SEEDS["runs"] if name != "as the case"])
def test_no_seed_alone_decides(name: str) -> None:
    assert compare_tails(seeds(name)[:1], seeds("as the case")[:1], 0.01).word == OPEN


def test_the_mean_is_of_the_logarithm() -> None:
    assert mean_log_loss({1: 1.0, 2: math.e**2}, [1, 2]) == pytest.approx(1.0)
