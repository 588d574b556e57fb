"""Histories, segments and details of runs as the pages get them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from levelfield.cli.command_line import parse_command_line
from levelfield.pages.content import read_content
from levelfield.pages.run_details import month_data, rerun_command
from levelfield.pages.series_history import (
    CachedDocuments,
    InMemoryStore,
    SeriesRuns,
    epoch_seconds,
    field_differences,
    history_data,
    month_of,
    pair_indexes,
    summary_of,
)
from levelfield.specs.base import dump, parse
from levelfield.specs.record import RunRecord, StoredResult
from seeded_nights import SeededNights

RECORDS = list(SeededNights(series=2, nights=24).records())


def runs_of(records: list[RunRecord], which: int = 0) -> SeriesRuns:
    return list(read_content(InMemoryStore(records)).series.values())[which]


def made_history(records: list[RunRecord], which: int = 0) -> dict[str, Any]:
    return history_data(runs_of(records, which), CachedDocuments(InMemoryStore(records)))


BY_ID = {record.run_id: record for record in RECORDS}


def test_a_seeded_record_is_a_valid_one() -> None:
    for record in (RECORDS[0], RECORDS[-1]):
        assert parse(RunRecord, json.loads(dump(record)), "seeded") == record


def test_columns_hold_a_value_for_every_run_in_order_of_time() -> None:
    made = made_history(RECORDS[::-1])
    columns = made["columns"]
    assert {len(values) for values in columns.values()} == {24}
    assert columns["time"] == sorted(columns["time"])
    for place, run_id in enumerate(columns["run"]):
        record = BY_ID[run_id]
        assert columns["tokens"][place] == pytest.approx(record.tokens_per_second_per_device, abs=0.01)
        assert columns["memory"][place] == pytest.approx(record.memory_bytes, abs=1)
        assert made["kept"]["nodes"][columns["node"][place]] == record.node
        assert made["kept"]["conditions"][columns["conditions"][place]] == record.conditions.model_dump(mode="json")
        assert made["kept"]["subjects"][columns["subject"][place]]["commit"] == record.subject.commit


def test_a_failed_run_has_no_figure_and_does_not_count() -> None:
    columns = made_history(RECORDS, which=1)["columns"]
    failed = [place for place, run_id in enumerate(columns["run"]) if BY_ID[run_id].word == "failed"]
    assert failed and all(columns["tokens"][place] is None and columns["counts"][place] == 0 for place in failed)
    assert sum(columns["counts"]) == len(columns["counts"]) - len(failed)


def test_a_segment_begins_where_the_driver_changes_and_names_it() -> None:
    segments = made_history(RECORDS)["segments"]
    assert segments == [{"at": 12, "fields": [["software.driver", "550.90.07", "560.35.03"]]}]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1}}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [["a.b", "1", "2"]]),
        ({"a": None}, {"a": 3}, [["a", "", "3"]]),
        ({"a": {"b": "x"}}, {"a": {}}, [["a.b", "x", ""]]),
        ({"a": 1, "c": 2}, {"c": 2, "a": 1}, []),
    ],
)
def test_differences(before: Any, after: Any, changes: list[list[str]]) -> None:
    assert field_differences(before, after) == changes


def test_a_time_without_a_zone_is_utc_and_another_zone_is_converted() -> None:
    assert (
        epoch_seconds("2026-11-01T00:30:00")
        == epoch_seconds("2026-11-01T00:30:00Z")
        == epoch_seconds("2026-11-01T02:30:00+02:00")
    )
    assert month_of("2026-11-01T00:30:00+02:00") == "2026-10"
    assert epoch_seconds("1970-01-02T00:00:01Z") == 86401


def test_a_run_without_a_readable_time_is_left_out_and_named() -> None:
    lost = RECORDS[0].model_copy(update={"run_id": "lost", "began": "yesterday"})
    content = read_content(InMemoryStore([*RECORDS, lost]))
    assert content.unreadable_ids == ("lost",) and content.run_count == len(RECORDS)


def test_a_month_keeps_curves_facts_and_the_reference() -> None:
    runs = runs_of(RECORDS)
    mine = [BY_ID[point.run_id] for point in runs.points]
    made = month_data(runs.series, mine, ("a reference", [3.0, 2.0]))
    assert made["reference"] == {"name": "a reference", "losses": [3.0, 2.0]}
    for run, record in zip(made["runs"], mine, strict=True):
        shared = made["shared"][run["shared"]]
        assert [step / 1e6 for step in run["steps"]] == pytest.approx(record.step_seconds, abs=1e-6)
        assert [loss / 1e6 for loss in run["losses"]] == pytest.approx(record.losses, abs=1e-6)
        assert shared["expected_bytes"] == record.result.memory.expected_bytes
        assert (shared["done"], shared["planned"]) == (40, 40)
        assert run["alignment"]["reason"] == record.result.alignment.reason
        assert run["device_used"]["value"] == record.memory_bytes
    assert len(made["shared"]) == 1


def with_content(content: dict[str, Any]) -> RunRecord:
    """A run whose stored result is this JSON."""
    return RECORDS[0].model_copy(update={"stored_result": StoredResult(content)})


def test_true_and_one_are_two_values() -> None:
    records = [with_content({"parameters": value}) for value in (1, True, 1.0, 1)]
    made = month_data(RECORDS[0].series, records, None)
    assert [type(made["shared"][run["shared"]]["parameters"]) for run in made["runs"]] == [int, bool, float, int]


def test_a_result_of_another_form_gives_what_it_has() -> None:
    odd = with_content({"memory": 3, "status": [], "throughput": {"step_seconds": "x"}})
    assert month_data(odd.series, [odd], None)["shared"] == [{}]


def test_a_page_says_between_which_times_a_drift_is() -> None:
    flags = ["trend: step time drifts by -114.4% over the window (p = 4e-07)", 3]
    odd = with_content({"throughput": {"step_seconds": {"flags": flags}}})
    [shared] = month_data(odd.series, [odd], None)["shared"]
    trend, other = shared["flags"]
    assert other == "3"
    for part in ("-114.4%", "1.57 to 0.428", "(p = 4e-07)"):
        assert part in trend


def test_a_page_shows_the_inherited_variables_that_may_matter() -> None:
    for inherited, shared in (
        ({"CUDA_HOME": "/cuda", "SSL_CERT_FILE": "/etc"}, {"inherited": {"CUDA_HOME": "/cuda"}, "inherited_others": 1}),
        ({"LD_X": 3}, {"inherited": {"LD_X": "3"}, "inherited_others": 0}),
        (["LD_X"], {}),
        ({}, {}),
    ):
        record = with_content({"inherited": inherited})
        assert month_data(record.series, [record], None)["shared"] == [shared]


def test_the_command_is_read_by_the_command_line() -> None:
    series = RECORDS[0].series.model_copy(update={"virtual_pipeline": 2, "threads": 4, "compile": True, "graph": True})
    words = shlex.split(rerun_command(series))
    assert words[:2] == ["python", "run_benchmarks.py"]
    read = parse_command_line(words[2:])
    assert read.case == ["gpt3_6.7B:torch:H100-SXM5-80GB:1:8"] and (read.layout, read.micro_batch) == ("DP8TP1PP1", 1)
    assert (read.virtual_pipeline, read.threads, read.compile, read.runtime) == (2, 4, True, "docker")
    assert read.graph is True
    assert "graph" not in rerun_command(RECORDS[0].series)  # a command that older builds read as well


def test_a_shell_reads_a_hostile_name_as_one_word() -> None:
    series = RECORDS[0].series.model_copy(update={"case": "a; rm -rf ~ $(id) `id`"})
    words = shlex.split(rerun_command(series))
    assert words[3].startswith(f"{series.case}:torch")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"word": "oom", "failure": "oom"}, "oom"),
        ({"evidence": "tampered"}, "tampered"),
        ({"evidence": "unsealed"}, "unsealed"),
        ({"verdict": "diverged"}, "diverged"),
    ],
)
def test_the_latest_figures_are_those_of_the_last_run_that_counts(change: dict[str, str], reason: str) -> None:
    calm = list(SeededNights(series=1, nights=3, faults=False).records())
    records = [*calm[:2], calm[2].model_copy(update=change)]
    summary = summary_of(runs_of(records))
    assert summary.latest is not None and summary.latest.run_id == records[1].run_id
    assert (summary.run_count, summary.valid_count, summary.exclusion_reason) == (3, 2, reason)


def test_a_series_without_a_valid_run_has_no_figures() -> None:
    record = next(SeededNights(series=1, nights=1).records()).model_copy(update={"evidence": "unsealed"})
    assert summary_of(runs_of([record])).latest is None


def with_pairs(calm: list[RunRecord]) -> list[RunRecord]:
    """The runs, and two pairs after the last one: A B B A, so that the accepted build's run is the newest."""
    other = calm[-1].conditions.model_copy(update={"kernel": "6.9"})
    changes = [
        {"run_id": f"pair{n}", "began": f"2026-12-31T0{n}:00:00Z", "purpose": purpose, "conditions": other}
        for n, purpose in enumerate(("confirm-a", "confirm-b", "confirm-b", "confirm-a"), 1)
    ]
    return [*calm, *(calm[-1].model_copy(update=change) for change in changes)]


