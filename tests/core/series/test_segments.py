"""Segments: what is evidence, what counts once, and where the conditions change."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from gate_points import at, day, nights, point
from levelfield.series.segments import change_of, cost_of, level_points, observations, segments_of, value_of
from levelfield.specs.record import GatedFigure

TOKENS: GatedFigure = "tokens_per_second_per_device"


def cost(value: float, figure: GatedFigure) -> float:
    number = cost_of(value, figure)
    assert number is not None
    return number


@pytest.mark.parametrize(
    "change",
    [
        {"word": "invalid"},
        {"word": "failed"},
        {"evidence": "unsealed"},
        {"evidence": "tampered"},
        {"verdict": "different"},
        {"verdict": "diverged"},
        {"purpose": "confirm-a"},
        {"purpose": "confirm-b"},
    ],
)
def test_what_is_no_evidence_never_enters_a_history(change: dict[str, Any]) -> None:
    assert level_points([point(0), point(1, **change)]) == [point(0)]


def test_runs_that_are_left_out_and_runs_that_come_twice() -> None:
    assert level_points([point(0), point(1), point(1), point(2)], {"run002"}) == [point(0), point(1)]


def test_any_order_gives_the_same_segments() -> None:
    points = [point(i, conditions="c1" if i < 5 else "c2") for i in range(10)]
    mixed = points.copy()
    random.Random(3).shuffle(mixed)
    segments = segments_of(level_points(mixed))
    assert [len(segment.points) for segment in segments] == [5, 5]
    assert [segment.previous_index for segment in segments] == [None, 0]


def test_a_change_of_conditions_begins_a_segment_and_so_does_the_way_back() -> None:
    segments = segments_of([point(i, conditions=c) for i, c in enumerate(["c1", "c1", "c2", "c1"])])
    assert [(s.conditions, s.previous_index, len(s.points)) for s in segments] == [
        ("c1", None, 2),
        ("c2", 0, 1),
        ("c1", 1, 1),
    ]


def test_a_new_subject_stays_in_the_segment() -> None:
    assert len(segments_of([point(i, subject=f"build{i}") for i in range(9)])) == 1


def test_two_nodes_with_other_conditions_have_segments_side_by_side() -> None:
    points = [point(i, node=f"n{i % 2}", conditions=f"c{i % 2}") for i in range(10)]
    segments = segments_of(points)
    assert [len(segment.points) for segment in segments] == [5, 5]
    changed = segments_of([*points, point(10, node="n0", conditions="c9")])
    assert [(s.conditions, s.previous_index) for s in changed][-1] == ("c9", 0)


def test_a_node_that_joins_under_the_same_conditions_joins_the_segment() -> None:
    assert len(segments_of([point(0), point(1, node="n2"), point(2)])) == 1


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_has_no_cost(value: float | None) -> None:
    assert cost_of(value, TOKENS) is None


def test_more_cost_is_worse_for_every_figure() -> None:
    assert cost(900.0, TOKENS) > cost(1000.0, TOKENS)
    assert cost(2e9, "memory_bytes") > cost(1e9, "memory_bytes")
    assert cost(2.0, "joules_per_token") > cost(1.0, "joules_per_token")
    assert value_of(cost(900.0, TOKENS), TOKENS) == pytest.approx(900.0)


def test_a_change_has_the_sign_of_the_figure() -> None:
    excess = cost(900.0, TOKENS) - cost(1000.0, TOKENS)
    assert change_of(excess, TOKENS) == pytest.approx(-0.1)
    assert change_of(0.1, "memory_bytes") > 0


def test_several_runs_of_a_night_count_once_by_their_median() -> None:
    runs = [point(0, value, run_id=f"r{value}", began=at(0, i)) for i, value in enumerate((1000.0, 500.0, 1010.0))]
    (night,) = observations(runs, TOKENS)
    assert value_of(night.cost, TOKENS) == pytest.approx(1000.0) and night.night == day(0)
    both = observations([*runs, point(0, 800.0, run_id="other", node="n2")], TOKENS)
    assert [segments.node for segments in both] == ["n1", "n2"]


def test_a_run_by_hand_belongs_to_its_day() -> None:
    hand = [point(3, purpose="manual", night=None, run_id=f"m{i}", began=at(3, i)) for i in range(4)]
    assert [night.night for night in observations(hand, TOKENS)] == [day(3)]


def test_a_figure_that_is_missing_leaves_a_night_out() -> None:
    points = [*nights(3), point(3, None)]
    assert len(observations(points, TOKENS)) == 3
