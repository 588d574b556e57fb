"""A night's findings about its machine, and its null pairs of the week, which come first."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.nights import night_session
from levelfield.nights.night_session import NightSession


def test_a_machine_that_is_slow_is_a_finding_of_its_night(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(night_session, "record_of", lambda *given: SimpleNamespace(node="sha256:ab"))
    store = SimpleNamespace(add=lambda records: None, add_finding=lambda *given: stored.append(given))
    session: Any = SimpleNamespace(store=store, request=SimpleNamespace(night="2026-01-02"))
    NightSession._record(session, None, None)  # type: ignore[arg-type]
    assert stored == []
    NightSession._record(session, None, "the control copy is 9 % below")  # type: ignore[arg-type]
    ((night, found),) = stored
    assert (night, found["night"], found["word"], found["figure"]) == ("2026-01-02", "2026-01-02", "bad night", None)
    assert (found["label"], found["node"], found["detail"]) == ("node ab", "sha256:ab", "the control copy is 9 % below")


def test_the_null_pairs_of_the_week_say_their_number_and_are_judged_in_their_night(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    progress: list[tuple[int, int]] = []
    arms, after = SimpleNamespace(), SimpleNamespace(name="with the pairs of the week")

    def pairs(own: Any, count: int, *rest: Any) -> Any:
        assert own is arms
        return ((i, i) for i in range(count))

    def judged(found: Any, confirmation: Any, nulls: Any, most: int) -> list[Any]:
        given.append(found)
        return list(nulls("S", "real"))

    def progress_of(figure: str, say: Any, fewest: int, most: int, words: Any) -> Any:
        progress.append((fewest, most))
        return SimpleNamespace(keeping=lambda keep: keep)

    replaced: dict[str, Any] = {
        "weekly_series": lambda given, seconds: "S", "gate_input": lambda *given: after, "suspects": lambda given: [],
        "null_arms": lambda *given: arms, "series_of": str, "paired_records": pairs, "compared": judged,
        "PairProgress": progress_of,
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(night_session, name, value)
    session = object.__new__(NightSession)
    plan = SimpleNamespace(name="tiny", series="S", job=SimpleNamespace(plan="plan"))
    point = SimpleNamespace(is_of_trend=True, subject="s", night="n")
    build = SimpleNamespace(commit=None)
    store = SimpleNamespace(points=lambda names: {"S": [point]}, subject=lambda name: build)
    session.request = SimpleNamespace(night="n", runs=Path(), plugins=(), budget=None, most_pairs=9)  # type: ignore[assignment]
    session.work, session.store, session.suite = (plan,), store, "one"  # type: ignore[assignment]
    session.state = SimpleNamespace(entries=[SimpleNamespace(series="S", seconds=3.0)])  # type: ignore[assignment]
    session.output = SimpleNamespace(say=str, note=str)  # type: ignore[assignment]
    further: Any = session._confirmed(SimpleNamespace())  # type: ignore[arg-type]
    assert given == [after] and progress == [(4, 4), (3, 14)] and len(further) == 14


@pytest.mark.parametrize(
    ("night", "commit", "why"),
    [("n", "a" * 40, None), ("n", None, None), ("m", "a" * 40, "no run"),
     ("n", "b" * 40, "the checkout has moved since the night ran, from b")],
)  # fmt: skip
def test_an_older_night_has_no_null_pairs_of_a_checkout_that_has_moved(
    night: str, commit: str | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_session, "source", lambda folder: {"commit": "a" * 40})
    build = SimpleNamespace(commit=commit)
    point = SimpleNamespace(is_of_trend=True, subject="s", night=night)
    session = object.__new__(NightSession)
    session.request = SimpleNamespace(night="n")  # type: ignore[assignment]
    session.store = SimpleNamespace(points=lambda names: {"S": [point]}, subject=lambda name: build)  # type: ignore[assignment]
    found = session._build_here("S")
    assert found is build if why is None else isinstance(found, str) and why in found


def test_an_interrupt_between_pairs_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    session = SimpleNamespace(run_entries=lambda: True, judge=interrupted)
    monkeypatch.setattr(NightSession, "opened", lambda *given: contextlib.nullcontext(session))
    words = ("nightly", "run", "--suite", "smoke", "--night", "2026-01-02", "--runs", str(tmp_path))
    assert main([*words]) == 130
    assert "interrupted; start it again with --night 2026-01-02: it goes on" in capsys.readouterr().err
