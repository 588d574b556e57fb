"""A month of twelve series on two nodes, with planted events: each is reported as what it is, and nothing else is."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from gate_points import conditions, day, event, point, series
from levelfield.nights.gate import GateReport, judge_night
from levelfield.nights.gate_input import GateInput
from levelfield.series.findings import Finding, exit_code
from levelfield.specs.record import GatedFigure, Point, StoreEvent

TOKENS, MEMORY = "tokens_per_second_per_device", "memory_bytes"
HISTORY, NIGHTS = 40, 26
SERIES = [f"s{i}" for i in range(12)]
SLOW = {"s0": (5, -0.10), "s1": (6, -0.05), "s2": (7, -0.02), "s8": (20, 0.08)}  # from this night on
GREW, DIFFERS, BROKE, MISSED = ("s3", 8), ("s4", 9), ("s5", 10), ("s7", 18)
SLOW_NODE, DRIVER, ACCEPTED = 12, 15, 9
DRIVER_COSTS = {"s6": -0.06}


@dataclass
class Month:
    """The truth, the nights so far, and what the gate said."""

    seed: int
    points: dict[str, list[Point]] = field(default_factory=lambda: {name: [] for name in SERIES})
    past: list[Finding] = field(default_factory=list)
    events: list[StoreEvent] = field(default_factory=list)
    reports: dict[int, GateReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def node(self, name: str, night: int) -> str:
        return f"n{(int(name[1:]) + night) % 2}"

    def surroundings(self, name: str, night: int) -> float:
        """What slows every build of the series in this night: a bad node, and a driver."""
        bad = -0.12 if night == SLOW_NODE and self.node(name, night) == "n1" else 0.0
        driver = DRIVER_COSTS.get(name, 0.0) if night >= DRIVER else 0.0
        return (1 + bad) * (1 + driver)

    def change(self, name: str, night: int) -> float:
        first, size = SLOW.get(name, (NIGHTS, 0.0))
        return 1 + size * (night >= first)

    def tokens(self, build: float, name: str, night: int) -> float:
        noise = self.random.gauss(0, 0.005)
        return 1000 * build * self.surroundings(name, night) * math.exp(noise)

    def memory(self, name: str, night: int, is_new: bool) -> float:
        grown = 1.05 if is_new and name == GREW[0] and night >= GREW[1] else 1.0
        return 2e9 * grown * math.exp(self.random.gauss(0, 0.0005))

    def run(self, night: int) -> None:
        for name in SERIES:
            if (name, night) == MISSED:
                continue
            failed, other = (name, night) == BROKE, (name, night) == DIFFERS
            tokens = None if failed else self.tokens(self.change(name, night), name, night)
            self.points[name].append(
                point(
                    HISTORY + night,
                    tokens,
                    run_id=f"{name}-{night}",
                    node=self.node(name, night),
                    conditions="c1" if night < DRIVER else "c2",
                    word="failed" if failed else "valid",
                    verdict="different" if other else "aligned",
                    memory_bytes=None if failed else self.memory(name, night, True),
                    entry=f"suite/{name}",
                )
            )

    def pairs(self, night: int, name: str, figure: GatedFigure) -> list[tuple[float | None, float | None]] | None:
        """Runs of the accepted build and of tonight's, in this night on this node."""
        accepted = any(e.series == name for e in self.events)
        old = self.change(name, night) if accepted else 1.0
        if figure == TOKENS:
            return [
                (self.tokens(old, name, night), self.tokens(self.change(name, night), name, night)) for _ in range(7)
            ]
        return [(self.memory(name, night, False), self.memory(name, night, True)) for _ in range(7)]

    def judge(self, night: int) -> None:
        inputs = GateInput(
            day(HISTORY + night),
            self.points,
            {name: series(case=name) for name in SERIES},
            self.events,
            {f"suite/{name}": name for name in SERIES},
            self.past,
            lambda digest: conditions(software={"driver": "550" if digest == "c1" else "560"}),
        )
        report = judge_night(inputs, lambda name, figure: self.pairs(night, name, figure))
        self.past += report.findings
        self.reports[night] = report

    def words(self, name: str, figure: GatedFigure | None = TOKENS) -> list[str]:
        """The series' word of each night; of a node's finding where that stands for it."""
        seen: list[str] = []
        for night in range(NIGHTS):
            mine = [f for f in self.reports[night].findings if f.series == name and f.figure == figure]
            seen.append(mine[0].word if mine else "")
        return seen


