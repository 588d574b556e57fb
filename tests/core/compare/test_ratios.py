"""Ratios with intervals: the right way round, as wide as promised, and none where nothing shows the noise."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from levelfield.compare.ratios import (
    MIN_DEVIATION,
    MIN_NIGHTS_OF_HISTORY,
    T_QUANTILES,
    HistoricNoise,
    Ratio,
    SideValues,
    compute_ratio,
    geometric_mean_interval,
    historic_noise,
    mean_ratio,
)

BASE = (100.0, 101.0, 99.0)


def of(*values: float, history: HistoricNoise | None = None) -> SideValues:
    return SideValues(values, history)


def degrees(computed: Ratio) -> int:
    """Return the degrees of freedom that a ratio's reason names."""
    match = re.search(r"(\d+) degrees of freedom", computed.reason)
    assert match
    return int(match[1])


def test_the_ratio_is_side_over_base() -> None:
    computed = compute_ratio(of(200, 202, 198), of(*BASE))
    assert computed.value == pytest.approx(2.0) and computed.standing == "higher"
    back = compute_ratio(of(*BASE), of(200, 202, 198))
    assert back.value == pytest.approx(0.5) and back.standing == "lower"
    assert computed.low is not None and back.high is not None and computed.low == pytest.approx(1 / back.high)


def test_a_shift_of_one_percent_is_one_percent() -> None:
    computed = compute_ratio(of(*(1.01 * value for value in BASE)), of(*BASE))
    assert computed.value == pytest.approx(1.01, rel=1e-12)
    narrow = compute_ratio(of(101.0, 101.02, 100.98), of(100.0, 100.02, 99.98))
    assert narrow.standing == "higher" and narrow.value == pytest.approx(1.01, rel=1e-6)


def test_the_interval_is_welchs() -> None:
    """Computed once by hand: logarithms with deviations 0.01 and 0.02, three each, so 2.94 degrees of freedom."""
    side, base = ([math.exp(s * d) for s in (-1, 0, 1)] for d in (0.02, 0.01))
    computed = compute_ratio(of(*side), of(*base))
    half = 4.3027 * math.sqrt(0.02**2 / 3 + 0.01**2 / 3)
    assert computed.high == pytest.approx(math.exp(half), rel=1e-4) and computed.low == pytest.approx(
        math.exp(-half), rel=1e-4
    )
    assert degrees(computed) == 2


def test_equal_variances_have_all_their_degrees_of_freedom() -> None:
    assert degrees(compute_ratio(of(*BASE), of(*BASE))) == 4


def test_unequal_numbers_of_runs_are_capped_by_the_smaller() -> None:
    many = tuple(100 + 3 * (-1) ** i for i in range(30))  # 29 degrees of freedom without the cap
    assert degrees(compute_ratio(of(99.9, 100.0, 100.1), of(*many))) == 3


@pytest.mark.parametrize("counts", [(1, 1), (1, 5), (5, 1), (2, 3)])
def test_too_few_runs_give_a_ratio_and_no_interval(counts: tuple[int, int]) -> None:
    side, base = ([100.0 + i for i in range(count)] for count in counts)
    computed = compute_ratio(of(*side), of(*base))
    assert (computed.low, computed.high, computed.standing) == (
        None,
        None,
        "inconclusive",
    ) and computed.value is not None
    assert f"{counts[1]} and {counts[0]} run(s)" in computed.reason


def test_a_history_shows_the_noise_of_one_run() -> None:
    noise = historic_noise([100.0, 101.0] * 5, "2026-10-11")
    assert noise and noise.runs == 10 and noise.deviation == pytest.approx(0.005, rel=0.06)
    assert compute_ratio(of(103.0, history=noise), of(100.0, history=noise)).standing == "higher"
    assert compute_ratio(of(100.5, history=noise), of(100.0, history=noise)).standing == "within noise"
    assert compute_ratio(of(103.0, history=noise), of(100.0)).standing == "inconclusive"


def test_a_short_history_shows_no_noise() -> None:
    assert historic_noise([100.0] * (MIN_NIGHTS_OF_HISTORY - 1), "2026-10-11") is None
    assert historic_noise([100.0] * (MIN_NIGHTS_OF_HISTORY - 1) + [float("nan")], "2026-10-11") is None


def test_a_wild_history_makes_a_wide_interval() -> None:
    calm, wild = HistoricNoise(0.002, 20), HistoricNoise(0.05, 20)
    assert compute_ratio(of(103.0, history=calm), of(100.0, history=calm)).standing == "higher"
    assert compute_ratio(of(103.0, history=wild), of(100.0, history=wild)).standing == "within noise"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("swap", [False, True])
def test_a_value_that_is_not_a_positive_number_gives_no_ratio(bad: float, swap: bool) -> None:
    pair = [of(100.0, bad, 101.0), of(*BASE)]
    computed = compute_ratio(*(reversed(pair) if swap else pair))
    assert (computed.value, computed.low, computed.high, computed.standing) == (None, None, None, "no ratio")


def test_no_values_give_no_ratio() -> None:
    assert compute_ratio(of(), of(*BASE)).standing == "no ratio"


def test_equal_readings_are_not_taken_for_no_noise() -> None:
    near = compute_ratio(of(*[100.1] * 3), of(*[100.0] * 3))
    assert near.standing == "within noise"
    assert compute_ratio(of(*[101.0] * 3), of(*[100.0] * 3)).standing == "higher"
    half = T_QUANTILES[4] * MIN_DEVIATION * math.sqrt(2 / 3)
    assert near.high == pytest.approx(1.001 * math.exp(half))


