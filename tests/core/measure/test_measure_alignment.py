"""Alignment: each planted fault is caught by the layer that should, and what is only rounding is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import limit_rates
import loss_curves
import pytest
from levelfield.measure import alignment as rules
from levelfield.measure.alignment import (
    AlignmentLimits,
    Limit,
    Place,
    PlacedDifference,
    TrainingCurve,
    align,
    flagperf_difference,
    limit_of_place,
    norm_difference,
)
from levelfield.measure.calibration import (
    MIN_LIMITS,
    LeastLimits,
    Noise,
    chi_square_quantile,
    noise_between,
    normal_quantile,
    tolerance_factor,
    tolerance_limits,
)

STEPS = 60
IDENTITY = {"work": "w", "corpus": "c", "initial_weights": "i", "tokens": "t"}
LIMITS = AlignmentLimits(first_step=1e-6, gradient=1e-4, curve=1e-5, source="the test")
NORMS = {"embedding.weight": 1.0, "layers.0.mlp.up.weight": 0.2, "layers.0.attention.key.bias": 3e-9}


def losses(scale: float = 1.0) -> dict[int, float]:
    return {s: scale * (2 + 5 * math.exp(-s / 12) + 0.02 * math.sin(3.7 * s)) for s in range(1, STEPS + 1)}


def training(**changes: Any) -> TrainingCurve:
    whole = TrainingCurve(STEPS, losses(), dict.fromkeys(range(1, STEPS + 1), 1.0), {1: NORMS, 10: NORMS}, IDENTITY)
    return replace(whole, **changes)


def limit_of(limit: Limit | None, place: Place) -> float:
    """The limit of a place, of a layer that has limits."""
    assert limit is not None
    return limit_of_place(limit, place)


REFERENCE = training()


def with_losses(change: Callable[[int, float], float]) -> TrainingCurve:
    return training(losses={s: change(s, loss) for s, loss in losses().items()})


def test_a_repeat_and_rounding_are_aligned() -> None:
    for run in (REFERENCE, with_losses(lambda s, loss: loss * (1 + 3e-7 * (-1) ** s))):
        finding = align(run, REFERENCE, LIMITS)
        assert (finding.verdict, [layer.passed for layer in finding.layers]) == ("aligned", [True] * 4)


@pytest.mark.parametrize(
    ("run", "verdict", "words"),
    [
        (with_losses(lambda s, x: math.nan if s >= 30 else x), "diverged", "step 30"),
        (with_losses(lambda s, x: math.inf if s == 7 else x), "diverged", "step 7"),
        (training(grad_norms={12: math.nan}), "diverged", "step 12"),
        (training(losses={s: x for s, x in losses().items() if s <= 40}), "not comparable", "step 41"),
        (training(losses={s + 1: x for s, x in losses().items()}), "not comparable", "step 1"),
        (training(losses={s: x for s, x in losses().items() if s <= 40}, steps=40), "not comparable", "40 steps"),
        (
            training(identity={**IDENTITY, "tokens": "u"}),
            "different",
            "other tokens than its work fixes (tokens: found u",
        ),
        (training(identity={**IDENTITY, "initial_weights": "v"}), "different", "(initial_weights: found v, expected "),
        (
            training(identity={**IDENTITY, "tokens": "u", "initial_weights": "v"}),
            "different",
            "; the training read other",
        ),
        (training(identity={**IDENTITY, "tokens": "u", "work": "v"}), "not comparable", "these differ: tokens, work"),
        (
            training(identity={**IDENTITY, "tokens": None, "initial_weights": "v"}),
            "not comparable",
            "initial_weights, tok",
        ),
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
        (training(gradients={1: NORMS}), "inconclusive", "no gradient norms of step 10"),
        (training(gradients={1: NORMS}, skipped={1}), "inconclusive", "no gradient norms of step 10"),
        (training(gradients={1: NORMS, 10: {**NORMS, "strange": 1.0}}), "different", "only one of the two has strange"),
    ],
)
def test_each_fault_is_caught_by_its_layer(run: TrainingCurve, verdict: str, words: str) -> None:
    finding = align(run, REFERENCE, LIMITS)
    assert finding.verdict == verdict and words in finding.reason


def test_a_step_that_the_loss_scale_skipped_has_no_gradients_and_is_right() -> None:
    assert align(training(gradients={1: NORMS}, skipped={10}), REFERENCE, LIMITS).verdict == "aligned"
    assert align(REFERENCE, training(gradients={1: NORMS}), LIMITS).verdict == "aligned"


def test_a_spike_is_seen_even_where_the_curve_has_no_limit() -> None:
    run = with_losses(lambda s, x: x * 1.4 if s == 33 else x)
    finding = align(run, REFERENCE, replace(LIMITS, curve=None))
    assert finding.verdict == "different" and "step 33" in finding.reason


def test_without_recorded_noise_nothing_is_aligned() -> None:
    finding = align(REFERENCE, REFERENCE, AlignmentLimits(None, None, None, "none"))
    assert finding.verdict == "inconclusive" and "no noise" in finding.reason


WITH_NORMS = replace(LIMITS, norms={**dict.fromkeys(range(1, STEPS + 1), 1e-4), 40: 1e-2})


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        ({30: 1.00005, 40: 1.005}, "aligned", "every layer"),
        ({30: 2.0}, "different", "norms: 1.0e+00, limit 1.0e-04 (gradient norm of step 30)"),
        ({30: 1.0002}, "different", "gradient norm of step 30"),
        ({40: 1.02}, "different", "gradient norm of step 40"),
        ({step: 0.5 for step in range(11, STEPS + 1)}, "different", "norms"),
    ],
)
def test_the_gradients_norm_is_held_at_every_step(changed: dict[int, float], verdict: str, words: str) -> None:
    run = training(grad_norms={**REFERENCE.grad_norms, **changed})
    finding = align(run, REFERENCE, WITH_NORMS)
    assert (finding.verdict, words in finding.reason) == (verdict, True), finding.reason
    assert align(run, REFERENCE, LIMITS).verdict == "aligned", "in 16 bits no limit is known without rows"


def test_a_step_without_a_norm_leaves_the_verdict_open() -> None:
    norms = {step: value for step, value in REFERENCE.grad_norms.items() if step != 33}
    finding = align(training(grad_norms=norms), REFERENCE, WITH_NORMS)
    assert finding.verdict == "inconclusive"
    assert finding.reason.startswith("norms: ")
    assert finding.reason.endswith(" step 33")


def test_rows_give_norms_their_limits_and_older_rows_a_wide_one() -> None:
    run = training(grad_norms={step: 1 + 1e-6 * step for step in range(1, STEPS + 1)})
    rows = [noise_between(run, REFERENCE)._replace(setting=str(number)) for number in range(2)]
    limits = tolerance_limits(rows, "").norms
    assert 1e-5 < limit_of(limits, 10) < limit_of(limits, 50) < 1e-2
    assert tolerance_limits([row._replace(norms=None) for row in rows], "").norms == 3e-3
    assert tolerance_limits([row._replace(norms=None) for row in rows], "", "bf16").norms is None


def test_a_norm_that_is_rounding_alone_is_held_against_the_whole_gradient() -> None:
    assert norm_difference(6e-9, NORMS, "layers.0.attention.key.bias") < 1e-5
    assert norm_difference(6e-3, NORMS, "layers.0.attention.key.bias") > 1
    assert norm_difference(math.nan, NORMS, "embedding.weight") == math.inf


def test_flagperfs_rule_alone_accepts_two_percent_and_short_runs_have_none() -> None:
    assert flagperf_difference(with_losses(lambda s, x: x * 1.019), REFERENCE) == pytest.approx(0.019)
    short = training(losses={1: 1.0})
    assert flagperf_difference(short, short) is None
    part = replace(REFERENCE, losses={s: x for s, x in REFERENCE.losses.items() if s != 30})
    assert flagperf_difference(part, REFERENCE) is None


# ---- spikes


def test_a_spike_decides_although_the_curve_has_a_limit() -> None:
    finding = align(with_losses(lambda s, x: x * 1.4 if s == 33 else x), REFERENCE, LIMITS)
    assert finding.verdict == "different"
    assert finding.reason.startswith("spikes: step 33 ")
    assert "39.8%" in finding.reason
    assert {layer.name: layer.passed for layer in finding.layers}["curve"] is True


def test_a_curve_that_stays_away_after_a_spike_is_diverged_from_the_spike_on() -> None:
    finding = align(with_losses(lambda s, x: x * (1.4 if s == 33 else 1.003 if s > 33 else 1)), REFERENCE, LIMITS)
    assert finding.verdict == "diverged" and "step 33:" in finding.reason


ZEROS = training(losses=dict.fromkeys(range(1, STEPS + 1), 0.0))


@pytest.mark.parametrize(
    ("run", "reference", "verdict"),
    [(ZEROS, ZEROS, "aligned"), (REFERENCE, ZEROS, "different"), (ZEROS, REFERENCE, "different")],
)
def test_a_curve_of_zeros_is_compared(run: TrainingCurve, reference: TrainingCurve, verdict: str) -> None:
    assert align(run, reference, LIMITS).verdict == verdict
    assert noise_between(run, reference).first_step == (0.0 if run is reference else pytest.approx(1, rel=1e301))
    one = training(losses={**ZEROS.losses, 7: 1e-3})
    assert align(one, ZEROS, LIMITS).verdict == "different" and flagperf_difference(one, ZEROS) == 0.0


# ---- final weights

WEIGHTS = {"embedding.weight": (9.0, 1.0, -2.0), "layers.0.mlp.up.bias": (0.03, 0.01, -0.02)}
ENDED = training(weights=WEIGHTS)
WEIGHED = replace(LIMITS, weights=1e-5)


def ended(name: str = "layers.0.mlp.up.bias", factors: Sequence[float] = (1.0, 1.0, 1.0)) -> TrainingCurve:
    return training(weights={**WEIGHTS, name: tuple(x * f for x, f in zip(WEIGHTS[name], factors, strict=True))})


@pytest.mark.parametrize(
    ("run", "verdict", "words"),
    [
        (ENDED, "aligned", "every layer"),
        (ended(factors=(1.000001, 1.0, 1.0)), "aligned", "every layer"),
        (ended(factors=(1.0016, 1.0016, 1.0016)), "different", "norm of layers.0.mlp.up.bias"),
        (ended(factors=(1.0, 1.0, -1.0)), "different", "a projection of layers.0.mlp.up.bias"),
        (ended(factors=(math.nan, 1.0, 1.0)), "different", "norm of layers.0.mlp.up.bias"),
        (ended(factors=(1.0, math.inf, 1.0)), "different", "a projection of layers.0.mlp.up.bias"),
        (training(weights={**WEIGHTS, "embedding.weight": (9.0,)}), "different", "embedding.weight"),
        (training(weights={"embedding.weight": WEIGHTS["embedding.weight"]}), "different", "only one"),
        (REFERENCE, "inconclusive", "did not record its final weights"),
    ],
)
def test_final_weights_are_compared_by_norm_and_projections(run: TrainingCurve, verdict: str, words: str) -> None:
    finding = align(run, ENDED, WEIGHED)
    assert finding.verdict == verdict and words in finding.reason


def test_a_reference_without_final_weights_is_named_and_does_not_leave_the_run_open() -> None:
    finding = align(ENDED, REFERENCE, WEIGHED)
    assert finding.verdict == "aligned" and "; final weights:" in finding.reason


def test_final_weights_without_noise_are_open() -> None:
    finding = align(ENDED, ENDED, LIMITS)
    assert finding.verdict == "inconclusive"
    assert finding.reason.startswith("final weights: ")
    assert finding.layers[-1].limit is None


# ---- limits that are learned


def test_the_factor_is_that_of_published_tables_and_falls_with_rows() -> None:
    # Quantiles at 5 %: Abramowitz and Stegun, 1964, table 26.8; the normal one at 1 in 2,000.
    published = {1: 0.00393214, 2: 0.102587, 3: 0.351846, 6: 1.63539, 10: 3.94030, 30: 18.4926}
    assert {n: chi_square_quantile(0.05, n) for n in published} == pytest.approx(published, rel=1e-5)
    assert normal_quantile(1) == pytest.approx(3.29053, rel=1e-5)
    factors = [tolerance_factor(rows, normal_quantile(300)) for rows in range(1, 60)]
    assert factors == sorted(factors, reverse=True) and factors[-1] > normal_quantile(300)


def test_the_limit_keeps_its_error_rate_on_normal_rows() -> None:
    """The chance that limits from ten rows are too small for one run in a hundred is 5 %."""
    draws, failures = random.Random(3), 0
    for _ in range(400):
        rows = [math.sqrt(sum(draws.gauss(0, 1) ** 2 for _ in range(10)) / 10)]
        limit = rows[0] * tolerance_factor(10, NormalDist().inv_cdf(0.995))
        failures += 2 * (1 - NormalDist().cdf(limit)) > 0.01
    assert 0.02 < failures / 400 < 0.08


def noisy(size: float, kind: str = "layout", setting: str = "", first: int = 1) -> Noise:
    """A row whose losses are `size` apart from step `first` on."""
    run = with_losses(lambda s, x: x * (1 + (size if s >= first else 0)))
    return noise_between(run, REFERENCE)._replace(kind=kind, setting=setting)


def test_limits_are_by_step_and_never_below_rounding() -> None:
    limits, least = tolerance_limits([noisy(s * 1e-6, first=20) for s in (1, 2, 3)], "three runs"), MIN_LIMITS["fp32"]
    assert limit_of(limits.curve, 19) == least.curve and limit_of(limits.first_step, 1) == least.first_step
    assert limit_of(limits.curve, 60) == pytest.approx(limit_of(limits.curve, 20)) and limit_of(limits.curve, 20) > 2e-5
    assert limit_of(limits.gradient, (1, "mlp.up.weight")) == least.gradient
    late = with_losses(lambda s, x: x * (1 + 5e-6 * (s >= 20)))
    early = with_losses(lambda s, x: x * (1 + 5e-6 * (s >= 5)))
    right, wrong = (align(run, REFERENCE, limits) for run in (late, early))
    assert (right.verdict, wrong.verdict) == ("aligned", "diverged")
    assert "step 5:" in wrong.reason


@pytest.mark.parametrize("precision", MIN_LIMITS)
def test_the_least_limits_are_those_of_the_precision(precision: str) -> None:
    rows, least = [noise_between(training(), REFERENCE)], MIN_LIMITS[precision]
    limits = tolerance_limits(rows, "the same bits", precision)
    assert limit_of(limits.first_step, 1) == least.first_step and limit_of(limits.curve, 9) == least.curve
    assert limit_of(limits.gradient, (1, "mlp.up.weight")) == least.gradient

    def are_aligned(part: float) -> list[bool]:
        first = with_losses(lambda s, x: x * (1 + part * least.first_step * (s == 1)))
        later = with_losses(lambda s, x: x * (1 + part * least.curve * (s == 9)))
        return [align(run, REFERENCE, limits).verdict == "aligned" for run in (first, later)]

    assert are_aligned(0.9) == [True, True]
    assert are_aligned(1.1) == [False, False]


def test_gradients_have_a_limit_of_their_group() -> None:
    apart = {1: {**NORMS, "layers.0.mlp.up.weight": 0.2 * (1 + 1e-5)}, 10: NORMS}
    rows = [noise_between(training(gradients=apart), REFERENCE)]
    limits = tolerance_limits(rows, "one run")
    assert limit_of(limits.gradient, (1, "mlp.up.weight")) > 1e-4
    assert limit_of(limits.gradient, (10, "mlp.up.weight")) == MIN_LIMITS["fp32"].gradient
    moved = {1: {**NORMS, "embedding.weight": 1 + 1e-4}, 10: NORMS}
    finding = align(training(gradients=moved), REFERENCE, replace(limits, curve=1e-5, first_step=1e-6))
    assert finding.verdict == "different"
    assert "(embedding.weight " in finding.reason and "step 1)" in finding.reason


def test_more_rows_make_a_limit_tighter_and_many_small_ones_do_not_hide_a_large_one() -> None:
    few, more = (tolerance_limits([noisy(1e-5 + n * 1e-9) for n in range(rows)], "") for rows in (2, 12))
    assert limit_of(more.curve, 9) < limit_of(few.curve, 9) / 2
    large = noisy(1e-5)
    small = [noisy(1e-8 * n, kind="threads") for n in range(1, 30)]
    assert limit_of(tolerance_limits([large, *small], "").curve, 9) > 5e-5


def test_repeats_and_equal_bits_are_no_further_rows() -> None:
    one = tolerance_limits([noisy(1e-5)], "")
    for other in (noisy(1e-5), noisy(0.0), noisy(0.0, kind="threads")):
        assert tolerance_limits([noisy(1e-5), other], "") == one
    alone = tolerance_limits([noisy(0.0)], "")
    assert limit_of(alone.curve, 9) == MIN_LIMITS["fp32"].curve and "1 row" in alone.source
    repeated = tolerance_limits([noisy(size, setting="DP2 on this host") for size in (1e-6, 1e-5, 5e-6)], "")
    assert limit_of(repeated.curve, 9) == pytest.approx(limit_of(one.curve, 9))
    assert "(1 layout)" in repeated.source


def test_a_row_of_maxima_alone_has_its_maximum_everywhere() -> None:
    old = Noise(1e-7, {None: 1e-6}, {None: 2e-6}, None, kind="framework")
    alone = tolerance_limits([old], "")
    assert alone.weights is None and limit_of(alone.curve, 1) == limit_of(alone.curve, 60) > 1e-4
    both = tolerance_limits([old, noisy(1e-9)], "")
    assert limit_of(both.curve, 1) == limit_of(both.curve, 60) > 1e-5
    assert "(1 framework, 1" in both.source


def test_no_noise_gives_no_limits() -> None:
    assert tolerance_limits([], "nothing").curve is None


def test_noise_of_a_run_that_is_not_finite_is_infinite_and_so_is_its_limit() -> None:
    broken = with_losses(lambda s, x: math.nan if s == 4 else x)
    assert noise_between(broken, REFERENCE).curve[4] == math.inf


def test_a_layer_names_a_place_that_says_something() -> None:
    """A key's bias is noise alone: where it holds, the layer names the next place; beyond its limit it fails."""
    key, query = ("key", "norm"), ("query", "norm")
    layers = [
        rules._judged_layer(
            "final weights", [PlacedDifference(value, key, "key"), PlacedDifference(1e-6, query, "query")],
                     {key: 25.0, query: 1e-5})
        for value in (3.4, 26.0)
    ]  # fmt: skip
    assert [(layer.passed, layer.value) for layer in layers] == [(True, 1e-6), (False, 26.0)]


