"""What a framework's compiler took, from the events of the ranks to the result."""

from __future__ import annotations

import math

import pytest
from levelfield.judge.collector import collect
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from recorded_runs import change_steps


def test_the_rank_where_compiling_took_longest_is_reported(run: RunPaths) -> None:
    for rank, seconds in ((0, 12.0), (1, 15.0)):
        change_steps(
            run, lambda e, seconds=seconds: e.update(compile_seconds=seconds - 2 * (e["step"] == 1)), rank=rank
        )
    result = collect(run)
    assert result.compile_seconds == 15.0
    assert "| compiling took | 15.0 s |" in run_report(result, read_plan(run))


def test_a_training_that_compiles_nothing_has_no_such_time(run: RunPaths) -> None:
    result = collect(run)
    assert result.compile_seconds is None and "compiling" not in run_report(result, read_plan(run))


@pytest.mark.parametrize("value", ["nan", "soon", None, [], -1, 0, math.inf])
def test_a_damaged_time_is_none(run: RunPaths, value: object) -> None:
    for rank in (0, 1):
        change_steps(run, lambda e: e.update(compile_seconds=value), rank=rank)
    assert collect(run).compile_seconds is None