def test_numbers_of_any_size_are_compared_without_overflow() -> None:
    computed = compute_ratio(of(1e300, 1e-300, 1.0), of(*BASE))
    assert computed.high is not None and math.isfinite(computed.high) and computed.standing == "within noise"


@pytest.mark.parametrize("deviations", [(0.01, 0.01), (0.01, 0.05)])
@pytest.mark.parametrize("counts", [(3, 3), (3, 8), (5, 5)])
def test_identical_pairs_are_rarely_called_different(counts: tuple[int, int], deviations: tuple[float, float]) -> None:
    """Seeded: 1,000 pairs of one true speed with noise between runs; at most 5 % and what chance adds to it."""
    random, different = np.random.default_rng(13), 0
    for _ in range(1000):
        side, base = (100 * np.exp(random.normal(0, d, n)) for n, d in zip(counts, deviations, strict=True))
        different += compute_ratio(of(*side), of(*base)).standing != "within noise"
    assert different <= 50 + 2 * math.sqrt(1000 * 0.05 * 0.95)


def test_a_real_difference_is_found() -> None:
    random, computed = np.random.default_rng(14), 0
    for _ in range(200):
        side, base = (level * np.exp(random.normal(0, 0.01, 5)) for level in (105.0, 100.0))
        computed += compute_ratio(of(*side), of(*base)).standing == "higher"
    assert computed >= 190


@pytest.mark.parametrize("counts", [(3, 3), (4, 7)])
def test_the_interval_covers_the_true_ratio_as_often_as_promised(counts: tuple[int, int]) -> None:
    random, covered = np.random.default_rng(15), 0
    for _ in range(1000):
        side, base = (
            level * np.exp(random.normal(0, 0.02, n)) for level, n in zip((107.0, 100.0), counts, strict=True)
        )
        computed = compute_ratio(of(*side), of(*base))
        assert computed.low is not None and computed.high is not None
        covered += computed.low <= 1.07 <= computed.high
    assert covered >= 950 - 2 * math.sqrt(1000 * 0.05 * 0.95)


def test_single_runs_with_a_history_are_rarely_called_different() -> None:
    """The noise between nights is in the history, so single runs of different nights are judged by it."""
    random, different = np.random.default_rng(16), 0
    for _ in range(1000):
        histories = [historic_noise(list(100 * np.exp(random.normal(0, 0.01, 12))), "2026-10-11") for _ in range(2)]
        side, base = (of(100 * math.exp(random.normal(0, 0.01)), history=noise) for noise in histories)
        different += compute_ratio(side, base).standing != "within noise"
    assert different <= 50 + 2 * math.sqrt(1000 * 0.05 * 0.95)


# -- several pairs, and the interval of one side


def spread(deviation: float, middle: float = 0.0) -> SideValues:
    return of(*(math.exp(middle + step * deviation) for step in (-1, 0, 1)))


def test_the_mean_of_two_pairs_is_geometric_and_its_interval_that_of_a_sum() -> None:
    """By hand: four variances of 0.02^2 / 3 have 8 degrees of freedom, and a mean of two has half of the deviation."""
    pairs = [(spread(0.02, math.log(2)), spread(0.02)), (spread(0.02, math.log(8)), spread(0.02))]
    computed = mean_ratio(pairs)
    half = 2.3060 * math.sqrt(4 * 0.02**2 / 3) / 2
    assert computed.value == pytest.approx(4.0) and computed.standing == "higher" and degrees(computed) == 8
    assert computed.low == pytest.approx(4 * math.exp(-half)) and computed.high == pytest.approx(4 * math.exp(half))


def test_one_pair_without_an_interval_leaves_the_mean_without_one() -> None:
    computed = mean_ratio([(spread(0.01, 1), spread(0.01)), (of(50.0), spread(0.01))])
    assert computed.standing == "inconclusive" and computed.low is None and computed.label == "inconclusive"


def test_a_mean_of_no_pair_or_of_nan_is_no_ratio() -> None:
    for pairs in ([], [(spread(0.01), spread(0.01)), (of(math.nan, 1.0, 1.0), spread(0.01))]):
        assert mean_ratio(pairs).standing == "no ratio" == mean_ratio(pairs).label


def test_a_ratio_is_shown_as_a_number_only_where_the_noise_is_known() -> None:
    cases = {
        "2.000": (spread(0.001, math.log(2)), spread(0.001)),
        "1.001~": (spread(0.02, math.log(1.001)), spread(0.02)),
        "inconclusive": (of(213.0), of(1000.0)),
    }
    assert {compute_ratio(*pair).label for pair in cases.values()} == {*cases}


def test_the_interval_of_a_side_is_students_on_logarithms() -> None:
    half = 4.3027 * 0.02 / math.sqrt(3)
    low, high = geometric_mean_interval(spread(0.02)) or (0.0, 0.0)
    assert low == pytest.approx(math.exp(-half)) and high == pytest.approx(math.exp(half))
    assert geometric_mean_interval(of(100.0)) is None and geometric_mean_interval(of(100.0, 101.0)) is None
    low, high = geometric_mean_interval(of(100.0, history=HistoricNoise(0.01, 8))) or (0.0, 0.0)
    assert low == pytest.approx(100 * math.exp(-0.023646)) and high == pytest.approx(100 * math.exp(0.023646))