# ---- curves that others measured


def test_on_real_paired_curves_numerics_are_aligned_and_meaning_is_not() -> None:
    finding = loss_curves.paired_words(loss_curves.paired_limits())
    assert {word for pair, word, _ in finding if pair.same} == {"aligned"}
    assert "aligned" not in {word for pair, word, _ in finding if not pair.same}
    assert all(accepted for _, _, accepted in finding), "FlagPerf's rule tells none of them apart"


def test_on_real_unpaired_curves_nothing_is_claimed_from_one_run_in_its_warm_up() -> None:
    finding = loss_curves.unpaired_words()
    assert {word for _, word, _ in finding} == {"inconclusive"}
    wrong = [accepted for pair, _, accepted in finding if not pair.same]
    assert sum(wrong) > 0.9 * len(wrong), "FlagPerf's rule accepts different models"


@pytest.mark.parametrize("rows", [2, 6, 9])
def test_on_recorded_noise_false_alarms_are_rare_and_every_fault_is_seen(rows: int) -> None:
    finding = limit_rates.rates("gpt", rows, draws=30)
    (alarms, runs), (former, all_runs), (seen, faults) = finding.same_kind, finding.former, finding.faults
    assert alarms == 0 and runs > 80
    assert seen == faults > 200
    if rows == 2:
        assert former > 0.1 * all_runs, "four times the largest of two rows is too small for the next run"


def test_the_rates_count_a_limit_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.measure.calibration.tolerance_factor", lambda rows, quantile: 1.0)
    monkeypatch.setitem(MIN_LIMITS, "fp32", LeastLimits(0, 0, 0, 0, 0, 0))
    alarms, runs = limit_rates.rates("gpt", 6, draws=10).same_kind
    assert alarms > runs / 2
