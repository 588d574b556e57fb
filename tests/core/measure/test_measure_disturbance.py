"""Outlying steps and what they cost: pauses, outliers, loads and clocks, each planted from both sides of its limit."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from levelfield.measure.clocks import Sighting, WindowSighting, platform_clock_reasons
from levelfield.measure.other_use import HostUse
from levelfield.measure.raw_facts import StepRecord
from levelfield.measure.throughput import StepOutliers, StepSpan, is_disturbed, step_outliers
from levelfield.specs.case import Window

SECOND = 10**9


def of(seconds: list[float]) -> StepOutliers:
    ends = [round(t * SECOND) for t in accumulate(seconds, initial=7.0)]
    return step_outliers([StepSpan(step, a, b) for step, (a, b) in enumerate(pairwise(ends), start=11)])


def test_a_pause_halves_the_rate_and_its_cost_is_known() -> None:
    outlying = of([0.5] * 20 + [20.5] + [0.5] * 19)
    assert outlying.slowest.step == 31
    assert outlying.over_median(outlying.slowest) == pytest.approx(41)
    assert outlying.lost_part(outlying.outliers) == pytest.approx(20 / 40)
    assert outlying.mean_seconds / outlying.median_seconds == pytest.approx(2)


@pytest.mark.parametrize(("factor", "outliers"), [(1.99, 0), (2.01, 1), (3.0, 1)])
def test_an_outlier_lasts_more_than_twice_the_median(factor: float, outliers: int) -> None:
    outlying = of([1.0] * 9 + [factor])
    assert len(outlying.outliers) == outliers and outlying.slowest.step == 20


def test_a_slow_half_has_no_outlier() -> None:
    """A chip that throttles is slow; trend and change point report it."""
    assert of([1.0] * 20 + [1.9] * 20).outliers == ()


@pytest.mark.parametrize(
    ("others", "cores", "factor", "explained"),
    [
        (0.0, 2, 2.1, False),
        (0.2, 2, 41.0, False),
        (1.0, 2, 4.0, True),
        (1.0, 2, 4.1, False),  # beside one of two cores: twice as long, and the square of that in lock step
        (1.0, 128, 2.1, False),  # a core of many explains nothing
        (2.0, 2, 7200.0, True),
        (2.1, 2, 7200.0, True),
        (None, 2, 2.1, False),
        (1.9, None, 2.1, False),
        (1.9, 0, 2.1, False),
        (float("nan"), 2, 2.1, False),
    ],
)
def test_others_explain_a_step_by_their_part_of_the_cores(
    others: float | None, cores: int | None, factor: float, explained: bool
) -> None:
    outlying = of([1.0] * 9 + [factor])
    assert outlying.is_explained(outlying.slowest, HostUse(others, cores)) is explained


@pytest.mark.parametrize(
    ("lost", "wall", "expected"),
    [
        (0.10, 100.0, False),
        (0.11, 100.0, True),
        (0.5, 3.9, False),  # below two seconds telemetry could show no cause
        (0.5, 4.1, True),
        (0.0, 100.0, False),
        (float("nan"), 100.0, True),
    ],
)
def test_a_window_is_disturbed_above_the_cases_limit(lost: float, wall: float, expected: bool) -> None:
    assert is_disturbed(lost, wall, 0.1) is expected


# -- the worker's clock against the platform's

WINDOW = Window(first_step=3, last_step=12)


def reasons(worker: float, least: float = 100.0, most: float = 100.3) -> list[str]:
    """The reasons for a rank that counts `worker` seconds for a window that lasted `least` to `most`."""
    records = [StepRecord(0, 2, 5 * SECOND), StepRecord(0, 12, 5 * SECOND + round(worker * SECOND))]
    begin = Sighting(0, 0)
    return platform_clock_reasons(
        records, {0: WindowSighting(begin, Sighting(round(least * SECOND), round(most * SECOND)))}, WINDOW
    )


@pytest.mark.parametrize("worker", [98.1, 100.0, 100.2, 102.2])
def test_a_clock_within_two_percent_agrees(worker: float) -> None:
    assert reasons(worker) == []


@pytest.mark.parametrize("worker", [95.0, 97.0, 103.0, 105.0, 1e5, 1e-4])
def test_a_clock_beyond_two_percent_does_not(worker: float) -> None:
    (reason,) = reasons(worker)
    assert reason.startswith("rank 0 ")
    assert [text for text in (f"{worker:.2f} s", "100.00 to", "100.30 s") if text not in reason] == [], reason


def test_a_platform_that_looked_late_accuses_nobody() -> None:
    assert reasons(50.0, least=49.0, most=120.0) == [] and reasons(47.0, least=49.0, most=120.0) != []


def test_a_short_window_is_not_judged_by_the_times_of_looking() -> None:
    assert reasons(0.05, least=-0.1, most=0.2) == []


def test_a_rank_that_was_not_seen_is_not_checked() -> None:
    records = [StepRecord(1, 2, 5 * SECOND), StepRecord(1, 12, 6 * SECOND)]
    seen = {0: WindowSighting(Sighting(0, 0), Sighting(100 * SECOND, 100 * SECOND))}
    assert platform_clock_reasons(records, seen, WINDOW) == []
    assert platform_clock_reasons(records[:1], {1: seen[0]}, WINDOW) == []
