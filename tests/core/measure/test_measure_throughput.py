"""The window, its statistics and the time to a loss, with faults planted in step times and losses."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.measure.raw_facts import StepRecord
from levelfield.measure.series import change_point, median_interval, relative_iqr, trend
from levelfield.measure.throughput import (
    LossCrossing,
    StepEnd,
    StepSpan,
    WindowError,
    level_step,
    loss_crossing,
    loss_level,
    measure_window,
    step_ends,
)
from levelfield.report import result_words
from levelfield.specs.result import Throughput

SECOND = 10**9


def steps_of(seconds: list[float], tokens: int = 1000, begin_ns: int = 5 * SECOND) -> list[StepEnd]:
    ends, now = [], begin_ns
    for number, duration in enumerate(seconds, start=1):
        now += round(duration * SECOND)
        ends.append(StepEnd(number, now, tokens))
    return ends


def measured(seconds: list[float], first: int = 3, devices: int = 2) -> Throughput:
    return measure_window(steps_of(seconds), 5 * SECOND, first, len(seconds), devices)


def noisy(n: int, seed: int = 1, spread: float = 0.02) -> list[float]:
    source = random.Random(seed)
    return [1 + spread * source.gauss(0, 1) for _ in range(n)]


def test_tokens_over_wall_time_over_devices() -> None:
    result = measured([10.0, 10.0, 1.0, 1.0, 2.0, 1.0])
    assert result.wall_seconds == 5.0
    assert result.tokens_per_second == 800.0 and result.tokens_per_second_per_device == 400.0
    seconds = result.step_seconds
    assert (seconds.steps, seconds.median, seconds.mean, seconds.minimum, seconds.maximum) == (4, 1.0, 1.25, 1.0, 2.0)
    assert seconds.p90 == pytest.approx(1.7) and seconds.spread == pytest.approx(0.25)


def test_the_warm_up_does_not_enter() -> None:
    slow, slower = measured([10.0, 10.0, 1.0, 1.0]), measured([99.0, 50.0, 1.0, 1.0])
    assert slow == slower


def test_a_window_from_the_first_step_needs_the_begin() -> None:
    steps = steps_of([2.0, 2.0])
    assert measure_window(steps, 5 * SECOND, 1, 2, 1).wall_seconds == 4.0
    with pytest.raises(WindowError, match="step 0 missing"):
        measure_window(steps, None, 1, 2, 1)


def planted(fault: str) -> list[StepEnd]:
    steps = steps_of([1.0] * 8)
    faults = {
        "missing": steps[:4] + steps[5:],
        "lost its start": steps[2:],
        "lost its end": steps[:7],
        "repeated": [*steps[:5], steps[4], *steps[5:]],
        "swapped": [*steps[:4], steps[5], steps[4], *steps[6:]],
        "no time": [*steps[:4], replace(steps[4], end_ns=steps[3].end_ns), *steps[5:]],
        "clock went back": [*steps[:5], replace(steps[5], end_ns=steps[2].end_ns), *steps[6:]],
        "no tokens": [*steps[:5], replace(steps[5], tokens=0), *steps[6:]],
        "empty": [],
    }
    return faults[fault]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missing", "step 5 missing"),
        ("lost its start", "step 2 missing"),
        ("lost its end", "step 8 missing"),
        ("repeated", "step 5 repeated"),
        ("swapped", "step 5 out of order"),
        ("no time", "step 5 took no time"),
        ("clock went back", "step 6 took no time"),
        ("no tokens", "step 6: found 0 tokens"),
        ("empty", "and 2 more missing"),
    ],
)
def test_a_planted_fault_is_refused_by_its_name(fault: str, words: str) -> None:
    with pytest.raises(WindowError, match=words):
        measure_window(planted(fault), 5 * SECOND, 3, 8, 1)


@pytest.mark.parametrize(("first", "last", "devices"), [(0, 3, 1), (4, 3, 1), (2, 3, 0)])
def test_a_window_that_is_none_is_refused(first: int, last: int, devices: int) -> None:
    with pytest.raises(WindowError, match="is none"):
        measure_window(steps_of([1.0] * 4), 5 * SECOND, first, last, devices)


def test_ranks_are_timed_by_their_own_clock_and_the_slowest_counts() -> None:
    here = [StepRecord(0, k, k * SECOND, tokens=10) for k in range(1, 5)]
    elsewhere = [StepRecord(1, k, 10**15 + round(k * 1.1 * SECOND), tokens=20) for k in range(1, 5)]
    result = step_ends(here + elsewhere, 2, 4)
    assert [s.tokens for s in result] == [30] * 4
    assert measure_window(result, None, 2, 4, 2).wall_seconds == pytest.approx(3.3)


def test_a_rank_that_stopped_early_does_not_time_the_window() -> None:
    whole = [StepRecord(0, k, k * SECOND, tokens=10) for k in range(1, 5)]
    cut = [StepRecord(1, k, k * 2 * SECOND, tokens=10) for k in range(1, 3)]
    assert [s.step for s in step_ends(whole + cut, 2, 4)] == [1, 2, 3, 4]
    assert step_ends([], 2, 4) == ()


def test_even_steps_raise_no_flag() -> None:
    flags = [measured(noisy(40, seed)).step_seconds.flags for seed in range(60)]
    assert sum(map(bool, flags)) <= 3


def test_a_trend_is_flagged() -> None:
    rising = [t * (1 + 0.003 * i) for i, t in enumerate(noisy(40))]
    (flag,) = (f for f in measured(rising).step_seconds.flags if f.startswith("trend: step time drifts by +"))
    assert "of its median over the window, on a line from 0.9" in result_words.flag_in_words(flag), (
        "the report knows these words"
    )


def test_a_shift_is_said_as_what_it_is_a_share_of() -> None:
    """From 1.0 to 0.5 s in the last third of 30 steps: half of the window's median, which is 1.0."""
    (flag,) = (f for f in measured([1.0, 1.001] * 10 + [0.5] * 10).step_seconds.flags if f.startswith("change point"))
    assert result_words.flag_in_words(flag).startswith(
        "change point: step time shifts by -50.0% of the window's median at step "
    )
    assert result_words.flag_in_words(flag).endswith(flag[flag.index(" at step") :])