def test_a_run_of_a_pair_is_neither_the_latest_of_its_series_nor_a_point_of_its_trend() -> None:
    calm = list(SeededNights(series=1, nights=3, faults=False).records())
    summary, made = summary_of(runs_of(with_pairs(calm))), made_history(with_pairs(calm))
    assert summary.latest is not None and summary.latest.run_id == calm[-1].run_id
    assert (summary.last_began, summary.run_count, summary.valid_count) == (calm[-1].began, 7, 7)
    assert made["columns"]["trend"] == [1, 1, 1, 0, 0, 0, 0] and made["segments"] == []
    failed = calm[-1].model_copy(update={"word": "failed"})
    assert summary_of(runs_of(with_pairs([*calm[:-1], failed]))).exclusion_reason == "failed"


def test_pairs_are_the_runs_of_both_builds_by_night() -> None:
    """A run without its counterpart is no pair, and no pair has runs of two nights."""
    (calm,) = InMemoryStore(SeededNights(series=1, nights=1, faults=False).records()).points().values()
    ran = [("1", "b"), ("1", "a"), ("1", "a"), ("1", "b"), ("1", "a"), ("2", "b"), ("2", "a"), ("2", "b")]
    points = [*calm, *(calm[0].model_copy(update={"night": night, "purpose": f"confirm-{arm}"}) for night, arm in ran)]
    assert pair_indexes(points) == [
        {"night": "1", "a": 2, "b": 1},
        {"night": "1", "a": 3, "b": 4},
        {"night": "2", "a": 7, "b": 6},
    ]
    assert pair_indexes(calm) == []