@pytest.fixture(scope="module", params=[1, 2])
def month(request: pytest.FixtureRequest) -> Month:
    seen = Month(request.param)
    for night in range(-HISTORY, NIGHTS):
        seen.run(night)
        if night >= 0:
            seen.judge(night)
        if night == ACCEPTED:
            runs = [p.run_id for p in seen.points["s0"][-4:]]
            seen.events.append(event("baseline", HISTORY + night, series="s0", runs=runs, level={TOKENS: 900.0}))
    return seen


def first(words: Sequence[str], word: str) -> int:
    return words.index(word) if word in words else NIGHTS


def test_ten_percent_fail_in_the_first_night_until_they_are_accepted(month: Month) -> None:
    words = month.words("s0")
    assert words[5:10] == ["regression"] * 5 and first(words, "regression") == 5
    assert not set(words[10:]) & {"regression", "improvement", "environment step"}


def test_five_and_two_percent_are_found_and_stay(month: Month) -> None:
    assert first(month.words("s1"), "regression") == 6 and "regression" in month.words("s1")[-3:]
    assert 7 <= first(month.words("s2"), "regression") <= 10


def test_more_memory_is_a_regression_of_memory_alone(month: Month) -> None:
    assert first(month.words("s3", MEMORY), "regression") == GREW[1]
    assert "regression" not in month.words("s3")


def test_a_training_that_differs_fails_that_night_and_enters_no_level(month: Month) -> None:
    assert (
        month.words("s4", None)[DIFFERS[1]] == "training differs" and exit_code(month.reports[DIFFERS[1]].findings) == 4
    )
    assert month.words("s4", None).count("training differs") == 1


def test_a_broken_run_and_a_missing_entry_are_named_and_counted(month: Month) -> None:
    assert month.words("s5", None)[BROKE[1]] == "invalid run"
    assert [f.label for f in month.reports[MISSED[1]].findings if f.word == "missing"] == ["suite/s7"]
    assert (month.reports[MISSED[1]].compared_count, month.reports[MISSED[1]].expected_count) == (11, 12)


def test_a_slow_node_is_one_finding_about_it(month: Month) -> None:
    seen = [f for f in month.reports[SLOW_NODE].findings if f.word == "bad night" and f.figure == TOKENS]
    assert [f.label for f in seen] == ["node n1"] and seen[0].change == pytest.approx(-0.12, abs=0.02)
    assert sum(f.word == "regression" and f.figure == TOKENS for f in month.reports[SLOW_NODE].findings) <= 2  # s1, s2


def test_a_driver_that_costs_is_a_step_of_that_series_alone(month: Month) -> None:
    assert set(month.words("s6")[DRIVER + 1 :]) == {"environment step"}
    (finding,) = [f for f in month.reports[DRIVER + 1].findings if f.series == "s6" and f.figure == TOKENS]
    assert [field.split()[0] for field in finding.fields] == ["driver"]
    steps = Counter(f.series for r in month.reports.values() for f in r.findings if f.word == "environment step")
    assert set(steps) == {"s6"}


def test_a_gain_is_an_improvement(month: Month) -> None:
    words = month.words("s8")
    assert first(words, "improvement") <= 22 and words[-1] == "improvement"


def test_nothing_else_raises_an_alarm(month: Month) -> None:
    for name in ("s4", "s5", "s7", "s9", "s10", "s11"):
        for figure in (TOKENS, MEMORY):
            words = set(month.words(name, figure))
            assert words <= {"", "no change", "inconclusive", "bad night"}, (name, figure, words)
    quiet = month.reports[3]
    assert exit_code(quiet.findings) == 0 and quiet.compared_count == quiet.expected_count == 12
