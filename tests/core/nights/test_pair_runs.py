"""What runs pairs for a gate: each once, within a budget, and the null pairs of the week."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_points import day, nights, point
from levelfield.errors import RunFailed
from levelfield.explain.step_difference import PartChange, StepDifference
from levelfield.nights import build_pairs
from levelfield.nights.build_pairs import null_arms, weekly_null_series
from levelfield.nights.gate import Confirmation, PairRuns, judge_night, suspects
from levelfield.nights.gate_input import GateInput
from levelfield.nights.series_history import FigureHistory, history_lines
from levelfield.series.finding_forms import finding_line
from levelfield.specs.record import GatedFigure

TOKENS: GatedFigure = "tokens_per_second_per_device"


def pairs(count: int, fails: bool = False) -> Iterator[Any]:
    for i in range(count):
        yield tuple(SimpleNamespace(tokens_per_second_per_device=1000.0 + i, memory_bytes=1e9) for _ in "ab")
    if fails:
        raise RunFailed("the run is failed (oom)")


def runs(started: Any, lines: list[str], left: bool = True) -> PairRuns:
    return PairRuns(lambda series: started, lambda series: left, lines.append)


def test_a_pair_runs_once_for_all_figures() -> None:
    lines: list[str] = []
    outcome = runs(pairs(5), lines)
    assert len(list(islice(outcome.pairs("S"), 3))) == 3
    assert [pair[0].tokens_per_second_per_device for pair in outcome.pairs("S")] == [1000.0 + i for i in range(5)]
    assert len(list(outcome.pairs("S"))) == 5 and lines == []


@pytest.mark.parametrize(
    ("started", "left", "counts", "reason"),
    [
        ("no build", True, 0, "no pairs: no build"),
        (pairs(2, fails=True), True, 2, "no further pairs: the run is failed (oom)"),
        (pairs(0, fails=True), True, 0, "no pairs: the run is failed (oom)"),
        (pairs(5), False, 0, "no pairs: the budget of the night holds no further pair"),
    ],
)
def test_what_ends_pairs_is_said_once(started: Any, left: bool, counts: int, reason: str) -> None:
    lines: list[str] = []
    outcome = runs(started, lines, left)
    assert [len(list(outcome.pairs("S"))) for _ in range(2)] == [counts, counts] and lines == [reason]
    (suspect,) = suspects(GateInput(day(40), {"S": [*nights(40), point(40, 900.0)]}, {}))
    values = Confirmation({("S", TOKENS): suspect}, outcome)("S", TOKENS)
    assert values == reason.split(": ", 1)[1] if counts == 0 else len(values or ()) == counts
    assert Confirmation({}, outcome)("S", TOKENS) is None


def with_nulls(*ages: int, node: str = "n1") -> GateInput:
    points = {name: [*nights(10), point(10, run_id=f"{name}10")] for name in ("S", "T")}
    points["young"] = nights(3, first=8)
    for age in ages:
        runs = [point(10 - age, 1000.0, run_id=f"{p}{age}", purpose=p, node=node) for p in ("null-a", "null-b")]
        points["T"] = [*points["T"], *runs]
    return GateInput(day(10), points, {})


def test_the_shortest_series_with_a_level_has_null_pairs_once_a_week_on_each_machine() -> None:
    seconds = {"S": 60.0, "T": 90.0, "young": 5.0}
    assert weekly_null_series(with_nulls(), seconds) == "S"
    assert weekly_null_series(with_nulls(7), seconds) == "S"
    assert weekly_null_series(with_nulls(6), seconds) is None, "of any series"
    assert weekly_null_series(with_nulls(6, node="n2"), seconds) == "S", "another machine's say nothing of this one"
    assert (
        weekly_null_series(with_nulls(), {"T": 90.0}) == "T"
        and weekly_null_series(with_nulls(), {"young": 5.0}) is None
    )


def test_null_arms_have_one_commit_and_a_dirty_tree_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        build_pairs, "checkout_build", lambda commit, say: SimpleNamespace(commit=commit, folder="cache")
    )
    monkeypatch.setattr(build_pairs, "make_arms", lambda plan, a, b, python, plugins: (a, b))
    monkeypatch.setattr(build_pairs, "shared_python", lambda plan, before, now: None)
    plan: Any = None
    clean: Any = SimpleNamespace(commit="c" * 40, is_dirty=False)
    arms: Any = null_arms(plan, clean, (), print)
    a, b = arms
    assert a.commit == b.commit and a.folder != b.folder
    for broken in ({"commit": None}, {"is_dirty": True}, {"is_dirty": None}):
        subject: Any = SimpleNamespace(**{**vars(clean), **broken})
        reason = null_arms(plan, subject, (), print)
        assert isinstance(reason, str) and "no commit" in reason


@pytest.mark.parametrize(
    ("after", "half", "says"),
    [
        (11.0, 0.4, "mlp takes 1.0 ms more"),
        (10.3, 0.4, "the recorded steps do not show why: 10.00 ms with old, 10.30 ms with new"),
        (9.0, None, "the recorded steps do not show why: 10.00 ms with old, 9.00 ms with new"),
    ],
)
def test_recorded_steps_that_are_not_slower_say_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: float, half: float | None, says: str
) -> None:
    outcome = StepDifference(PartChange("step", 10.0, after, half), (), ("mlp takes 1.0 ms more",), 1.0)
    monkeypatch.setattr(build_pairs, "run_with_build", lambda build, *_: build)
    monkeypatch.setattr(build_pairs, "compute_step_parts", lambda build: build)
    monkeypatch.setattr(build_pairs, "step_difference", lambda before, now: outcome)
    arms = [SimpleNamespace(build=name, arguments=()) for name in ("old", "new")]
    assert build_pairs.explain_slower_build(arms, tmp_path) == (says,)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "accepted"), [(3, None), (11, None), (11, 2033.4)])
def test_a_series_without_a_level_says_what_it_is_compared_with(count: int, accepted: float | None) -> None:
    nights = tuple((f"2026-01-{n + 1:02}", "n1", f"r{n}", 2000.0) for n in range(count))
    since = "2026-01-05" if accepted else None
    history = FigureHistory(TOKENS, nights, (), None, None, 0, None, accepted, since, None, None)
    lines = "\n".join(history_lines(history, chart=False))
    assert ("one state" in lines) == (count >= 7) and "before 7" in lines
    assert ("2,033.4 since" in lines and "2026-01-05," in lines) == (accepted is not None)


def test_a_finding_is_said_when_its_pairs_end_and_before_the_next_ones_begin() -> None:
    log: list[str] = []
    points = {
        name: [
            *(p.model_copy(update={"run_id": f"{name}.{p.run_id}"}) for p in nights(40, seed=seed)),
            point(40, speed),
        ]
        for name, seed, speed in (("S", 2, 850.0), ("T", 3, 900.0))
    }

    def run(name: str, figure: GatedFigure) -> list[tuple[float, float]]:
        log.append(f"pairs of {name}")
        return [(1000.0 + i, 900.0 - i) for i in range(7)]

    report = judge_night(
        GateInput(day(40), points, {}), run, report_finding=lambda finding: log.append(finding_line(finding))
    )
    assert [line.split(":")[0] for line in log] == ["pairs of S", "regression", "pairs of T", "regression"]
    assert all("-1" in line and "tokens/s" in line for line in log[1::2])
    assert [f.word for f in report.findings if f.figure == TOKENS] == ["regression", "regression"]