def test_a_change_point_is_flagged_at_its_step() -> None:
    stepped = [t * (1.2 if i >= 20 else 1.0) for i, t in enumerate(noisy(40))]
    flags = measured(stepped).step_seconds.flags
    assert any("change point" in f and "at step 21 " in f for f in flags)


def test_a_drift_too_small_to_matter_is_not_flagged() -> None:
    exact = [1 + 1e-5 * i for i in range(40)]
    assert trend(exact).p < 1e-6 and measured(exact).step_seconds.flags == ()


def test_few_steps_are_not_judged_and_say_so() -> None:
    result = measured([1.0] * 2 + [1.0, 2.0, 3.0, 4.0]).step_seconds
    assert result.flags == () and "need 10" in str(result.unchecked)


def test_one_outlier_moves_neither_slope_nor_change_point() -> None:
    values = noisy(30)
    values[15] = 50.0
    assert abs(trend(values).drift) < 0.05 and trend(values).p > 0.01 and change_point(values).p > 0.01


def test_mann_kendall_against_the_formula_by_hand() -> None:
    """1..10 in order: S = 45, variance 10 * 9 * 25 / 18 = 125, z = 44 / sqrt(125)."""
    result = trend([float(v) for v in range(1, 11)])
    assert result.slope == 1.0
    assert result.p == pytest.approx(math.erfc(44 / math.sqrt(125) / math.sqrt(2)))
    assert trend([2.0] * 10).p == 1.0


