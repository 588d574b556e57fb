"""Plants that take turns are told by what `told_plants.py` counts, and the page has the data that it wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faults.slow_links import Interval, missing, transfer_ms
from power import documented_between
from told_plants import (
    BEGIN,
    DATA,
    FRAMEWORKS,
    PAGE,
    TITLES,
    TRAININGS,
    bubble_of,
    cell,
    error_of,
    is_told,
    joined,
    rows_of,
    section,
)
from trainings.interpreters import interpreters

A_ROW = {"framework": "torch", "fault": "a norm", "seed": 0, "named": True, "planted": 200.0, "told": 219.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"told": 181.0}, True),
        ({"told": 221.0}, False),
        ({"told": 179.0}, False),
        ({"told": float("nan")}, False),
        ({"named": False}, False),
    ],
)
def test_a_plant_is_told_by_its_name_and_its_amount(changes: dict[str, Any], expected: bool) -> None:
    assert is_told({**A_ROW, **changes}) is expected


def test_a_cell_counts_the_seeds_and_their_errors() -> None:
    rows = [A_ROW, {**A_ROW, "told": 200.0}, {**A_ROW, "told": 260.0}]
    assert cell(rows) == "2 of 3; 9.5%, 30.0%" and cell([]) == "-"


def test_new_rows_take_the_place_of_older_ones_of_the_same_seed() -> None:
    others = [{**A_ROW, "seed": 1}, {**A_ROW, "framework": "jax"}]
    new = {**A_ROW, "told": 201.0}
    found = joined({"plants": [A_ROW, *others], "sums": []}, {"plants": [new], "sums": []})
    assert found == {"plants": [new, *others], "sums": []}


def test_an_exchange_begins_when_its_last_rank_comes() -> None:
    intervals = [[Interval(0, 9_000_000, "slow links")], [Interval(4_000_000, 10_000_000, "slow links")]]
    assert transfer_ms(intervals, 1) == 5.5


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 4), (4, 16), (2, 1), (3, 2)])
def test_the_bubble_of_equal_stages_is_as_the_formula_says(stages: int, micro_batches: int) -> None:
    passes = [{"forward": [1.0] * micro_batches, "backward": [2.0] * micro_batches} for _ in range(stages)]
    assert bubble_of(passes) == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_a_stage_that_stops_once_makes_the_bubble_larger() -> None:
    passes = [{"forward": [1.0] * 4, "backward": [2.0] * 4} for _ in range(2)]
    passes[1]["backward"][2] += 3.0
    assert bubble_of(passes) == pytest.approx(1 - (12 + 15) / 2 / 18)


def test_the_page_has_the_data_counted() -> None:
    assert PAGE.read_text() == documented_between(BEGIN, PAGE.read_text(), section(json.loads(DATA.read_text())))


def test_the_data_have_every_plant_of_a_framework_with_as_many_seeds() -> None:
    rows = json.loads(DATA.read_text())["plants"]
    assert {row["fault"] for row in rows} == set(TITLES) and {row["framework"] for row in rows} == set(FRAMEWORKS)
    counts = {(row["framework"], row["fault"]): 0 for row in rows}
    for row in rows:
        counts[row["framework"], row["fault"]] += 1
    assert set(counts.values()) == {10}


@pytest.mark.thorough
@pytest.mark.layouts
@pytest.mark.torch
@pytest.mark.parametrize("training", TRAININGS)
def test_plants_that_take_turns_are_told(training: str) -> None:
    if training == "slow links" and missing():
        pytest.skip(str(missing()))
    with interpreters() as interpreter_of:
        found = [row for kind, row in rows_of("torch", 0, interpreter_of("torch"), [training]) if kind == "plants"]
    assert found and not [(row, error_of(row)) for row in found if not is_told(row)]
