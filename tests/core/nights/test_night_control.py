"""A night's findings about its machine, and its null pairs of the week, which come first."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.errors import RunFailed
from levelfield.nights import build_pairs, night_session
from levelfield.nights.build_pairs import Arm
from levelfield.nights.gate import GateReport
from levelfield.nights.gate_input import GateInput
from levelfield.nights.night_session import NightSession
from levelfield.series.findings import SPEED_FIGURE, Finding, FindingWord


def test_a_machine_that_is_slow_is_a_finding_of_its_night(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(night_session, "record_of", lambda *arguments: SimpleNamespace(node="sha256:ab"))
    store = SimpleNamespace(add=lambda records: None, add_finding=lambda *arguments: stored.append(arguments))
    session: Any = SimpleNamespace(store=store, request=SimpleNamespace(night="2026-01-02"))
    NightSession._record(session, None, None)  # type: ignore[arg-type]
    assert stored == []
    NightSession._record(session, None, "copy slow")  # type: ignore[arg-type]
    ((night, outcome),) = stored
    assert (night, outcome["night"], outcome["word"], outcome["figure"]) == (
        "2026-01-02",
        "2026-01-02",
        "bad night",
        None,
    )
    assert (outcome["label"], outcome["node"], outcome["detail"]) == ("node ab", "sha256:ab", "copy slow")


def test_a_night_stores_what_changed_and_each_finding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a quiet series; and `no change` once where another word was before."""
    past: list[Finding] = []
    store = SimpleNamespace(add_finding=lambda night, content: past.append(Finding.model_validate(content)))
    session: Any = SimpleNamespace(store=store, suite="one", arms={}, _count_time=lambda: None)
    stored: list[tuple[str, int]] = []
    words: tuple[FindingWord, ...] = ("no change", "no change", "inconclusive", "no change", "no change", "no change")
    for number, word in enumerate((*words, "inconclusive"), 1):
        night = f"2026-01-{number:02}"
        findings = tuple(
            Finding(series=series, label=series, figure="memory_bytes", word=seen, night=night)
            for series, seen in (("S", word), ("quiet", "no change"))
        )
        report = GateReport(night, findings, 2, 2)
        monkeypatch.setattr(
            night_session, "gate_input", lambda *_, night=night: GateInput(night, {}, {}, past_findings=[*past])
        )
        monkeypatch.setattr(night_session, "judge_night", lambda inputs, report=report: report)
        session.request = SimpleNamespace(night=night, runs_pairs=False)
        for _ in range(2):  # killed after the last finding, and started again
            assert NightSession.judge(session).findings == findings
        stored += [(night, len(past))]
    assert [(f.night, f.series, f.word) for f in past] == [
        ("2026-01-03", "S", "inconclusive"),
        ("2026-01-04", "S", "no change"),
        ("2026-01-07", "S", "inconclusive"),
    ]


def test_a_run_that_gives_no_reason_is_a_note_and_no_part_of_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    night, notes = "2026-01-02", list[str]()
    finding = Finding(series="S", label="tiny:torch", figure=SPEED_FIGURE, word="regression", night=night, pairs=3)
    build: Any = "25452b67ff06"
    arm = Arm("b", build, ())
    session: Any = SimpleNamespace(
        store=SimpleNamespace(add_finding=lambda *arguments: None), suite="one", arms={"S": (arm, arm)},
        request=SimpleNamespace(night=night, runs_pairs=False, runs=Path("runs")), _count_time=lambda: None,
        _has_budget_for_pair=lambda series: True, output=SimpleNamespace(say=lambda text: None, note=notes.append),
    )  # fmt: skip

    def no_result(*arguments: Any) -> Any:
        raise RunFailed("it gave no result, exit code 2")

    monkeypatch.setattr(build_pairs, "run_with_build", no_result)
    monkeypatch.setattr(night_session, "gate_input", lambda *_: GateInput(night, {}, {}))
    monkeypatch.setattr(night_session, "judge_night", lambda inputs: GateReport(night, (finding,), 1, 1))
    assert NightSession.judge(session).findings == (finding,)
    (note,) = notes
    assert "tiny:torch" in note and "25452b67ff06: it gave no result, exit code 2" in note


