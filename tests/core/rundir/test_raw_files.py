"""Raw files: what a killed process leaves is read, and what no process of ours wrote is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from levelfield.judge.collector import collect
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.rundir.telemetry_files import read_lines
from levelfield.specs.paths import RunPaths
from recorded_runs import Event, change_lines, change_steps, edit


def append(path: Path, text: bytes) -> None:
    path.write_bytes(path.read_bytes() + text)


def test_a_whole_run_is_read(run: RunPaths) -> None:
    raw = read_raw(run)
    assert [(r.rank, r.step) for r in raw.steps] == [(rank, step) for rank in (0, 1) for step in range(1, 13)]
    assert (
        raw.ranks_with_end_event == {0, 1}
        and set(raw.first_step_start_ns) == {0, 1}
        and set(raw.framework_events) == {0, 1}
    )
    assert len(raw.weights) == 2 * 36 and raw.errors == {} and raw.damage_sentences == ()
    assert raw.outcome["cause"] == "exited" and len(raw.telemetry[0].readings) == 2 * 7


def test_an_empty_folder_gives_empty_parts(tmp_path: Path) -> None:
    assert read_raw(RunPaths(tmp_path)) == RawRecords()


@pytest.mark.parametrize("torn", [b'{"event":"step","step":13,"end_', b'{"event":"step"}', b"\xff\xfe", b"{"])
def test_a_torn_last_line_is_passed_over(run: RunPaths, torn: bytes) -> None:
    whole = read_raw(run)
    append(run.events / "rank1.jsonl", torn)
    assert read_raw(run) == whole


@pytest.mark.parametrize("line", [b"half a line", b'{"event":"st', b"[1, 2]", b"null", b"\xff\xfe", b""])
def test_a_broken_line_before_the_last_is_named(run: RunPaths, line: bytes) -> None:
    path = run.events / "rank1.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:5], line, *lines[5:]]))
    raw = read_raw(run)
    (broken,) = raw.damage_sentences
    assert broken.partition(":")[0].split() == ["rank1.jsonl", "line", "6"] and len(raw.steps) == 24


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", None), ("step", "third"), ("step", [3]), ("end_ns", "soon"), ("loss", "low"), ("loss", {}),
        ("tokens", None), ("grad_norm", "steep"), ("memory", 7), ("memory", {"process_peak_bytes": "much"}),
        ("tokens_checksum", "abc"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_makes_the_event_damaged(run: RunPaths, key: str, value: object) -> None:
    def damage(event: Event) -> None:
        if event["step"] == 4:
            event[key] = value

    change_steps(run, damage)
    raw = read_raw(run)
    (broken,) = raw.damage_sentences
    assert broken.startswith("rank1.jsonl: ") and "step event" in broken
    assert [r.step for r in raw.steps if r.rank == 1] == [s for s in range(1, 13) if s != 4]


@pytest.mark.parametrize("key", ["step", "end_ns", "loss", "grad_norm", "tokens"])
def test_a_missing_key_makes_the_event_damaged(run: RunPaths, key: str) -> None:
    change_steps(run, lambda event: event.pop(key) if event.get("step") == 4 else None)
    (broken,) = read_raw(run).damage_sentences
    assert broken.startswith("rank1.jsonl: ") and "step event" in broken and key in broken


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("begin", {"end_ns": "soon"}),
        ("begin", {"end_ns": None}),
        ("weights", {"parameters": [["embedding.weight", [64, 16]]]}),
        ("weights", {"parameters": [["embedding.weight", [64, 16], [[0, 64], [0, 16]], "no number"]]}),
        ("weights", {"parameters": 3}),
        ("final_weights", {"parameters": [["embedding.weight", [64, 16], [[0, 64], [0, 16]], []]]}),
        ("final_weights", {"parameters": [["embedding.weight", [64, 16], [[0, 64], [0, 16]], ["much"]]]}),
        ("final_weights", {"parameters": [["embedding.weight", [64, 16], [[0, 64]]]]}),
    ],
)
def test_other_damaged_events_are_named_too(run: RunPaths, kind: str, change: Event) -> None:
    path = run.events / "rank0.jsonl"
    edit(path, lambda events: [{**e, **change} if e["event"] == kind else e for e in events])
    raw = read_raw(run)
    (broken,) = raw.damage_sentences
    assert broken.startswith(f"rank0.jsonl: a {kind} event ")


def test_words_for_what_is_not_finite_are_numbers_again(run: RunPaths) -> None:
    change_steps(run, lambda event: event.update(loss="nan", grad_norm="-inf") if event["step"] == 4 else None)
    (record,) = [r for r in read_raw(run).steps if (r.rank, r.step) == (1, 4)]
    assert record.loss != record.loss and record.grad_norm == float("-inf")


@pytest.mark.parametrize(
    "line",
    [
        {"samples": [{"index": 0}]},
        {"time_ns": "noon", "samples": [{"index": 0}]},
        {"time_ns": 1, "samples": [{}]},
        {"time_ns": 1, "samples": 3},
        {"time_ns": 1, "samples": [3]},
        {"time_ns": 1, "samples": [{"index": 0, "power_watts": "N/A"}]},
    ],
)
def test_a_damaged_reading_is_named(run: RunPaths, line: Event) -> None:
    append(run.telemetry, json.dumps(line).encode() + b"\n")
    raw = read_raw(run)
    (broken,) = raw.damage_sentences
    assert broken.startswith("telemetry.jsonl: ") and "a reading" in broken
    assert len(raw.telemetry[0].readings) == 14


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3"])
def test_an_outcome_that_is_none_is_none(run: RunPaths, content: str) -> None:
    run.outcome.write_text(content)
    assert read_raw(run).outcome == {}


def test_a_stranger_among_the_events_is_named(run: RunPaths) -> None:
    (run.events / "rank0-copy.jsonl").write_text("{}\n")
    (broken,) = read_raw(run).damage_sentences
    assert broken.startswith("rank0-copy.jsonl: ")


def test_lines_of_a_missing_file_are_none(tmp_path: Path) -> None:
    broken: list[str] = []
    assert list(read_lines(tmp_path / "absent", broken)) == [] and broken == []


def test_two_samples_of_one_device_in_a_reading_are_damage(run: RunPaths) -> None:
    """Which of them is right is unknown: a second one of half the power would halve the energy."""
    change_lines(run.telemetry, lambda line: line["samples"].append({**line["samples"][1], "power_watts": 1.0}))
    raw = read_raw(run)
    assert {"telemetry.jsonl: a reading is damaged: ValueError found several samples of one device, expected one"} == {
        *raw.damage_sentences
    }
    assert collect(run).status.word == "invalid"
