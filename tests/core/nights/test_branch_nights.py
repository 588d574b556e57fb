"""A night of a branch is compared with the levels of the default branch, and nothing of that one has anything of it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from copy import copy
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_points import noise
from levelfield.cli.command_line import parse_command_line
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.nights import night_session
from levelfield.nights.baselines import LevelEvidence, baseline_event
from levelfield.nights.night_session import NightSession
from levelfield.nights.nightly import NightEntry, NightState, nights_by_run, state_path, write_state
from levelfield.nights.stored_nights import gate_input
from levelfield.pages.content import read_content
from levelfield.series.findings import Finding
from levelfield.specs.record import Purpose, RunRecord, branch_of, night_options, purpose_of
from levelfield.store.database import Store
from stored_records import FIRST, changed, real_record

NIGHTS = 20
SPEED = "tokens_per_second_per_device"


def day(number: int) -> str:
    return f"{FIRST + timedelta(days=number):%Y-%m-%d}"


class Nights:
    """Twenty nights of the default branch in a store, and nights of branches beside them."""

    def __init__(self, folder: Path, real: RunRecord) -> None:
        self.file, self.real, self.count = folder / "r.sqlite", real, 0
        self.address = f"sqlite:///{self.file}"
        self.of_default_branch(range(NIGHTS))

    def of_default_branch(self, numbers: range, factor: float = 1.0) -> None:
        for number in numbers:
            self.add(number, day(number), factor * math.exp(noise(200, 0.005, 3)[number]))

    def add(self, number: int, night: str, factor: float, purpose: Purpose | None = None, **change: Any) -> str:
        """Store a run, and what its night expects. Return its id."""
        self.count += 1
        run_id = f"r{self.count}"
        began = f"{day(number)}T{2 + (branch_of(night) is not None):02}:00:{self.count % 60:02}+00:00"
        figures = {
            SPEED: 1000 * factor, "memory_bytes": 2.0**30, "word": "valid", "verdict": "aligned", "evidence": "sealed",
        }  # fmt: skip
        named = {
            "run_id": run_id, "content": f"sha256:{run_id}", "began": began, "night": night, "entry": "smoke/tiny",
            "purpose": purpose or purpose_of(night),
        }  # fmt: skip
        record = changed(self.real, number, **{**figures, **named, **change})
        with Store.open(self.address) as store:
            store.add([record])
            store.add_expected_entries(night, "smoke", {"tiny": record.series.fingerprint()})
        return run_id

    def branch(self, name: str, factor: float, number: int = NIGHTS - 1, pairs: int = 0) -> str:
        """Store a night of a branch, with pairs against the accepted build; return its name."""
        night = f"{day(number)}.7@{name}"
        self.add(number, night, factor)
        for pair in range(pairs):
            self.add(number, night, 1.0 + pair / 1e4, "confirm-a")
            self.add(number, night, factor * (1 + pair / 1e4), "confirm-b")
        return night


@pytest.fixture(scope="module")
def quiet(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    return Nights(tmp_path_factory.mktemp("quiet"), real_record(recorded))


@pytest.fixture
def nights(quiet: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    nights = copy(quiet)
    nights.file = Path(shutil.copy(quiet.file, tmp_path))
    nights.address = f"sqlite:///{nights.file}"
    monkeypatch.setenv("LEVELFIELD_STORE", nights.address)
    return nights


def gate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["nightly", "gate", "--format", "json", *words])
    return code, json.loads(capsys.readouterr().out)


def speed_of(document: dict[str, Any]) -> dict[str, Any]:
    (finding,) = (f for f in document["findings"] if f["figure"] == SPEED)
    return dict(finding)


@pytest.mark.parametrize(
    ("factor", "pairs", "word", "code"),
    [
        (0.9, 5, "regression", 4),
        (0.9, 0, "inconclusive", 0),
        pytest.param(1.0, 0, "no change", 0, marks=pytest.mark.thorough),
        (1.0, 5, "no change", 0),
    ],
)
def test_a_branch_is_held_against_the_level_of_the_default_branch(
    factor: float, pairs: int, word: str, code: int, nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    night = nights.branch("feature", factor, pairs=pairs)
    found, document = gate(capsys, "--night", night)
    finding = speed_of(document)
    assert (found, finding["word"], finding["night"]) == (code, word, night)
    assert (finding["level_since"], finding["nights"]) == (day(0), NIGHTS), "nights of the default branch alone"
    assert f"of night {night}" in document["compared"] if "compared" in document else True


def doors(nights: Nights, capsys: pytest.CaptureFixture[str]) -> Iterator[object]:
    """What is shown of the default branch: its gate, history, levels, latest run, nights and page."""
    yield gate(capsys)
    for words in (("history", "tiny", "--json"), ("accept", "--all", "--reason", "first", "--dry-run", "--json")):
        capsys.readouterr()
        yield main(["nightly", *words])
        shown = json.loads(capsys.readouterr().out)
        for event in shown["accepted"] if isinstance(shown, dict) else ():
            event.update(id="", at="")
        yield shown
    with Store.open(nights.address) as store:
        yield store.find("latest"), store.nights(), store.newest_run_night(), store.run_ids(trend_only=True)
        content = read_content(store)
        yield content.last_night, content.expected_entries, [(f.night, f.series, f.word) for f in content.findings]
        inputs = gate_input(store, day(NIGHTS - 1))
        yield inputs.points, inputs.past_findings, inputs.nights


@pytest.mark.parametrize(("factor", "pairs"), [pytest.param(0.8, 0, marks=pytest.mark.thorough), (1.3, 5)])
def test_the_default_branch_shows_the_same_with_nights_of_branches_and_without(
    factor: float, pairs: int, nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(doors(nights, capsys))
    for number in (10, NIGHTS - 1, NIGHTS + 2):
        night = nights.branch(f"feature-{number % 2}", factor, number, pairs)
        gate(capsys, "--night", night)
    for seen, expected in zip(doors(nights, capsys), before, strict=True):
        assert seen == expected


def test_a_branch_has_nothing_of_another_branch_or_of_its_own_earlier_nights(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = speed_of(gate(capsys, "--night", nights.branch("a", 0.97))[1])
    for number in (10, NIGHTS - 2):
        gate(capsys, "--night", nights.branch("a", 0.8, number, pairs=5))
        gate(capsys, "--night", nights.branch("b", 0.8, number, pairs=5))
    again = speed_of(gate(capsys, "--night", f"{day(NIGHTS - 1)}.7@a")[1])
    assert again == alone


def test_a_regression_that_the_default_branch_ended_is_not_opened_again_by_a_branch(nights: Nights) -> None:
    """A `no change` of a branch between both does not stand for that of the default branch."""
    words = {"2026-01-18": "regression", "2026-01-19@x": "no change", "2026-01-20": "no change"}
    with Store.open(nights.address) as store:
        (series,) = (stored.digest for stored in store.series())
        for night, word in words.items():
            finding = Finding.model_validate(
                {"series": series, "label": "l", "figure": SPEED, "word": word, "night": night}
            )
            store.add_finding(night, finding.model_dump(mode="json"))
        past = gate_input(store, "2026-01-21").past_findings
        assert [finding.word for finding in past] == ["regression", "no change"]
        assert not gate_input(store, "2026-01-21").named_regressions
        branch_findings = gate_input(store, "2026-01-19@x").past_findings
        assert [finding.night for finding in branch_findings][-1:] == ["2026-01-19@x"]


def test_a_run_of_a_branch_is_no_evidence_of_a_level(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    night = nights.branch("feature", 1.2, pairs=5)
    with Store.open(nights.address) as store:
        (points,) = store.points().values()
    (run,) = (point.run_id for point in points if point.purpose == "branch")
    with pytest.raises(UsageError, match=f"{run}.*of a branch"):
        baseline_event(LevelEvidence("S", tuple(points), (), (run,)), "ann", "why", f"{day(25)}T00:00:00+00:00")
    assert main(["nightly", "accept", "--all", "--reason", "x", "--night", night]) == 2
    assert night in capsys.readouterr().err


def test_an_import_knows_the_runs_of_a_branch(tmp_path: Path) -> None:
    night = "2026-01-04.7@feature"
    state = NightState(night=night, suite="x", began="now", entries=(NightEntry(name="e", run_id="r"),))
    write_state(state_path(tmp_path, night, "x"), state)
    assert nights_by_run(tmp_path) == {"r": night}
    assert (purpose_of(night), purpose_of("2026-01-04")) == ("branch", "nightly")


@pytest.mark.parametrize(
    ("text", "name"),
    [("feature", "feature"), ("me/fast-kernels", "me-fast-kernels"), ("a b@c", "a-b-c"), ("x" * 80, "x" * 60)],
)
def test_a_branch_is_a_part_of_its_nights_name(text: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_command_line(["nightly", "run", "--suite", "smoke", "--night", "2026-01-04", "--branch", text])
    asked: list[str] = []

    def run(options: object, night: str, detachment: object) -> int:
        asked.append(night)
        return 0

    monkeypatch.setattr("levelfield.cli.nightly_command._run_here", run)
    assert options.branch == name and options.command(options) == 0
    assert asked == [f"2026-01-04@{name}"] and branch_of(asked[0]) == name
    assert night_options(asked[0]) == f"--night 2026-01-04 --branch {name}"


def test_a_branch_without_a_letter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_command_line(["nightly", "run", "--suite", "smoke", "--branch", "//"])
    assert end.value.code == 2 and "'//'" in capsys.readouterr().err


@pytest.mark.parametrize("night", ["2026-01-04", "2026-01-04.7@feature"])
def test_a_nights_runs_are_stored_with_its_branch_and_found_for_pairs(
    night: str, nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(night_session, "record_of", lambda *arguments: asked.append(arguments))
    store: Any = SimpleNamespace(add=lambda records: None)
    session: Any = SimpleNamespace(store=store, request=SimpleNamespace(night=night))
    NightSession._record(session, None, None)  # type: ignore[arg-type]
    assert asked == [(None, purpose_of(night), night)]
    nights.add(2, night, 1.0)
    whole = object.__new__(NightSession)
    whole.request = session.request
    monkeypatch.setattr(night_session, "source_state", lambda folder: {})
    with Store.open(nights.address) as whole.store:
        (series,) = (stored.digest for stored in whole.store.series())
        assert not isinstance(whole._build_here(series), str)
