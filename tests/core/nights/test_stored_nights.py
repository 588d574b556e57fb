"""Which points of the store the gate reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_points import event
from gate_points import point as gate_point
from levelfield.nights.stored_nights import ENOUGH_NIGHTS, gate_input
from levelfield.series.findings import Finding
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import Point
from levelfield.store.database import Store
from stored_records import real_record

NIGHT = "2026-11-25"


def no_findings(since: str) -> list[dict[str, Any]]:
    return []


def point(purpose: str, night: str) -> Point:
    return gate_point(0, purpose=purpose, night=night, began=f"{night}T02:00:00Z", entry=None)


@pytest.mark.parametrize("purpose", ["nightly", "confirm-a"])
def test_older_points_are_read_until_there_are_enough_nights(purpose: str) -> None:
    """Runs of pairs are no nights: beside many of them a series had too few older points."""
    recent = [point("nightly", NIGHT), *(point(purpose, NIGHT) for _ in range(ENOUGH_NIGHTS))]
    older = [point("nightly", "2026-01-01"), *recent]

    def points(series: Any = None, since: str | None = None) -> dict[str, list[Point]]:
        return {"s": recent if since else older}

    stored = SimpleNamespace(digest="s", series=SimpleNamespace(), run_count=2 * ENOUGH_NIGHTS, last_began=NIGHT)
    accepted = event("baseline", 0, series="s")
    store: Any = SimpleNamespace(
        points=points,
        series=lambda: [stored],
        events=lambda: [accepted],
        changed_findings=no_findings,
        expected_entries=lambda night: {},
        nights=lambda suite=None: [],
    )
    assert len(gate_input(store, NIGHT).points["s"]) == (len(recent) if purpose == "nightly" else len(older))
    store.events = list
    assert len(gate_input(store, NIGHT).points["s"]) == len(older), "its first nights are its level"
    changed = Finding(series="s", label="", figure="memory_bytes", word="regression", night="2026-01-02")
    store.events, store.changed_findings = (lambda: [accepted]), lambda since: [changed.model_dump(mode="json")]
    assert len(gate_input(store, NIGHT).points["s"]) == len(older), "older nights are its level"


def test_the_numbers_of_a_run_s_work_come_from_its_stored_result(recorded: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / recorded.name))
    record, training = real_record(run), load(Plan, RunPaths(run).plan).work.training
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        store.add([record])
        workload = gate_input(store, record.began[:10]).workload
        numbers = workload(record.run_id)
        assert workload("a run that the store does not have") == {}
    assert (numbers["global_batch"], numbers["sequence_length"]) == (training.global_batch, training.sequence_length)
    assert (numbers["steps"], numbers["window"]) == (training.steps, "3..12")


def test_an_entry_is_expected_to_run_what_it_ran_in_the_newest_night_before() -> None:
    """So an entry whose work changed is incomparable in its first night (test_gate.py), and no new series."""
    of_nights: dict[str, dict[str, str | None]] = {
        "2026-11-01": {"s/gone": "far", "s/e": "oldest"},
        "2026-11-20": {"s/e": "old", "s/same": "same"},
        "2026-11-24": {"s/e": None, "t/e": "of another suite"},
        NIGHT: {"s/e": "new", "s/same": "same", "s/first": "first", "s/gone": "near"},
        "2026-11-26": {"s/e": "later"},
    }
    store: Any = SimpleNamespace(
        points=lambda *_, **__: {}, series=list, events=list, changed_findings=no_findings,
        nights=lambda suite=None: list(of_nights), expected_entries=lambda night: of_nights[night],
    )  # fmt: skip
    expected = {"s/e": "old", "s/same": "same", "s/first": "first", "s/gone": "near"}
    assert gate_input(store, NIGHT).expected_entries == expected
    assert gate_input(store, "2026-11-26").expected_entries == {"s/e": "new"}, "for one night"
