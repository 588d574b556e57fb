"""The account of what further steps cost, from events and in its table."""

from __future__ import annotations

import json

from further_steps import BEGIN, DATA, PAGE, change, further_ms, section, window_ms
from power import documented_between


def test_a_window_begins_after_its_warm_up_and_is_its_shortest_step() -> None:
    ends = [0, 1, 2, 3, 4, 100, 180, 250, 370]  # of steps 1 to 9, in milliseconds
    own = [{"event": "step", "step": step, "end_ns": end * 10**6} for step, end in enumerate(ends, 1)]
    assert window_ms([{"event": "begin", "end_ns": 0}, *own]) == 70.0


def test_further_steps_that_count_are_told_apart_by_the_recorder() -> None:
    steps = [
        (False, 50, False),
        (True, 9, False),
        (False, 40, True),
        (True, 44, True),
        (False, 30, True),
        (True, 33, True),
    ]
    own = [
        {"event": "measured", "name": "profiled_step",
         "values": {"recorded": recorded, "counted": counted, "begin_ns": 0, "end_ns": ms * 10**6}}
        for recorded, ms, counted in steps
    ]  # fmt: skip
    assert further_ms(own) == {"further_ms": 30.0, "recorded_ms": 33.0}


def test_a_change_has_its_interval() -> None:
    assert change([1.1]) == "+10.0%"
    assert change([1.0, 1.1, 1.2]) == "+10.0% (-14.8% to +34.8%)"


def test_the_page_has_the_pairs_counted() -> None:
    assert PAGE.read_text() == documented_between(
        BEGIN, PAGE.read_text(), section(json.loads(DATA.read_text())["pairs"])
    )
