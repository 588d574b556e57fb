"""Gradient norms of the window in 8 and 16 bits: what stays on one side for all its steps is found, chaos is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from levelfield.measure.alignment import (
    AlignmentLimits,
    TrainingCurve,
    align,
    interpolation_position,
    truncate_before,
    window_differences,
    window_layer,
)
from levelfield.measure.calibration import MIN_LIMITS, merge_noise, noise_between, tolerance_limits
from levelfield.measure.weights import WHOLE_GRADIENT, Norms, window_norms
from levelfield.specs.case import Window

FIRST, LAST = 11, 40
STEPS = range(FIRST, LAST + 1)
LIMITS = AlignmentLimits(1e-5, 1e-2, 1e-3, "the test", window=0.01)
GROUPS = {"embedding.weight": 0.5, "attention.query.weight": 0.2, "mlp.up.weight": 0.3, WHOLE_GRADIENT: 1.0}

Change = Callable[[int, str, float], float]


def norms(change: Change = lambda step, group, norm: norm) -> Norms:
    return {
        step: {group: change(step, group, norm * (2 + math.sin(step))) for group, norm in GROUPS.items()}
        for step in STEPS
    }


def training(window: Norms | None = None, skipped: tuple[int, ...] = ()) -> TrainingCurve:
    losses = {step: 2 + 5 * math.exp(-step / 12) for step in range(1, LAST + 1)}
    gradients = {1: {"embedding.weight": 1.0}}
    return TrainingCurve(
        LAST,
        losses,
        gradients=gradients,
        identity={"work": "w"},
        window_norms=norms() if window is None else window,
        skipped=frozenset(skipped),
    )


REFERENCE = training()


def chaos(size: float, seed: int = 1) -> Change:
    """Every step moves by its own random part, as trainings that part from each other do."""
    numbers = random.Random(seed)
    return lambda step, group, norm: norm * (1 + numbers.gauss(0, size))


FAULTS: dict[str, Change] = {
    "1 % larger": lambda step, group, norm: norm * 1.011,
    "one group 1.5 % smaller": lambda step, group, norm: norm * (0.985 if group == "mlp.up.weight" else 1),
    "1.5 % in the last third": lambda step, group, norm: norm * (1.015 if step > 30 else 1),
    "1.5 % in the first third": lambda step, group, norm: norm * (0.985 if step <= 20 else 1),
    "squares": lambda step, group, norm: norm * norm,
    "a shift by one step": lambda step, group, norm: GROUPS[group] * (2 + math.sin(step + 1)),
    "one NaN": lambda step, group, norm: math.nan if (step, group) == (33, "mlp.up.weight") else norm,
    "one infinity": lambda step, group, norm: math.inf if step == 12 else norm,
    "zeros": lambda step, group, norm: 0.0 if group == "embedding.weight" else norm,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_moves_the_window_is_different(fault: str) -> None:
    run = training(norms(FAULTS[fault]))
    assert window_layer(run, REFERENCE, LIMITS).passed is False
    finding = align(run, REFERENCE, LIMITS)
    assert (finding.verdict, finding.reason[:7]) == ("different", "window:")


@pytest.mark.parametrize(
    "honest",
    [
        lambda step, group, norm: norm,
        chaos(0.02),
        lambda step, group, norm: norm * (1.3 if step in (19, 20, 21) else 1),
        lambda step, group, norm: norm * (1 + 0.05 * (-1) ** step),
    ],
)
def test_what_moves_single_steps_to_either_side_is_aligned(honest: Change) -> None:
    run = training(norms(honest))
    assert window_layer(run, REFERENCE, LIMITS).passed is True
    assert align(run, REFERENCE, LIMITS).verdict == "aligned"


def test_a_run_without_a_step_or_a_group_is_open_and_names_it() -> None:
    without_step = {step: groups for step, groups in norms().items() if step != 17}
    without_group = norms()
    without_group[25] = {WHOLE_GRADIENT: 1.0}
    for run, place in (
        (without_step, "step 17"),
        (without_group, "attention.query.weight at step 25"),
        ({}, "step 11"),
    ):
        layer = window_layer(training(run), REFERENCE, LIMITS)
        assert layer.passed is None and place in layer.detail
        assert align(training(run), REFERENCE, LIMITS).verdict == "inconclusive"


def test_a_step_that_the_loss_scale_skipped_is_not_compared() -> None:
    rest = {step: groups for step, groups in norms().items() if step != 17}
    assert window_layer(training(rest, skipped=(17,)), REFERENCE, LIMITS).passed is True
    assert window_layer(training({}, skipped=tuple(STEPS)), REFERENCE, LIMITS).passed is None


def test_a_reference_without_the_window_has_no_such_layer() -> None:
    names = [layer.name for layer in align(training(), training({}), LIMITS).layers]
    assert names == [layer.name for layer in align(training({}), training({}), LIMITS).layers]
    assert "window" not in names and "window" in [layer.name for layer in align(REFERENCE, REFERENCE, LIMITS).layers]


def test_a_norm_that_is_only_rounding_is_compared_with_the_whole_gradient() -> None:
    tiny = {step: {**groups, "attention.key.bias": 1e-9} for step, groups in norms().items()}
    other = {step: {**groups, "attention.key.bias": 5e-9} for step, groups in norms().items()}
    assert window_layer(training(other), training(tiny), LIMITS).passed is True


def test_groups_are_all_parameters_of_one_name_and_only_of_the_window() -> None:
    by_parameter = {
        step: {"embedding.weight": 1.0, "layers.0.mlp.up.weight": 3.0, "layers.1.mlp.up.weight": 4.0}
        for step in (1, 5, 6)
    }
    groups_by_step = window_norms(by_parameter, {step: 5.1 for step in range(1, 9)}, Window(first_step=5, last_step=7))
    groups = {"embedding.weight": 1.0, "mlp.up.weight": 5.0, WHOLE_GRADIENT: 5.1}
    assert groups_by_step == {5: groups, 6: groups, 7: {WHOLE_GRADIENT: 5.1}}


def test_a_mixture_is_compared_before_its_first_changed_choice() -> None:
    assert list(truncate_before(REFERENCE, 14).window_norms) == [11, 12, 13]


# ---- noise


def noisy(seed: int) -> TrainingCurve:
    return training(norms(chaos(0.01, seed)))


def test_rows_give_each_group_a_limit_and_honest_runs_hold_it() -> None:
    rows = [noise_between(noisy(seed), REFERENCE)._replace(kind="layout", setting=str(seed)) for seed in range(8)]
    limits = tolerance_limits(rows, "rows", "bf16")
    assert isinstance(limits.window, dict)
    assert set(limits.window) == {(third, group) for third in ("11-20", "21-30", "31-40") for group in GROUPS}
    assert all(window_layer(noisy(seed), REFERENCE, limits).passed for seed in range(100, 200))
    moved = training(norms(lambda step, group, norm: norm * 1.04))
    assert window_layer(moved, REFERENCE, limits).passed is False


def test_rows_without_the_window_give_none() -> None:
    row = noise_between(training({}), REFERENCE)
    assert row.window is None and tolerance_limits([row], "rows", "bf16").window is None
    some = {step: groups for step, groups in norms().items() if step != 30}
    assert noise_between(training(some), REFERENCE).window is None


def test_rows_of_one_setting_keep_the_larger_difference_of_each_place() -> None:
    rows = [noise_between(noisy(seed), REFERENCE)._replace(setting="one") for seed in (1, 2)]
    older = rows[0]._replace(window=None)
    (row,) = merge_noise([older, *rows])
    first, second = (row.window or {} for row in rows)
    assert row.window == {place: max(first[place], second[place]) for place in first}


def test_no_limit_is_below_the_least_one() -> None:
    rows = [noise_between(training(norms(chaos(1e-6, seed))), REFERENCE)._replace(setting=str(seed)) for seed in (1, 2)]
    limits = tolerance_limits(rows, "rows", "bf16").window
    assert isinstance(limits, dict) and set(limits.values()) == {MIN_LIMITS["bf16"].window}


def test_the_difference_is_signed_before_it_is_averaged() -> None:
    moved = training(norms(lambda step, group, norm: norm * 1.004))
    sides = training(norms(lambda step, group, norm: norm * (1.004 if step % 2 else 0.996)))
    assert all(d.value == pytest.approx(0.004) for d in window_differences(moved, REFERENCE))
    assert all(d.value < 0.001 for d in window_differences(sides, REFERENCE))


@pytest.mark.parametrize(
    ("last", "thirds"),
    [(11, ["11-11"]), (12, ["11-11", "12-12"]), (14, ["11-11", "12-13", "14-14"]), (40, ["11-20", "21-30", "31-40"])],
)
def test_the_window_has_thirds_also_where_it_is_short(last: int, thirds: list[str]) -> None:
    short = training({step: groups for step, groups in norms().items() if step <= last})
    assert list(dict.fromkeys(d.place[0] for d in window_differences(short, short))) == thirds  # type: ignore[index]


# ---- from bf16 to fp8


def test_where_a_run_lies_between_two_precisions() -> None:
    start = {"a": 1.0, "b": 2.0, "layers.0.attention.key.bias": 1e-9}
    end = {"a": 1.01, "b": 1.98, "layers.0.attention.key.bias": 5e-9}
    middle = {name: math.sqrt(start[name] * end[name]) for name in start}
    assert interpolation_position(start, start, end) == pytest.approx(0)
    assert interpolation_position(end, start, end) == pytest.approx(1)
    assert interpolation_position(middle, start, end) == pytest.approx(0.5)
    assert interpolation_position({**start, "layers.0.attention.key.bias": 1.0}, start, end) == pytest.approx(0)


@pytest.mark.parametrize("run", [{}, {"a": 0.0}, {"other": 1.0}])
def test_without_a_common_norm_nothing_is_known(run: dict[str, float]) -> None:
    assert math.isnan(interpolation_position(run, {"a": 1.0}, {"a": 1.01}))


def test_the_layer_is_left_out_of_what_it_does_not_know() -> None:
    assert (
        window_layer(replace(REFERENCE, window_norms=norms()), REFERENCE, replace(LIMITS, window=None)).passed is None
    )
