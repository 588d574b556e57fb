"""Time to a level of the loss: by hand, and with planted faults in the losses."""

from __future__ import annotations

import math

import pytest
from levelfield.measure.throughput import LossCrossing, StepSpan, crossing, level_of, level_step

SECOND_NS = 1_000_000_000
LOSSES = {step: 10.0 - step for step in range(1, 9)}  # 9, 8, ... 2


def spans(*seconds: float, first: int = 3) -> list[StepSpan]:
    """Return steps of a window from `first` on that last so long."""
    found, begin = [], 0
    for step, each in enumerate(seconds, start=first):
        end = begin + round(each * SECOND_NS)
        found.append(StepSpan(step, begin, end, 8))
        begin = end
    return found


WINDOW = spans(1, 1, 2, 1, 1, 1)  # steps 3 to 8


def found(level: float, tail: int = 1, losses: dict[int, float] = LOSSES) -> LossCrossing:
    place = crossing(losses, WINDOW, level, tail)
    assert isinstance(place, LossCrossing), place
    return place


def test_the_place_and_the_time_lie_between_two_steps() -> None:
    assert found(4.75) == LossCrossing(pytest.approx(5.25), pytest.approx(2 + 2 + 0.25))  # type: ignore[arg-type]
    assert found(5.0) == LossCrossing(5.0, 4.0), "at the end of a step"
    assert found(5.5).seconds == pytest.approx(2 + 0.5 * 2), "the longer step counts by its own time"


def test_the_average_looks_back_only() -> None:
    assert found(5.0, tail=3).step == pytest.approx(6.0), "mean of steps 4, 5 and 6"
    spike = {**LOSSES, 4: 4.0}
    assert found(4.75, losses=spike).step < 5, "one low step alone reaches the level"
    assert found(4.75, tail=3, losses=spike).step > 5


def test_the_time_begins_with_the_window_where_the_average_needs_more_steps_than_lie_before_it() -> None:
    assert found(6.5, tail=6) == LossCrossing(6.0, 5.0), "steps 3 to 6"
    assert found(5.0, tail=6) == LossCrossing(7.5, 6.5)


@pytest.mark.parametrize(
    ("losses", "level", "said"),
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
def test_no_place_has_a_reason(losses: dict[int, float], level: float, said: str) -> None:
    place = crossing(losses, WINDOW, level, 1)
    assert isinstance(place, str) and said in place


def test_a_fault_behind_the_place_does_not_matter() -> None:
    assert found(5.0, losses={**LOSSES, 7: math.nan}).step == 5.0


def test_a_window_from_step_1_that_begins_below_the_level() -> None:
    assert crossing(LOSSES, spans(1, 1, first=1), 9.5, 1) == LossCrossing(1.0, 1.0), "no step before it to begin from"


def test_the_level_is_of_three_quarters_of_the_reference_and_rounded_up() -> None:
    losses = [10.0 - step / 7 for step in range(1, 41)]
    assert level_step(40) == 30 and level_step(3) == 3
    mean = sum(losses[25:30]) / 5
    level = level_of(losses, 5)
    assert level is not None and mean <= level < mean + 0.01 and round(level, 2) == level
    assert level_of([2.001] * 40, 5) == 2.01
    assert level_of([math.nan] * 40, 5) is None and level_of([1.0, 1.0], 5) is None
