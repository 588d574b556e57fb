"""The account of what further steps cost, from events and in its table."""

from __future__ import annotations

import json

from further_steps import BEGIN, DATA, FIRST, PAGE, change, further_ms, section, window_ms
from power import documented_between


def test_a_window_begins_after_its_warm_up() -> None:
    lines = [f"batch {step} {step * 10**6 if step < FIRST else (step - FIRST) * 7 * 10**6}" for step in range(1, 32)]
    assert window_ms(lines) == 7.0


def test_further_steps_are_told_apart_by_the_recorder() -> None:
    lines = ["batch 30 5"]
    for recorded, ms in [(False, 50), (True, 90), (False, 40), (True, 44), (False, 30), (True, 36)]:
        lines += [f"begin {recorded} 0", "batch 31 1", f"end {recorded} {ms * 10**6}"]
    assert further_ms(lines) == {"further_ms": 35.0, "recorded_ms": 40.0}


def test_a_change_has_its_interval() -> None:
    assert change([1.1]) == "+10.0%"
    assert change([1.0, 1.1, 1.2]) == "+10.0% (-14.8% to +34.8%)"


def test_the_page_has_the_pairs_counted() -> None:
    assert PAGE.read_text() == documented_between(
        BEGIN, PAGE.read_text(), section(json.loads(DATA.read_text())["pairs"])
    )
