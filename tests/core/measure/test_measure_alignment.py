"""Alignment: each planted fault is caught by the layer that should, and what is only rounding is not."""

from __future__ import annotations

import math
from dataclasses import replace

import loss_curves
import pytest
from levelfield.measure.alignment import AlignmentLimits, TrainingCurve, align, flagperf_rule, norm_difference
from levelfield.measure.calibration import LEAST, MULTIPLE, limits_of, noise_between

STEPS = 60
IDENTITY = {"work": "w", "corpus": "c", "initial_weights": "i", "tokens": "t"}
LIMITS = AlignmentLimits(first_step=1e-6, gradient=1e-4, curve=1e-5, source="the test")
NORMS = {"embedding.weight": 1.0, "layers.0.mlp.up.weight": 0.2, "layers.0.attention.key.bias": 3e-9}


def losses(scale=1.0):
    return {s: scale * (2 + 5 * math.exp(-s / 12) + 0.02 * math.sin(3.7 * s)) for s in range(1, STEPS + 1)}


def training(**changes):
    whole = TrainingCurve(STEPS, losses(), dict.fromkeys(range(1, STEPS + 1), 1.0), {1: NORMS, 10: NORMS}, IDENTITY)
    return replace(whole, **changes)


REFERENCE = training()


def with_losses(change):
    return training(losses={s: change(s, loss) for s, loss in losses().items()})


def test_a_repeat_and_rounding_are_aligned():
    for run in (REFERENCE, with_losses(lambda s, loss: loss * (1 + 3e-7 * (-1) ** s))):
        found = align(run, REFERENCE, LIMITS)
        assert (found.verdict, [layer.passed for layer in found.layers]) == ("aligned", [True] * 4)


@pytest.mark.parametrize(
    ("run", "verdict", "words"),
    [
        (with_losses(lambda s, x: math.nan if s >= 30 else x), "diverged", "step 30"),
        (with_losses(lambda s, x: math.inf if s == 7 else x), "diverged", "step 7"),
        (training(grad_norms={12: math.nan}), "diverged", "step 12"),
        (training(losses={s: x for s, x in losses().items() if s <= 40}), "not comparable", "step 41"),
        (training(losses={s + 1: x for s, x in losses().items()}), "not comparable", "step 1"),
        (training(losses={s: x for s, x in losses().items() if s <= 40}, steps=40), "not comparable", "40 steps"),
        (training(identity={**IDENTITY, "tokens": "u"}), "not comparable", "tokens"),
        (training(identity={**IDENTITY, "initial_weights": None}), "not comparable", "initial_weights"),
        (training(identity={**IDENTITY, "work": "v", "corpus": "d"}), "not comparable", "corpus, work"),
        (with_losses(lambda s, x: x * 1.003), "different", "first step"),
        (with_losses(lambda s, x: x * 1.01), "different", "first step"),
        (with_losses(lambda s, x: x * 1.03), "different", "first step"),
        (with_losses(lambda s, x: x * (1.003 if s > 20 else 1)), "diverged", "step 21"),
        (with_losses(lambda s, x: losses()[s + 1] if 1 < s < STEPS else x), "diverged", "step 2"),
        (training(gradients={1: {k: 2 * v for k, v in NORMS.items()}}), "different", "gradients"),
        (training(gradients={1: {**NORMS, "layers.0.mlp.up.weight": 0.2002}}), "different", "mlp.up"),
        (training(gradients={1: {**NORMS, "layers.0.mlp.up.weight": math.nan}}), "different", "mlp.up"),
        (training(gradients={1: {"embedding.weight": 1.0}}), "different", "only one"),
        (training(gradients={}), "inconclusive", "no gradient norms"),
    ],
)
def test_each_fault_is_caught_by_its_layer(run, verdict, words):
    found = align(run, REFERENCE, LIMITS)
    assert found.verdict == verdict and words in found.reason


def test_a_spike_is_seen_even_where_the_curve_has_no_limit():
    run = with_losses(lambda s, x: x * 1.4 if s == 33 else x)
    found = align(run, REFERENCE, replace(LIMITS, curve=None))
    assert found.verdict == "different" and "step 33" in found.reason


def test_without_recorded_noise_nothing_is_aligned():
    found = align(REFERENCE, REFERENCE, AlignmentLimits(None, None, None, "none"))
    assert found.verdict == "inconclusive" and "no noise" in found.reason


def test_a_norm_that_is_rounding_alone_is_held_against_the_whole_gradient():
    assert norm_difference(6e-9, NORMS, "layers.0.attention.key.bias") < 1e-5
    assert norm_difference(6e-3, NORMS, "layers.0.attention.key.bias") > 1
    assert norm_difference(math.nan, NORMS, "embedding.weight") == math.inf


def test_flagperfs_rule_alone_accepts_two_percent_and_short_runs_have_none():
    assert flagperf_rule(with_losses(lambda s, x: x * 1.019), REFERENCE) == pytest.approx(0.019)
    short = training(losses={1: 1.0})
    assert flagperf_rule(short, short) is None


# ---- limits that are learned


def test_a_limit_is_the_multiple_of_the_largest_noise_and_never_below_rounding():
    near, far = with_losses(lambda s, x: x * (1 + 1e-6)), with_losses(lambda s, x: x * (1 + 5e-6))
    limits = limits_of([noise_between(run, REFERENCE) for run in (near, far)], "two runs")
    assert limits.curve == pytest.approx(MULTIPLE * 5e-6) and limits.gradient == LEAST
    assert limits_of([noise_between(REFERENCE, REFERENCE)], "itself").curve == LEAST
    assert limits_of([], "nothing").curve is None


def test_noise_of_a_run_that_is_not_finite_is_infinite_and_so_is_its_limit():
    broken = with_losses(lambda s, x: math.nan if s == 4 else x)
    assert noise_between(broken, REFERENCE).curve == math.inf


# ---- curves that others measured


def test_on_real_paired_curves_numerics_are_aligned_and_meaning_is_not():
    found = loss_curves.paired_words(loss_curves.paired_limits())
    assert {word for pair, word, _ in found if pair.same} == {"aligned"}
    assert "aligned" not in {word for pair, word, _ in found if not pair.same}
    assert all(accepted for _, _, accepted in found), "FlagPerf's rule tells none of them apart"


def test_on_real_unpaired_curves_nothing_is_claimed_from_one_run_in_its_warm_up():
    found = loss_curves.unpaired_words()
    assert {word for _, word, _ in found} == {"inconclusive"}
    wrong = [accepted for pair, _, accepted in found if not pair.same]
    assert sum(wrong) > 0.9 * len(wrong), "FlagPerf's rule accepts different models"
