"""Two groups of curves: the interval covers what it promises, and nothing is claimed from too little."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from levelfield.measure.curves import QUANTILES, SETTLED, compare_tails, share_of_fall, tail_mean

STEPS = 400
SEEDS = json.loads((Path(__file__).parents[1] / "data" / "loss_curves" / "seeds.json").read_text())


def curve(offset=0.0, wave=0.0, steps=STEPS, fast=20.0):
    """A loss that falls early; `offset` is relative, `wave` makes neighbouring steps alike."""
    return {s: (2 + 5 * math.exp(-s / fast)) * (1 + offset + wave * math.sin(s / 30)) for s in range(1, steps + 1)}


def group(*offsets, **changes):
    return [curve(offset, **changes) for offset in offsets]


NEAR = (-0.001, 0.0, 0.001)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (group(*NEAR), group(*NEAR), "within the margin"),
        (group(*NEAR, wave=0.003), group(*NEAR, wave=-0.003), "within the margin"),
        (group(0.03, 0.031), group(0.0, 0.001), "beyond the margin"),
        (group(-0.03, -0.031), group(0.0, 0.001), "beyond the margin"),
        (group(0.009, 0.011), group(0.0, 0.001), "inconclusive"),  # on the margin
        (group(-0.02, 0.02), group(-0.02, 0.02), "inconclusive"),  # seeds differ by more than the margin
    ],
)
def test_the_word_follows_from_the_interval_and_the_margin(ours, theirs, word):
    found = compare_tails(ours, theirs, margin=0.01)
    assert found.word == word, found.reason
    assert found.low is not None and found.high is not None and found.low < found.difference < found.high


def test_a_shift_of_one_percent_is_seen_where_seeds_differ_by_a_tenth_of_it():
    assert compare_tails(group(*NEAR), group(*NEAR), 0.005).word == "within the margin"
    assert compare_tails([{s: x * 1.01 for s, x in c.items()} for c in group(*NEAR)], group(*NEAR), 0.005).word == (
        "beyond the margin"
    )


def test_one_run_a_side_claims_nothing_but_prints_the_difference():
    found = compare_tails(group(0.001), group(0.0, 0.001), 0.01)
    assert found.word == "inconclusive" and "at least 2 runs" in found.reason
    assert found.difference is not None and found.low is None


def test_curves_that_still_fall_claim_nothing():
    found = compare_tails(group(*NEAR, fast=300.0), group(*NEAR, fast=300.0), 0.01)
    assert found.word == "inconclusive" and "still falls" in found.reason


def test_a_short_tail_claims_nothing():
    found = compare_tails(group(*NEAR, steps=30), group(*NEAR, steps=30), 0.01)
    assert found.word == "inconclusive" and "15 steps in the tail, expected at least 20" in found.reason
    assert compare_tails(group(*NEAR), group(*NEAR), 0.01, from_step=STEPS - 5).word == "inconclusive"


def test_curves_that_share_no_step_claim_nothing():
    later = [{s + 10_000: x for s, x in c.items()} for c in group(*NEAR)]
    assert "share 0 steps" in compare_tails(group(*NEAR), later, 0.01).reason


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_loss_that_is_no_positive_number_is_beyond_every_margin(value):
    found = compare_tails([curve(), {**curve(), 7: value}], group(*NEAR), 0.01)
    assert found.word == "beyond the margin" and "step 7" in found.reason


def test_curves_of_one_value_have_no_interval_to_fall_in():
    flat = [dict.fromkeys(range(1, 101), 2.0)] * 2
    assert "still falls" in compare_tails(flat, flat, 0.01).reason


def test_the_share_of_the_fall_in_the_tail():
    line = {s: 10.0 - s * 0.01 for s in range(1, 401)}
    assert share_of_fall(line, sorted(line), range(201, 401)) == pytest.approx(0.40, abs=0.01)
    assert share_of_fall(curve(), sorted(curve()), range(201, 401)) < 0.01 < SETTLED


@pytest.mark.parametrize(("runs", "spreads"), [((3, 3), (1.0, 1.0)), ((2, 5), (1.0, 3.0)), ((8, 2), (1.0, 1.0))])
def test_the_interval_covers_the_truth_at_least_as_often_as_promised(runs, spreads):
    """Runs whose seed shifts the whole curve: steps of one curve would promise a certainty that is not there."""
    random.seed(20)
    steps, trials, covered = range(1, 41), 1500, 0
    early = {0: 100.0}  # all but a little of the fall lies before the tail
    for _ in range(trials):
        sides = [
            [{**early, **dict.fromkeys(steps, math.exp(random.gauss(0, 0.001 * spread)))} for _ in range(count)]
            for count, spread in zip(runs, spreads, strict=True)
        ]
        found = compare_tails(*sides, margin=0.5)
        covered += found.low < 0 < found.high
    assert covered / trials > 0.885
    assert covered / trials < 0.96 or runs[0] != runs[1], "equal groups: not much wider either"


def test_quantiles_fall_with_the_degrees_of_freedom():
    values = [QUANTILES[n] for n in sorted(QUANTILES)]
    assert values == sorted(values, reverse=True) and values[-1] > 1.6449


# ---- trainings of one small model with other seeds, and of changed models; measured


def seeds(name):
    return [{i + 1: loss for i, loss in enumerate(losses)} for losses in SEEDS["runs"][name]]


def test_other_seeds_of_one_training_are_within_the_margin_that_the_seeds_allow():
    base = seeds("as the case")
    assert compare_tails(base[::2], base[1::2], 0.02).word == "within the margin"
    assert compare_tails(base[::2], base[1::2], 0.001).word == "inconclusive"


@pytest.mark.parametrize("name", SEEDS["seen"])
def test_a_change_that_shows_in_the_tail_is_seen(name):
    assert compare_tails(seeds(name), seeds("as the case"), 0.01).word == "beyond the margin"


@pytest.mark.parametrize("name", [name for name in SEEDS["runs"] if name != "as the case"])
def test_no_seed_alone_decides(name):
    assert compare_tails(seeds(name)[:1], seeds("as the case")[:1], 0.01).word == "inconclusive"


def test_the_mean_is_of_the_logarithm():
    assert tail_mean({1: 1.0, 2: math.e**2}, [1, 2]) == pytest.approx(1.0)
