"""The store's whole interface, on SQLite and on PostgreSQL."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from levelfield.errors import UnknownName, UsageError
from levelfield.nights.stored_nights import find_night
from levelfield.pages.content import read_content
from levelfield.series.findings import FIGURE_NAMES, Finding, FindingWord
from levelfield.specs.record import Point, RunRecord, StoreEvent
from levelfield.store import database, statements
from levelfield.store.database import Store
from levelfield.store.rows import AddedRuns
from levelfield.store.statements import StatedFinding, add_statements
from stored_records import changed


def runs_of(record: RunRecord, nights: int = 3) -> list[RunRecord]:
    """Three nights of two series, the second of another case; the second night has other conditions."""
    busier = record.conditions.model_copy(update={"kernel": "6.1"})
    other = {"series": {"case": "tinier"}, "night": "2026-01-03", "conditions": busier}
    first = [changed(record, number, night=f"2026-01-{number + 2:02}") for number in range(nights)]
    return [*first, *(changed(record, number + 100, **other) for number in range(nights))]


def test_records_come_back_as_they_were_added(url: str, record: RunRecord) -> None:
    added = runs_of(record)
    with Store.open(url) as store:
        assert store.add(added) == AddedRuns(new_count=6)
    with Store.open(url, read_only=True) as store:
        assert list(store.records()) == sorted(added, key=lambda r: r.began)
        assert store.record(added[4].run_id) == added[4]
        assert list(store.records([added[5].run_id, "absent", added[0].run_id])) == [added[5], added[0]]


def test_a_second_import_changes_nothing(url: str, record: RunRecord) -> None:
    with Store.open(url) as store:
        store.add(runs_of(record))
    with Store.open(url) as store:
        before = list(store.records())
        assert store.add(runs_of(record)) == AddedRuns(existing_count=6)
        assert store.add([*runs_of(record, 4), *runs_of(record, 4)]) == AddedRuns(new_count=2, existing_count=14)
        assert [r for r in store.records() if r.run_id in {b.run_id for b in before}] == before


def test_the_same_id_with_other_content_keeps_both_aside_and_adds_the_others(url: str, record: RunRecord) -> None:
    first, second = runs_of(record)[:2]
    forged = first.model_copy(update={"content": "sha256:other", "tokens_per_second_per_device": 9e9})
    with Store.open(url) as store:
        store.add([first])
        assert store.add([forged, second]) == AddedRuns(new_count=1, conflicting_runs=(first.run_id,))
        assert [r.run_id for r in store.records()] == [second.run_id]
        points = store.points()[first.series.fingerprint()]
        assert [point.run_id for point in points] == [second.run_id]
        assert store.series()[0].run_count == 1
        # Neither of them comes back by a further import, and nothing is kept twice.
        assert store.add([first]).conflicting_runs == store.add([forged]).conflicting_runs == (first.run_id,)
        assert store.run_ids() == [second.run_id]


def test_a_conflict_within_one_batch_is_found_as_well(url: str, record: RunRecord) -> None:
    forged = record.model_copy(update={"content": "sha256:other"})
    with Store.open(url) as store:
        assert store.add([record, forged, record]) == AddedRuns(
            new_count=1, existing_count=1, conflicting_runs=(record.run_id,)
        )
        assert store.run_ids() == []


def test_series_and_points_have_what_was_added(url: str, record: RunRecord) -> None:
    added = runs_of(record)
    digest, other = added[0].series.fingerprint(), added[3].series.fingerprint()
    with Store.open(url) as store:
        store.add(reversed(added))
        stored = {entry.digest: entry for entry in store.series()}
        assert stored[digest].series == added[0].series and stored[digest].run_count == 3
        assert (stored[digest].first_began, stored[digest].last_began) == (added[0].began, added[2].began)
        assert [entry.digest for entry in store.series("tinier")] == [other] and store.series("absent") == []
        points = store.points()
        assert points.keys() == {digest, other} and [p.began for p in points[digest]] == [r.began for r in added[:3]]
        for point, run in zip(points[other], added[3:], strict=True):
            names = Point.model_fields.keys() - {"conditions", "subject", "disturbance"}
            assert all(getattr(point, name) == getattr(run, name) for name in names) and point.disturbance is None
            assert store.conditions(point.conditions) == run.conditions
            assert store.subject(point.subject) == run.subject
        assert store.points([digest, "absent"]) == {digest: points[digest], "absent": []}
        assert [p.run_id for p in store.points([digest], since="2026-01-04")[digest]] == [added[2].run_id]


def test_the_latest_run_is_none_of_a_pair(url: str, record: RunRecord) -> None:
    pairs = [changed(record, 8, purpose="confirm-b"), changed(record, 9, purpose="confirm-a")]
    with Store.open(url) as store:
        store.add([changed(record, 1, purpose="nightly"), *pairs])
        assert store.find("latest") == changed(record, 1).run_id
        assert store.find(pairs[1].run_id) == pairs[1].run_id


def test_a_run_is_found_by_its_id_by_a_part_and_as_the_latest(url: str, record: RunRecord) -> None:
    added = runs_of(record)
    with Store.open(url) as store:
        store.add(added)
        assert store.find("latest") == added[-1].run_id
        assert store.find(added[1].run_id) == store.find("_000001") == added[1].run_id
        with pytest.raises(UsageError, match="several runs") as error:
            store.find("tiny_fake")
        assert sum(run.run_id in str(error.value) for run in added) == 4
        with pytest.raises(UnknownName, match="run 'n_thing'"):
            store.find("n_thing")  # not a pattern
        with pytest.raises(UnknownName, match="run 'absent'"):
            store.record("absent")
        with pytest.raises(UnknownName, match="conditions 'absent'"):
            store.conditions("absent")


def test_events_are_added_once_and_never_changed(url: str) -> None:
    event = StoreEvent(id="e1", kind="note", series="sha256:a", at="2026-01-03T00:00:00+00:00", who="ann", why="fan")
    later = StoreEvent(id="e0", kind="note", series="sha256:b", at="2026-01-04T00:00:00+00:00", who="bob", why="hot")
    with Store.open(url) as store:
        for statement in (later, event, event):
            store.add_event(statement)
        assert store.events() == [event, later]
        assert store.events(series="sha256:a") == [event]
        with pytest.raises(UsageError, match="event 'e1'"):
            store.add_event(event.model_copy(update={"why": "other"}))
        assert store.events() == [event, later]


def test_expectations_learn_their_series_and_nights_are_listed(url: str, record: RunRecord) -> None:
    with Store.open(url) as store:
        store.add_expected_entries("2026-01-05", "nightly", {"a": None, "b": "sha256:b"})
        store.add_expected_entries("2026-01-05", "nightly", {"a": "sha256:a", "b": None, "c": None})
        store.add_expected_entries("2026-01-05", "weekly", {"a": None})
        entry = {"nightly/a": "sha256:a", "nightly/b": "sha256:b", "nightly/c": None, "weekly/a": None}
        assert store.expected_entries("2026-01-05") == entry and store.expected_entries("2026-01-06") == {}
        store.add(runs_of(record))
        assert store.nights() == ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.thorough] if seed > 0 else []) for seed in range(5)]
)
def test_only_findings_that_changed_something_are_read(url: str, seed: int) -> None:
    """Whatever nights were judged, in any order and again: the same as by all of them, in Python."""
    generator, stored = random.Random(seed), list[tuple[str, Finding]]()
    words: list[FindingWord] = ["no change", "no change", "no change", "inconclusive", "regression"]
    with Store.open(url) as store:
        for number in range(60):
            night, series = f"2026-01-{generator.randrange(1, 20):02d}", generator.choice("ST")
            finding = Finding(
                series=series, label="it", figure=generator.choice(list(FIGURE_NAMES)), word=generator.choice(words),
                pairs=generator.choice([0, 0, 5]), run_id=f"run{number}", night=night,
            )  # fmt: skip
            stored.append((night, finding))
            store.add_finding(night, finding.model_dump(mode="json"))
        expected, before = list[Finding](), dict[tuple[str, str | None], bool]()
        for night, finding in sorted(stored, key=lambda entry: entry[0]):
            if night >= "2026-01-05":
                if not (finding.is_plain and before.get((finding.series, finding.figure), True)):
                    expected.append(finding)
                before[finding.series, finding.figure] = finding.is_plain
        assert [row["run_id"] for row in store.changed_findings("2026-01-05")] == [f.run_id for f in expected]


def test_findings_that_are_imported_again_are_compared_once_each(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(dict[str, Any]):
        comparisons = 0

        def __eq__(self, other: object) -> bool:
            Counted.comparisons += 1
            return dict.__eq__(self, other)

    stated = [StatedFinding(night="a", finding={"number": number}) for number in range(50)]
    with Store.open(url) as store:
        add_statements(store, stated)
        rows = [(statement.night, Counted(statement.finding)) for statement in stated]
        monkeypatch.setattr(statements, "findings", lambda *arguments: rows)
        add_statements(store, stated)
        monkeypatch.undo()
        assert len(store.findings()) == 50 and Counted.comparisons <= 50


def test_findings_are_kept_in_order(url: str) -> None:
    with Store.open(url) as store:
        for number, night in enumerate(("b", "a", "b")):
            store.add_finding(night, {"number": number, "word": "regression", "text": "ü"})
        assert [entry["number"] for entry in store.findings()] == [0, 1, 2]
        assert [entry["number"] for entry in store.findings("b")] == [0, 2] and store.findings("c") == []
        with pytest.raises(ValueError, match="JSON compliant"):
            store.add_finding("a", {"change": float("nan")})


def test_a_failed_batch_leaves_nothing_and_the_store_goes_on(
    url: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the failed transaction had added is not remembered as being there."""
    with Store.open(url) as store:
        monkeypatch.setattr("levelfield.store.rows.raw_row", lambda *arguments: dict[str, object]()["broken"])
        with pytest.raises(KeyError):
            store.add([record])
        monkeypatch.undo()
        assert store.run_ids() == [] and store.add([record]) == AddedRuns(new_count=1)
        assert list(store.records()) == [record]


