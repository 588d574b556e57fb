"""Who waited for whom, from the events of a run to its reports."""

from __future__ import annotations

import math
import random
import re

import pytest
from levelfield.judge.collector import collect
from levelfield.specs.paths import RunPaths
from node_runs import spread
from recorded_runs import Event, change_steps
from report_rows import report_rows, terminal_rows


def paced(run: RunPaths, slower: float, rank: int = 1, spread: float = 0.01) -> RunPaths:
    """Each rank works 0.4 s by itself in each step, with noise; one rank `slower` times as long."""
    for number in (0, 1):
        draw = random.Random(number)

        def work(event: Event, factor: float = slower if number == rank else 1.0, draw: random.Random = draw) -> None:
            event["before_exchange_seconds"] = 0.4 * factor * draw.lognormvariate(0, spread)

        change_steps(run, work, rank=number)
    return run


def test_a_slow_rank_is_named_in_the_reports(run: RunPaths) -> None:
    result = collect(paced(run, 1.10))
    assert result.status.word == "valid" and result.pace is not None and result.pace.steps == 10
    (straggler,) = result.pace.stragglers
    assert (straggler.name, straggler.ranks, straggler.slowest_in) == ("rank 1", (1,), 10)
    assert straggler.excess == pytest.approx(0.10, abs=0.02)
    assert straggler.waited_seconds == pytest.approx(0.04, abs=0.01)
    waited = terminal_rows(result)["waited"]
    assert waited.startswith("rank 1 ")
    assert re.search(r"took 10\.\d.* waited 4", waited), waited
    flag, sentence = report_rows(run, result)["waiting"]
    assert flag == "flagged"
    assert sentence.startswith("rank 1 ")


def test_a_slow_node_is_named(run: RunPaths) -> None:
    result = collect(paced(spread(run), 1.12))
    assert result.pace is not None and [straggler.name for straggler in result.pace.stragglers] == ["node1"]
    assert re.match(r"node1's ranks .* 12\.\d", report_rows(run, result)["waiting"][1])


def test_noise_names_nobody_and_says_so(run: RunPaths) -> None:
    result = collect(paced(run, 1.0, spread=0.05))
    assert result.pace is not None and result.pace.stragglers == ()
    assert report_rows(run, result)["waiting"][0] == "none found"


def test_a_training_that_records_nothing_has_no_pace(run: RunPaths) -> None:
    result = collect(run)
    assert result.pace is None
    assert "waiting" not in report_rows(run, result)


@pytest.mark.parametrize("value", ["nan", "soon", None, [], -1, math.inf])
def test_a_damaged_time_ends_nothing(run: RunPaths, value: object) -> None:
    paced(run, 1.2)
    change_steps(run, lambda e: e.update(before_exchange_seconds=value) if e["step"] == 5 else None)
    result = collect(run)
    assert result.pace is not None
    assert result.pace.stragglers == (), "nine steps are too few"


def test_one_rank_without_times_leaves_the_pace_unchecked(run: RunPaths) -> None:
    paced(run, 1.2)
    change_steps(run, lambda e: e.pop("before_exchange_seconds"), rank=0)
    pace = collect(run).pace
    assert pace is not None and (pace.unchecked or "").startswith("0 steps ")