def test_the_null_pairs_of_the_week_say_their_number_and_are_judged_in_their_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments: list[Any] = []
    progress: list[tuple[int, int]] = []
    arms, after = SimpleNamespace(), SimpleNamespace(name="with the pairs of the week")

    def pairs(arms_of_pairs: Any, count: int, *rest: Any) -> Any:
        assert arms_of_pairs is arms
        return ((i, i) for i in range(count))

    def compared_nights(outcome: Any, confirmation: Any, nulls: Any, most: int, say: Any) -> list[Any]:
        arguments.append(outcome)
        return list(nulls("S", "real"))

    def progress_of(figure: str, say: Any, fewest: int, most: int, words: Any) -> Any:
        progress.append((fewest, most))
        return SimpleNamespace(wrap_store_run=lambda keep: keep)

    replaced: dict[str, Any] = {
        "weekly_null_series": lambda inputs, seconds: "S", "gate_input": lambda *arguments: after,
        "suspects": lambda inputs: [],
        "null_arms": lambda *arguments: arms, "series_of": str, "paired_records": pairs, "judge_night": compared_nights,
        "PairProgress": progress_of,
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(night_session, name, value)
    session = object.__new__(NightSession)
    plan = SimpleNamespace(name="tiny", series="S", job=SimpleNamespace(plan="plan"))
    point = SimpleNamespace(is_trend_point=True, purpose="nightly", subject="s", night="n")
    build = SimpleNamespace(commit=None)
    store = SimpleNamespace(points=lambda names: {"S": [point]}, subject=lambda name: build)
    session.request = SimpleNamespace(night="n", runs=Path(), plugins=(), budget=None, max_pairs=9)  # type: ignore[assignment]
    session.night_runs, session.store, session.suite = (plan,), store, "one"  # type: ignore[assignment]
    session.state = SimpleNamespace(entries=[SimpleNamespace(series="S", seconds=3.0)])  # type: ignore[assignment]
    session.output = SimpleNamespace(say=str, note=str)
    further: Any = session._judge_with_pairs(SimpleNamespace())  # type: ignore[arg-type]
    assert arguments == [after] and progress == [(4, 4), (3, 14)] and len(further) == 14


@pytest.mark.parametrize(
    ("night", "commit", "reason"),
    [("n", "a" * 40, None), ("n", None, None), ("m", "a" * 40, "no run"),
     ("n", "b" * 40, "the checkout has moved since the night ran, from b")],
)  # fmt: skip
def test_an_older_night_has_no_null_pairs_of_a_checkout_that_has_moved(
    night: str, commit: str | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_session, "source_state", lambda folder: {"commit": "a" * 40})
    build: Any = SimpleNamespace(commit=commit)
    point = SimpleNamespace(is_trend_point=True, purpose="nightly", subject="s", night=night)
    session = object.__new__(NightSession)
    session.request = SimpleNamespace(night="n")  # type: ignore[assignment]
    session.store = SimpleNamespace(points=lambda names: {"S": [point]}, subject=lambda name: build)  # type: ignore[assignment]
    outcome = session._build_here("S")
    assert outcome is build if reason is None else isinstance(outcome, str) and reason in outcome


def test_an_interrupt_between_pairs_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    session = SimpleNamespace(run_entries=lambda: True, judge=interrupted)
    monkeypatch.setattr(NightSession, "open", lambda *arguments: contextlib.nullcontext(session))
    words = ("nightly", "run", "--suite", "smoke", "--night", "2026-01-02", "--runs", str(tmp_path))
    assert main([*words]) == 130
    assert "--night 2026-01-02:" in capsys.readouterr().err
