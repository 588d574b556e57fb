"""The paired test: what it decides, what it does not, and how often it is wrong."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from gate_points import costs, noise
from levelfield.series.level import level_of
from levelfield.series.pairs import (
    ALPHA_BY_PAIRS,
    MAX_PAIRS,
    MIN_PAIRS,
    correct_by_null_pairs,
    judge_pairs,
    pairs_so_far,
)

TOKENS, MEMORY = "tokens_per_second_per_device", "memory_bytes"


def tokens(change: float, deviation: float = 0.005, seed: int = 1, night: float = 1.0) -> list[tuple[float, float]]:
    """Pairs of tokens/s at 1,000: B is changed, and the night slows both."""
    generator = random.Random(seed)

    def run() -> float:
        return 1000 * night * math.exp(generator.gauss(0, deviation))

    return [(run(), run() * (1 + change)) for _ in range(MAX_PAIRS)]


@pytest.mark.parametrize(
    ("change", "direction", "word"),
    [(-0.05, 1, "regression"), (0.0, 1, "no change"), (0.05, 1, "no change"), (0.05, -1, "improvement")],
)
def test_fewer_tokens_are_a_regression_and_more_are_an_improvement(change: float, direction: int, word: str) -> None:
    ruling = judge_pairs(tokens(change), TOKENS, direction, None)
    assert ruling.word == word and MIN_PAIRS <= ruling.pairs <= MAX_PAIRS


def test_swapped_sides_are_no_regression() -> None:
    swapped = [(b, a) for a, b in tokens(-0.05)]
    assert judge_pairs(swapped, TOKENS, 1, None).word == "no change"
    assert judge_pairs(swapped, TOKENS, -1, None).word == "improvement"


def test_more_memory_is_a_regression() -> None:
    pairs = [(b, a) for a, b in tokens(-0.05)]  # the second of each is larger
    assert judge_pairs(pairs, MEMORY, 1, None).word == "regression"
    assert judge_pairs(tokens(-0.05), MEMORY, 1, None).word == "no change"


def test_a_change_below_the_floor_is_none_however_sure_it_is() -> None:
    exact = [(1000.0, 992.0)] * 7
    assert judge_pairs(exact, TOKENS, 1, None).word == "no change"
    assert judge_pairs([(1000.0, 985.0)] * 7, TOKENS, 1, None).word == "regression"


def test_a_night_that_slows_both_builds_is_no_regression() -> None:
    level = level_of(costs([value - math.log(1000) for value in noise(30)]), "n1")
    slow = tokens(0.0, night=0.88)
    assert judge_pairs(slow, TOKENS, 1, None).word == "no change"
    ruling = judge_pairs(slow, TOKENS, 1, level)
    assert ruling.word == "bad night" and ruling.mean_cost_a == pytest.approx(-math.log(880), abs=0.01)
    assert judge_pairs(tokens(-0.06, night=0.88), TOKENS, 1, level).word == "regression", "both can be true"


def test_a_unit_mix_up_is_seen() -> None:
    """Milliseconds for seconds on one side: a thousand times, not a few percent."""
    assert judge_pairs([(a, b / 1000) for a, b in tokens(0.0)], TOKENS, 1, None).word == "regression"
    both = [(a / 1000, b / 1000) for a, b in tokens(0.0)]
    level = level_of(costs([value - math.log(1000) for value in noise(30)]), "n1")
    assert judge_pairs(both, TOKENS, 1, level).word == "bad night"


@pytest.mark.parametrize("broken", [None, math.nan, math.inf, 0.0, -5.0])
def test_a_pair_without_two_numbers_does_not_count(broken: float | None) -> None:
    good = tokens(-0.05)
    ruling = judge_pairs([(broken, 1000.0), (1000.0, broken), *good], TOKENS, 1, None)
    assert ruling.word == "regression" and ruling == judge_pairs(good, TOKENS, 1, None)
    assert judge_pairs([(broken, 1000.0)] * 7, TOKENS, 1, None).word == "inconclusive"


def test_too_few_pairs_decide_nothing() -> None:
    assert judge_pairs([], TOKENS, 1, None).word == "inconclusive"
    assert judge_pairs(tokens(-0.5)[:2], TOKENS, 1, None).word == "inconclusive"
    pairs = [(1000.0, 500.0 + i) for i in range(3)]
    assert [pairs_so_far(pairs[:n], TOKENS).word for n in (0, 1, 2, 3)] == ["more pairs"] * 3 + ["regression"]


def test_noise_that_hides_a_change_is_inconclusive_with_a_number() -> None:
    ruling = judge_pairs(tokens(-0.03, deviation=0.03, seed=4), TOKENS, 1, None)
    assert ruling.word == "inconclusive" and ruling.more_pairs is not None and ruling.more_pairs > MAX_PAIRS
    assert ruling.low is not None and ruling.high is not None and ruling.low < 0.03 < ruling.high


def test_the_test_stops_as_soon_as_it_knows() -> None:
    assert judge_pairs(tokens(-0.30, deviation=0.001), TOKENS, 1, None).pairs == MIN_PAIRS
    assert judge_pairs(tokens(0.02, deviation=0.002), TOKENS, 1, None).pairs == MIN_PAIRS


def test_the_error_is_spread_over_the_looks() -> None:
    assert set(ALPHA_BY_PAIRS) == set(range(MIN_PAIRS, MAX_PAIRS + 1)) and sum(
        ALPHA_BY_PAIRS.values()
    ) == pytest.approx(0.001)


@pytest.mark.parametrize("deviation", [0.01, 0.03])
def test_equal_builds_are_hardly_ever_different(deviation: float) -> None:
    """In 1,500 comparisons of equal builds at most .001 are expected: 1.5, and rarely more than 6."""
    wrong = sum(judge_pairs(tokens(0.0, deviation, s), TOKENS, 1, None).word == "regression" for s in range(1500))
    assert wrong <= 6


def test_five_percent_is_found_at_a_noise_of_one_percent() -> None:
    run = 0.01 * math.sqrt(0.5)  # half of a night's variance is the run's
    regressions = sum(judge_pairs(tokens(-0.05, run, s), TOKENS, 1, None).word == "regression" for s in range(300))
    assert regressions >= 285


def exactly(change: float, count: int, scatter: float) -> list[tuple[float, float]]:
    """Pairs of memory whose differences of costs have this mean and, in turns, this distance from it."""
    return [(1.0, math.exp(change + scatter * (-1) ** i)) for i in range(count)]


def test_an_open_regression_is_gone_where_nothing_is_left_beside_the_arms_bias() -> None:
    """Pairs alone can never find it gone: with one build in both arms they show 1.5 %."""
    ruling = judge_pairs(exactly(0.015, 7, 0.010), MEMORY, 1, None)
    nulls = exactly(0.015, 12, 0.008)
    assert (ruling.word, ruling.build_word) == ("inconclusive", "inconclusive")
    assert correct_by_null_pairs(ruling, nulls, (), MEMORY) is ruling, "no regression was named: nothing to take back"
    gone = correct_by_null_pairs(ruling, nulls[:3], nulls[3:], MEMORY, is_open=True)
    assert (gone.word, gone.build_word, gone.is_bias_removed) == ("no change", "no change", True)
    bad = correct_by_null_pairs(replace(ruling, word="bad night"), nulls, (), MEMORY, is_open=True)
    assert (bad.word, bad.build_word) == ("bad night", "no change")
    for steady in (exactly(0.0, 12, 0.008), exactly(-0.01, 12, 0.008), exactly(0.004, 12, 0.02), []):
        assert correct_by_null_pairs(ruling, steady, (), MEMORY, is_open=True) is ruling, "no bias explains it"
    there = judge_pairs(exactly(0.045, 7, 0.035), MEMORY, 1, None)
    assert correct_by_null_pairs(there, nulls, (), MEMORY, is_open=True) is there, "3 % are left, and not decided"


@pytest.mark.parametrize(("change", "bias", "word"), [
    (0.0260, 0.0090, "inconclusive"),  # 3.78 errors; t of .0025 and 8 degrees is 3.83
    (0.0265, 0.0090, "regression"),  # 3.89
    (0.0400, 0.0157, "inconclusive"),  # 5.41; the bias excludes 0, and t of .0003 and 8 degrees is 5.46
    (0.0400, 0.0152, "regression"),  # 5.52
])  # fmt: skip
def test_null_pairs_share_one_scatter_with_the_pairs(change: float, bias: float, word: str) -> None:
    """Pairs that show a regression often scatter less than others by chance: their own error says too little."""
    ruling = judge_pairs(exactly(change, 6, 0.001), MEMORY, 1, None)
    assert (ruling.word, ruling.pairs) == ("regression", 4)
    checked = correct_by_null_pairs(ruling, exactly(bias, 6, 0.008), (), MEMORY)
    assert checked.word == word
    if checked.is_bias_removed:
        squares = 4 * 0.001**2 + 6 * 0.008**2
        assert checked.excess == pytest.approx(change - bias)
        assert checked.standard_error == pytest.approx(math.sqrt(squares / 8 * (1 / 4 + 1 / 6)))


@pytest.mark.parametrize(("stored", "expected"), [(0, 7), (3, 4), (7, 0), (21, 0)])
def test_seven_null_pairs_run_before_a_regression_is_named(stored: int, expected: int) -> None:
    ruling = judge_pairs(exactly(0.05, 6, 0.001), MEMORY, 1, None)
    further = iter(exactly(0.0, 14, 0.004))
    assert correct_by_null_pairs(ruling, exactly(0.0, stored, 0.004), further, MEMORY).word == "regression"
    assert len(list(further)) == 14 - expected