def test_pettitt_against_the_formula_by_hand() -> None:
    """Five low, five high: K = 25 at the sixth value, p = 2 exp(-6 * 625 / 1100)."""
    result = change_point([1.0] * 5 + [3.0] * 5)
    assert result.index == 5 and result.shift == 1.0
    assert result.p == pytest.approx(2 * math.exp(-6 * 625 / 1100))


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=30))
def test_reversing_a_series_turns_its_slope(values: list[float]) -> None:
    forward, backward = trend(values), trend(values[::-1])
    assert forward.slope == pytest.approx(-backward.slope, abs=1e-12) and forward.p == pytest.approx(backward.p)


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=30), st.floats(0.5, 1000))
def test_units_do_not_change_relative_figures(values: list[float], factor: float) -> None:
    scaled = [v * factor for v in values]
    assert relative_iqr(scaled) == pytest.approx(relative_iqr(values), abs=1e-9)


def test_the_interval_of_repeats_states_its_method() -> None:
    for values in ([5.0], [5.0, 6.0]):
        few = median_interval(values)
        assert (few.n, few.low, few.high, few.coverage) == (len(values), None, None, None)
        assert few.method == f"not enough runs: {len(values)}, expected at least 3"
    three = median_interval([100.0, 101.0, 102.0])
    assert three.median == 101.0 and three.method.startswith("student-t")
    logarithms = [math.log(value) for value in (100.0, 101.0, 102.0)]
    half = 4.3027 * statistics.stdev(logarithms) / math.sqrt(3)
    assert three.low == pytest.approx(math.exp(statistics.fmean(logarithms) - half))
    assert three.high == pytest.approx(math.exp(statistics.fmean(logarithms) + half))
    nine = median_interval([float(v) for v in range(1, 10)])
    assert (nine.low, nine.high, nine.method) == (2.0, 8.0, "order statistics")
    assert nine.coverage == pytest.approx(1 - 2 * (1 + 9) / 2**9)


def test_no_interval_reaches_what_cannot_be() -> None:
    """Two steps of 1 and 3 s had an interval from -10.7 s, and MFUs of 40 and 55 % one up to 143 %."""
    low, high = median_interval([1.0, 3.0, 9.0]).low, median_interval([0.40, 0.55, 0.95], largest_possible=1.0).high
    assert low is not None and 0 < low < 1 and high == 1.0
    assert median_interval([0.40, 0.41, 0.40], largest_possible=1.0).high != 1.0
    extreme = median_interval([1e-300, 1.0, 1e300])
    assert extreme.low is not None and extreme.high is not None and extreme.low > 0 and math.isfinite(extreme.high)
    assert median_interval([0.0, 1.0, 1.0]).method == "student-t about the mean"  # a logarithm of zero is none


def test_six_repeats_are_the_first_to_have_a_distribution_free_interval() -> None:
    six = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.low, six.high) == (1.0, 6.0) and six.coverage == pytest.approx(0.96875)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_repeats_that_are_no_numbers_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="all finite"):
        median_interval(values)


@given(st.integers(6, 60))
def test_order_statistics_cover_at_least_what_they_say(n: int) -> None:
    result = median_interval([float(v) for v in range(n)])
    assert result.low is not None and result.high is not None and result.coverage is not None
    rank = round(result.low)
    outside = 2 * sum(math.comb(n, k) for k in range(rank + 1)) / 2**n
    assert result.coverage == pytest.approx(1 - outside) and result.coverage >= 0.95
    assert result.high == n - 1 - rank


@pytest.mark.parametrize("ties", [False, True])
def test_the_change_point_is_that_of_all_pairs(ties: bool) -> None:
    values = np.random.default_rng(5).normal(size=61) + np.repeat([0, 0.6], [25, 36])
    values = np.round(values, 0 if ties else 9)
    signs = np.sign(values[None, :] - values[:, None])
    scores = np.abs([signs[:t, t:].sum() for t in range(1, 61)])
    result = change_point(values)
    best = scores[result.index - 1]
    assert best == scores.max()
    assert result.p == pytest.approx(min(1.0, 2 * math.exp(-6 * best**2 / (61**3 + 61**2))))


