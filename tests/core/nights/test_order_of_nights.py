"""A night in a store: what did not run before it, and one that a wrong clock dated before the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_points import at, day, nights, point, series
from levelfield.errors import UsageError
from levelfield.nights import night_session
from levelfield.nights.baselines import LevelEvidence, baseline_event
from levelfield.nights.gate import judge_night, suspects
from levelfield.nights.gate_input import GateInput, nights_not_run, set_back_finding
from levelfield.nights.night_session import NightRequest, NightSession
from levelfield.plan.request import UserRequest
from levelfield.series.findings import Finding, FindingPage
from levelfield.specs.record import Point
from levelfield.store.database import Store
from stored_records import changed, real_record

DAILY, WORKDAYS, WEEKLY = range(40), [i for i in range(40) if (i - 1) % 7 < 5], range(1, 40, 7)  # day(1) is a Monday


@pytest.mark.parametrize(
    ("before", "tonight", "count", "last"),
    [
        (DAILY, 40, 0, 39),
        (DAILY, 41, 1, 39),
        (DAILY, 44, 4, 39),
        ([*range(20), *range(26, 40)], 43, 3, 39),
        ([0, 1, 2], 6, 3, 2),
        ([0, 1], 3, 1, 1),
        ([*WORKDAYS, 40], 43, 0, 40),
        (WORKDAYS, 43, 1, 39),
        (WORKDAYS[:-1], 41, 2, 38),
        (WEEKLY, 43, 0, 36),
        (WEEKLY, 57, 2, 36),
        ([3], 9, 0, 0),
        ([], 9, 0, 0),
    ],
)  # fmt: skip
def test_nights_that_did_not_run_are_counted_by_the_days_on_which_nights_run(
    before: Iterable[int], tonight: int, count: int, last: int
) -> None:
    names = [*map(day, before), f"{day(tonight)}.b", "first try", day(tonight + 3)]
    assert nights_not_run(names, day(tonight))[1] == count
    if count:
        assert nights_not_run(names, day(tonight))[0] == day(last)


def verdict(inputs: GateInput) -> tuple[str, int]:
    report = judge_night(inputs)
    page = FindingPage(report.first_line, inputs.night, report.findings, order_problem=report.order_problem)
    return page.verdict, page.exit_code


def test_nights_that_did_not_run_are_in_the_first_line() -> None:
    points = [*nights(20), *nights(1, first=23)]
    names = [point.night or "" for point in points]
    line, code = verdict(GateInput(day(23), {"S": points}, {"S": series()}, nights=names))
    assert line.endswith(f"; 3 nights after {day(19)} did not run") and code == 0
    line, code = verdict(GateInput(day(19), {"S": points}, {"S": series()}, nights=names))
    assert "did not run" not in line


def with_phantom(slow: bool = False) -> tuple[Sequence[Point], str, list[Finding]]:
    """Forty nights of which the 21st has a clock that is 400 days back, with or without a regression."""
    points, night = nights(40), "2025-02-14"
    phantom = point(20, 900.0 if slow else 1000.0, night=night, began=f"{night}T02:00:00Z", run_id="phantom")
    return [phantom, *points[:20], *points[21:]], night, [set_back_finding(night, day(19))]


def test_a_night_that_is_dated_before_the_others_is_named_with_both_dates_and_is_incomplete() -> None:
    points, night, past = with_phantom()
    line, code = verdict(GateInput(night, {"S": points}, {"S": series()}, past_findings=past))
    assert line.startswith(f"night {night} is incomplete: 1 incomparable") and day(19) in line and code == 3
    (finding,) = [
        f for f in judge_night(GateInput(night, {"S": points}, {}, past_findings=past)).findings if not f.series
    ]
    assert (finding.label, finding.fields) == (f"night {night}", (f"night {day(19)} -> {night}",))
    line, code = verdict(GateInput(day(39), {"S": points}, {"S": series()}, past_findings=past))
    assert (code, night in line) == (0, False), "other nights are as they were"


@pytest.mark.parametrize("slow", [False, True])
def test_it_never_becomes_the_first_build_nor_a_part_of_a_level(slow: bool) -> None:
    points, _, past = with_phantom(slow)
    for number in (20, 30, 39):
        tonight = point(number, 900.0, run_id="tonight")
        before = [p for p in points if p.began < at(number)]
        without = [p for p in before if p.run_id != "phantom"]
        (suspect,), (expected,) = (
            suspects(GateInput(day(number), {"S": [*of, tonight]}, {"S": series()}, past_findings=found))
            for of, found in ((before, past), (without, []))
        )
        assert suspect == expected and suspect.examination.baseline_run == "run000"


def test_it_is_no_evidence_of_an_accepted_level() -> None:
    points, _, past = with_phantom()
    evidence = LevelEvidence("S", tuple(points), tuple(past), ("phantom", "run001", "run002"))
    with pytest.raises(UsageError, match="phantom"):
        baseline_event(evidence, "ann", "why", at(39, 9))
    assert "phantom" not in baseline_event(LevelEvidence("S", tuple(points[:6]), tuple(past)), "a", "w", at(9)).runs


@pytest.mark.parametrize(
    ("night", "starts", "expected"),
    [("2025-01-01", 1, 1), ("2025-01-01", 2, 1), ("2026-01-04", 1, 0), ("2026-01-05", 1, 0), ("2026-01-02", 1, 0)],
)
def test_a_night_that_begins_compares_its_date_with_the_runs_of_the_store(
    night: str, starts: int, expected: int, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the store has already goes on, or is judged again: it is not out of order."""
    file, record = str(tmp_path / "r.sqlite"), real_record(recorded)
    with Store.open(file) as store:
        store.add(changed(record, number, night=f"2026-01-{number + 2:02}") for number in range(3))
        store.add_expected_entries("2030-01-01", "one", {"a": None})  # of a clock that was ahead; its runs were removed
    monkeypatch.setattr(night_session, "_plan_night_runs", lambda *arguments: ())
    request = NightRequest("one", night, tmp_path, file, UserRequest())
    output: Any = SimpleNamespace(say=print)
    for _ in range(starts):
        with NightSession.open(request, output, output) as session:
            session.store.add_expected_entries(night, "one", {"a": None})
    with Store.open(file) as store:
        assert [Finding.model_validate(row).is_set_back for row in store.findings()] == [True] * expected
