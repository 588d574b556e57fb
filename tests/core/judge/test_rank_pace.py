"""Who waited for whom, from the events of a run to its reports."""

from __future__ import annotations

import math
import random

import pytest
from levelfield.judge.collector import collect
from levelfield.report.one_run import result_lines, run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from node_runs import spread
from recorded_runs import Event, change_steps


def paced(run: RunPaths, slower: float, rank: int = 1, spread: float = 0.01) -> RunPaths:
    """Each rank works 0.4 s by itself in each step, with noise; one rank `slower` times as long."""
    for each in (0, 1):
        draw = random.Random(each)

        def work(event: Event, factor: float = slower if each == rank else 1.0, draw: random.Random = draw) -> None:
            event["before_exchange_seconds"] = 0.4 * factor * draw.lognormvariate(0, spread)

        change_steps(run, work, rank=each)
    return run


def test_a_slow_rank_is_named_in_the_reports(run: RunPaths) -> None:
    result = collect(paced(run, 1.10))
    assert result.status.word == "valid" and result.pace is not None and result.pace.steps == 10
    (found,) = result.pace.stragglers
    assert (found.name, found.ranks, found.slowest_in) == ("rank 1", (1,), 10)
    assert found.excess == pytest.approx(0.10, abs=0.02) and found.waited_seconds == pytest.approx(0.04, abs=0.01)
    lines = " ".join(" ".join(result_lines(result)).split())
    assert "waited rank 1 took 10." in lines and "the others waited 4" in lines
    assert "| waiting | flagged | rank 1 took 10." in run_report(result, read_plan(run))


def test_a_slow_node_is_named(run: RunPaths) -> None:
    result = collect(paced(spread(run), 1.12))
    assert result.pace is not None and [each.name for each in result.pace.stragglers] == ["node1"]
    assert "node1's ranks took 12." in run_report(result, read_plan(run))


def test_noise_names_nobody_and_says_so(run: RunPaths) -> None:
    result = collect(paced(run, 1.0, spread=0.05))
    assert result.pace is not None and result.pace.stragglers == ()
    assert "| waiting | none found | no node or rank was the slowest" in run_report(result, read_plan(run))


def test_a_training_that_records_nothing_has_no_pace(run: RunPaths) -> None:
    result = collect(run)
    assert result.pace is None and "waiting" not in run_report(result, read_plan(run))


@pytest.mark.parametrize("value", ["nan", "soon", None, [], -1, math.inf])
def test_a_damaged_time_ends_nothing(run: RunPaths, value: object) -> None:
    paced(run, 1.2)
    change_steps(run, lambda e: e.update(before_exchange_seconds=value) if e["step"] == 5 else None)
    result = collect(run)
    assert result.pace is not None
    assert result.pace.stragglers == (), "nine steps are too few"


def test_one_rank_without_times_is_said(run: RunPaths) -> None:
    paced(run, 1.2)
    change_steps(run, lambda e: e.pop("before_exchange_seconds"), rank=0)
    found = collect(run).pace
    assert found is not None and (found.unchecked or "").startswith("0 steps have a time of every rank")
