"""Which of the implementation's own kernels computed: what all ranks list, or null."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.judge.collector import collect, fused_kernels
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import FUSED_KERNELS
from recorded_runs import Event, edit


def events(*lists: Any) -> dict[int, Event]:
    return {rank: {"details": {"kernels": names}} for rank, names in enumerate(lists)}


@pytest.mark.parametrize("names", [[], ["cross_entropy"], list(FUSED_KERNELS)])
def test_what_all_ranks_list_is_in_the_result(names: list[str]) -> None:
    assert fused_kernels(events(names, names)) == tuple(names)


@pytest.mark.parametrize(
    "lists",
    [
        (None,),
        ("rotary",),
        ({"rotary": 1},),
        (["warp"],),
        (["rotary", "warp"],),
        (["rotary", "rotary"],),
        ([1],),
        ([["rotary"]],),
        (["rotary"], []),
        (["rotary"], None),
        (["rotary"], ["swiglu"]),
    ],
)
def test_anything_else_is_null(lists: tuple[Any, ...]) -> None:
    assert fused_kernels(events(*lists)) is None


@pytest.mark.parametrize("frameworks", [{}, {0: {}}, {0: {"details": None}}, {0: {"details": {}}, 1: {"details": {}}}])
def test_a_training_that_reports_none_has_null(frameworks: dict[int, Event]) -> None:
    assert fused_kernels(frameworks) is None


@pytest.mark.parametrize("names", [["cross_entropy", "rotary"], []])
def test_result_and_report_list_them(run: RunPaths, names: list[str]) -> None:
    def report(events: list[Event]) -> list[Event]:
        return [{**e, "details": {"kernels": names}} if e["event"] == "framework" else e for e in events]

    for path in run.events.glob("rank*.jsonl"):
        edit(path, report)
    result = collect(run)
    assert result.kernels == tuple(names)
    line = "| fused kernels | cross_entropy, rotary |"
    assert (line in run_report(result, read_plan(run))) == bool(names)
    assert bool(names) or "fused kernels" not in run_report(result, read_plan(run))