def test_the_views_have_a_row_for_each_run_and_series(url: str, record: RunRecord) -> None:
    added = runs_of(record)
    with Store.open(url) as store:
        store.add([*added, added[0].model_copy(update={"content": "sha256:other"})])
        rows = store.read(lambda connection: connection.exec_driver_sql("SELECT * FROM v_result ORDER BY began").all())
        assert [row.run_id for row in rows] == [run.run_id for run in added[1:]]
        first = rows[0]
        assert (first.label, first.began_seconds) == (added[1].series.label, 1767409445)
        assert first.tokens_per_second_per_device == added[1].tokens_per_second_per_device
        stored = store.read(
            lambda connection: connection.exec_driver_sql("SELECT * FROM v_series ORDER BY case_name").all()
        )
        assert [(row.case_name, row.runs, row.valid_runs) for row in stored] == [("tinier", 3, 3), ("tiny", 2, 2)]


def test_the_newest_points_of_a_long_series_are_read_and_all_of_a_short_one(
    url: str, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_POINTS", 5)
    short = [changed(record, number, series={"case": "short"}) for number in range(20, 24)]
    with Store.open(url) as store:
        store.add([changed(record, number) for number in range(12)] + short)
        by_length = sorted(store.points().values(), key=len)
        assert [[point.run_id[-6:] for point in points] for points in by_length] == [
            [f"{number:06x}" for number in numbers] for numbers in (range(20, 24), range(7, 12))
        ]
        long = next(entry.digest for entry in store.series() if entry.run_count == 12)
        assert len(store.points([long])[long]) == 5 and len(store.run_ids()) == 16
        assert len(store.points(since=by_length[1][2].began)[long]) == 3


def test_a_night_of_a_clock_that_was_wrong_is_the_newest_only_where_it_is_alone(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "s.sqlite")) as store:
        store.add_expected_entries("2999-01-02", "s", {"e": None})
        assert find_night(store, None) == "2999-01-02" and read_content(store).last_night == "2999-01-02"
        for night in ("2026-01-03", "2026-01-02", "2026-01-03.b"):
            store.add_expected_entries(night, "s", {"e": None})
        assert store.nights() == ["2999-01-02", "2026-01-02", "2026-01-03", "2026-01-03.b"]
        assert find_night(store, None) == read_content(store).last_night == "2026-01-03.b"
        assert find_night(store, "2999-01-02") == "2999-01-02"