def test_a_run_of_a_hundred_thousand_steps_has_a_trend_and_a_change_point() -> None:
    """By all pairs both would take 40 GB."""
    noise = np.random.default_rng(6).normal(scale=0.01, size=100_000)
    steady, drifting = list(1 + noise), list(1 + noise + np.linspace(0, 0.1, 100_000))
    assert abs(trend(steady).drift) < 0.01 and change_point(steady).p > 1e-6
    result = trend(drifting)
    assert result.drift == pytest.approx(0.1 / 1.05, rel=0.05) and result.slope == pytest.approx(1e-6, rel=0.05)
    assert change_point(drifting).p < 1e-6 and result.p < 1e-6


# ---- time to a level of the loss

LOSSES = {step: 10.0 - step for step in range(1, 9)}  # 9, 8, ... 2


def spans(*seconds: float, first: int = 3) -> list[StepSpan]:
    """Return steps of a window from `first` on that last so long."""
    ends = [round(second * SECOND) for second in accumulate(seconds, initial=0)]
    return [StepSpan(step, begin, end, 8) for step, (begin, end) in enumerate(pairwise(ends), start=first)]


WINDOW = spans(1, 1, 2, 1, 1, 1)  # steps 3 to 8


def reached(level: float, tail: int = 1, losses: dict[int, float] = LOSSES) -> LossCrossing:
    place = loss_crossing(losses, WINDOW, level, tail)
    assert isinstance(place, LossCrossing), place
    return place


def test_the_place_and_the_time_lie_between_two_steps() -> None:
    assert reached(4.75) == LossCrossing(pytest.approx(5.25), pytest.approx(2 + 2 + 0.25))  # type: ignore[arg-type]
    assert reached(5.0) == LossCrossing(5.0, 4.0), "at the end of a step"
    assert reached(5.5).seconds == pytest.approx(2 + 0.5 * 2), "the longer step counts by its own time"


def test_the_average_looks_back_only() -> None:
    assert reached(5.0, tail=3).step == pytest.approx(6.0), "mean of steps 4, 5 and 6"
    spike = {**LOSSES, 4: 4.0}
    assert reached(4.75, losses=spike).step < 5, "one low step alone reaches the level"
    assert reached(4.75, tail=3, losses=spike).step > 5


def test_the_time_begins_with_the_window_where_the_average_needs_more_steps_than_lie_before_it() -> None:
    assert reached(6.5, tail=6) == LossCrossing(6.0, 5.0), "steps 3 to 6"
    assert reached(5.0, tail=6) == LossCrossing(7.5, 6.5)


@pytest.mark.parametrize(
    ("losses", "level", "words"),
    [
        (LOSSES, 1.9, "does not reach 1.9 by step 8"),
        (LOSSES, 8.0, "is at 8 in step 2 already, before the window"),
        ({**LOSSES, 5: math.nan}, 4.0, "the loss of step 5"),
        ({**LOSSES, 5: math.inf}, 4.0, "the loss of step 5"),
        ({step: loss for step, loss in LOSSES.items() if step != 5}, 4.0, "the loss of step 5"),
        ({}, 4.0, "the loss of step 1"),
        (LOSSES, math.nan, "does not reach nan"),
    ],
)
def test_no_place_has_a_reason(losses: dict[int, float], level: float, words: str) -> None:
    place = loss_crossing(losses, WINDOW, level, 1)
    assert isinstance(place, str) and words in place


def test_a_fault_behind_the_place_does_not_matter() -> None:
    assert reached(5.0, losses={**LOSSES, 7: math.nan}).step == 5.0


def test_a_window_from_step_1_that_begins_below_the_level() -> None:
    assert loss_crossing(LOSSES, spans(1, 1, first=1), 9.5, 1) == LossCrossing(1.0, 1.0), (
        "no step before it to begin from"
    )


def test_the_level_is_of_three_quarters_of_the_reference_and_rounded_up() -> None:
    losses = [10.0 - step / 7 for step in range(1, 41)]
    assert level_step(40) == 30 and level_step(3) == 3
    mean = sum(losses[25:30]) / 5
    level = loss_level(losses, 5)
    assert level is not None and mean <= level < mean + 0.01 and round(level, 2) == level
    assert loss_level([2.001] * 40, 5) == 2.01
    assert loss_level([math.nan] * 40, 5) is None and loss_level([1.0, 1.0], 5) is None
