"""docs/data/default_memory.csv: each shipped case by three frameworks on 1, 8, 16 and 64 of four chips, as planned.

Each combination has a plan that fits or a refusal. A part of them is planned anew in each run, and all of them in
`make thorough`.
"""

from __future__ import annotations

import csv

import default_memory
import pytest
from levelfield.catalog.registry import Registry

GIVE_LESS = 9  # plans that leave less than the margin free, because no layout leaves it
EVERY = 37  # a part of the combinations that has each framework, chip and place
AGAIN = "run `.venvs/dev/bin/python tools/default_memory.py`"


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, str]]:
    with default_memory.FILE.open(newline="") as file:
        return {":".join(list(row.values())[:5]): row for row in csv.DictReader(file)}


def test_every_combination_is_recorded_and_none_is_a_fault(recorded: dict[str, dict[str, str]]) -> None:
    assert list(recorded) == list(default_memory.combinations(Registry())), AGAIN
    assert [row for row in recorded.values() if row["outcome"].startswith(default_memory.FAULT)] == []


def test_planned_memory_is_within_the_device_s_and_mostly_with_the_margin(recorded: dict[str, dict[str, str]]) -> None:
    planned = [row for row in recorded.values() if row["planned_gib"]]
    assert len(planned) > 600
    for row in planned:
        assert 0 < float(row["tensors_gib"]) < float(row["planned_gib"]) <= float(row["device_gib"]), row
        free = float(row["device_gib"]) - float(row["planned_gib"])
        assert not row["margin_gib"] or free >= float(row["margin_gib"]) - 0.011, row
    assert sum(not row["margin_gib"] for row in planned) <= GIVE_LESS


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.thorough)])
def test_the_plans_of_today_are_the_recorded_ones(recorded: dict[str, dict[str, str]], every: int) -> None:
    registry = Registry()
    for text, row in list(recorded.items())[::every]:
        assert default_memory.row_of(registry, text) == row, AGAIN


def test_what_needs_more_than_a_device_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself sees a plan that does not fit."""
    plan, decision = default_memory.planned(Registry(), "gpt2_small:torch:H100-SXM5-80GB:1:1")
    small = plan.hardware.model_copy(update={"memory_bytes_per_device": 2**33})
    facts = default_memory.facts_of(plan.model_copy(update={"hardware": small}), decision)
    assert facts["outcome"].startswith(default_memory.FAULT)
