"""Raw files that a failing disk or another program wrote: each gives a result that says so, never a fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from levelfield.judge.collector import collect
from levelfield.judge.status import judge_run
from levelfield.report.one_run import run_report
from levelfield.rundir import directory
from levelfield.rundir.follower import Follower
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from recorded_runs import record_run

MARK = '"@"'
HOSTILE = ("1e999", "1" + "0" * 400, '"x"', "null", "[]")
WHOLE_LINES = (*HOSTILE, "-1", '{"a": []}', "NaN", "[" * 3000 + "]" * 3000)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    record_run(paths)
    return paths


def places(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value; of a list, its first."""
    pairs = (
        content.items() if isinstance(content, dict) else enumerate(content[:1]) if isinstance(content, list) else ()
    )
    for key, value in pairs:
        yield (*above, key)
        yield from places(value, (*above, key))


def with_hostile(content: dict[str, Any]) -> Iterator[str]:
    """The line with two values in each place, by turns, and each value in place of the line."""
    for number, place in enumerate(places(content)):
        changed = copy.deepcopy(content)
        at = changed
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = MARK.strip('"')
        turn = [HOSTILE[(number + step) % len(HOSTILE)] for step in (0, 2)]  # a collection for each value takes long
        yield from (json.dumps(changed).replace(MARK, hostile) for hostile in turn)
    yield from WHOLE_LINES


def one_of_each_kind(lines: list[str]) -> dict[str, int]:
    """The number of the first line of each kind of event."""
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines):
        numbers.setdefault(str(json.loads(line).get("event")), number)
    return numbers


@pytest.mark.parametrize("name", ["events/rank0.jsonl", "telemetry.jsonl", "outcome.json"])
def test_no_value_in_any_place_is_a_fault(name: str, run: RunPaths) -> None:
    path, plan = run.root / name, directory.read_plan(run)
    lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text().replace("\n", " ")]
    tried = 0
    for number in one_of_each_kind(lines).values():
        for line in with_hostile(json.loads(lines[number])):
            path.write_text("\n".join([*lines[:number], line, *lines[number + 1 :]]) + "\n")
            Follower(run.events, plan).read()
            assert run_report(collect(run), plan)
            tried += 1
    assert tried > 20


@pytest.mark.parametrize("cause", ["exited", "rank-failed", "hang", "interrupted", "nonsense"])
def test_no_value_in_an_outcome_is_a_fault_whatever_the_cause(cause: str, run: RunPaths) -> None:
    plan = directory.read_plan(run)
    for key in ("ends", "evidence", "extra"):
        for value in (*HOSTILE, "[7]", "[[]]", "[{}]", '[{"rank": 0, "signal": []}]', '{"a": 1}'):
            run.outcome.write_text(f'{{"cause": "{cause}", "{key}": {value}}}')
            assert judge_run(plan, read_raw(run), run).word != "valid" or cause in ("exited", "nonsense")


@pytest.mark.parametrize(
    "line", ['{"event": "step", "step": 3}', "}{", '{"event": "step", "step": 1e999, "end_ns": 1}']
)
def test_a_damaged_event_makes_the_run_invalid_and_is_named(line: str, run: RunPaths) -> None:
    path = run.events / "rank0.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], line, *lines[5:]]) + "\n")
    result = collect(run)
    assert result.status.word == "invalid"
    assert any("rank0.jsonl" in reason for reason in result.status.reasons)
