"""The gate's states: the table of what pairs make of each, and how a figure gets into it."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from gate_points import costs
from levelfield.series.examination import EnvironmentStep, Examination
from levelfield.series.findings import exit_code
from levelfield.series.judgement import Judged, NoPairs, PairsWord, State, judged_night, state_of, word_of
from levelfield.series.level import Level
from levelfield.series.pairs import PairRuling
from levelfield.series.trigger import Suspicion

# R regression, E environment step, I improvement, B bad night, ? inconclusive, S stale, 0 new series, = no change
WORDS = {
    "R": "regression", "E": "environment step", "I": "improvement", "B": "bad night", "?": "inconclusive",
    "S": "stale", "0": "new series", "=": "no change",
}  # fmt: skip
PAIRS = ("none", "put off", "regression", "improvement", "no change", "bad night", "bad night or conditions",
         "inconclusive")  # fmt: skip
TABLE = """
new              0 0 R I = B 0 0
steady           = = R I = B ? ?
stale            S S R I = B ? ?
worse            ? ? R I = B ? ?
better           ? ? R I = B ? ?
worse twice      R ? R I = B ? ?
better twice     I ? R I = B ? ?
moved worse      E E R E E E E E
moved better     I I R I I I I I
moved by chance  ? ? R I = B ? ?
slower build     ? ? R I = B ? ?
moved together   - - R I = B ? ?
"""
LEVEL = Level(0.0, 0.01, 30, 20, True, "2026-03-01", "2026-03-11")
NIGHTS = costs([0.0] * 12)


def test_the_table_of_words() -> None:
    rows = {line[:17].strip(): line[17:].split() for line in TABLE.strip().splitlines()}
    assert set(rows) == set(get_args(State)) and set(PAIRS) == set(get_args(PairsWord))
    for state, row in rows.items():
        for pairs, letter in zip(PAIRS, row, strict=True):
            if letter != "-":  # a shared finding stands for it, unless pairs ran
                assert word_of(state, pairs) == WORDS[letter], (state, pairs)  # type: ignore[arg-type]


def figure(excess: float | None = None, nights: int = 3, **changes: Any) -> Judged:
    """A figure whose level is known. excess: of a step that is beyond its limit of 1 %."""
    judged: dict[str, Any] = {name: changes.pop(name) for name in ("share", "build", "build_excess") if name in changes}
    step = None if excess is None else EnvironmentStep(excess, 0.001, LEVEL, nights)
    given: dict[str, Any] = {
        "figure": "memory_bytes", "tonight": costs([0.0] * 13)[-1], "history": NIGHTS, "recent": NIGHTS,
        "level": LEVEL, "basis": "own", "accepted": None, "step": step, "suspicion": None,
    }  # fmt: skip
    return Judged("S", "S", Examination(**{**given, **changes}), **judged)


def beyond(cost: float) -> dict[str, Any]:
    """Two nights running at this cost."""
    nights = costs([0.0] * 11 + [cost] * 2)
    return {"tonight": nights[-1], "history": nights[:-1], "recent": nights[:-1], "suspicion": seen(cost)}


def seen(cost: float, rule: Any = "tonight", is_clear: bool = True) -> Suspicion:
    return Suspicion(rule, 1 if cost > 0 else -1, cost, 0.001, is_clear)


@pytest.mark.parametrize(
    ("judged", "alone", "with_pairs"),
    [
        (figure(level=None), "new", "new"),
        (figure(), "steady", "steady"),
        (figure(level=Level(0.0, 0.01, 30, 20, True, "2026-01-01", "2026-02-20")), "stale", "stale"),
        (figure(suspicion=seen(0.1)), "worse", "worse"),
        (figure(suspicion=seen(-0.1)), "better", "better"),
        (figure(**beyond(0.1)), "worse twice", "worse twice"),
        (figure(**beyond(-0.1)), "better twice", "better twice"),
        (figure(suspicion=seen(0.1, "drift")), "worse twice", "worse twice"),
        (figure(suspicion=seen(0.1, "drift", False)), "worse", "worse"),
        (figure(suspicion=seen(0.1, "sum of nights", False)), "worse", "worse"),
        (figure(**beyond(0.1), share="chance"), "steady", "steady"),
        (figure(0.1, basis="before"), "moved worse", "moved worse"),
        (figure(-0.1), "moved better", "moved better"),
        (figure(0.005), "steady", "steady"),
        (figure(0.1, share="chance"), "moved by chance", "moved by chance"),
        (figure(0.1, share="together"), "moved worse", "moved together"),
        (figure(0.1, **beyond(0.1)), "worse twice", "moved worse"),
        (figure(0.1, **beyond(0.1), basis="before"), "moved worse", "moved worse"),
        (figure(0.1, **beyond(-0.1)), "better twice", "moved worse"),
        (figure(0.0, build="slower"), "slower build", "steady"),
        (figure(-0.1, build="slower, due"), "slower build", "moved better"),
        (figure(0.1, build="slower"), "moved worse", "moved worse"),
        (figure(0.1, build="slower", share="chance"), "slower build", "moved by chance"),
        (figure(0.0, build="no slower"), "steady", "steady"),
    ],
)
def test_each_state_is_reached(judged: Judged, alone: State, with_pairs: State) -> None:
    assert (state_of(judged, has_pairs=False), state_of(judged, has_pairs=True)) == (alone, with_pairs)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, False),
        ({"suspicion": seen(0.1)}, True),
        ({"suspicion": seen(-0.1)}, False),
        ({"suspicion": seen(0.1), "share": "chance"}, False),
        ({"excess": 0.1, "suspicion": seen(0.1), "basis": "before"}, False),
        ({"excess": 0.1, "suspicion": seen(0.1)}, True),
        ({"excess": 0.0, "build": "due"}, True),
        ({"excess": 0.0, "build": "slower, due", "share": "chance"}, True),
        ({"excess": 0.0, "build": "slower"}, False),
        ({"level": None, "build": "due"}, False),
    ],
)
def test_pairs_are_for_what_looks_worse_and_for_builds_under_new_conditions(
    changes: dict[str, Any], wanted: bool
) -> None:
    assert figure(**changes).wants_pairs is wanted


def test_a_bad_night_under_conditions_without_a_level_is_inconclusive() -> None:
    ruling = PairRuling("bad night", 4, 0.001, -0.01, 0.01, None, 0.2, 0.002, build="no change")
    words = [judged_night(figure(0.005, basis=basis), ruling).word for basis in ("own", "before")]
    assert words == ["bad night", "inconclusive"]
    assert judged_night(figure(0.1, basis="before"), ruling).word == "environment step"


def test_pairs_that_are_put_off_leave_two_nights_open_and_pairs_that_cannot_run_do_not() -> None:
    cases = ((None, 4), (NoPairs("no accepted build"), 4), (NoPairs("the budget", "put off"), 0))
    for missing, code in cases:
        assert exit_code([judged_night(figure(**beyond(0.1)), missing)]) == code, missing


def test_the_part_of_the_build_is_no_step_of_the_conditions() -> None:
    """Pairs show that the build is 10 % worse, and the figure moved as far: the conditions did nothing."""
    ruling = PairRuling("regression", 4, 0.1, 0.09, 0.11, None, 0.0, 0.002, build="regression")
    assert figure(0.1).less_build(ruling).found.step == EnvironmentStep(0.0, 0.001, LEVEL, 3)
    assert judged_night(figure(0.1, build="slower", build_excess=0.1)).word == "inconclusive"
    assert judged_night(figure(0.1, build="slower", build_excess=0.02)).word == "environment step", "8 % are left"
