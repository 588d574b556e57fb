"""What recomputation repeats: the training's report counts where it fits the plan's choice."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.judge.collector import collect, repeated
from levelfield.measure.flops import flops_per_token
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import Recompute
from recorded_runs import Event, edit


@pytest.mark.parametrize(
    ("chosen", "details", "expected"),
    [
        ("full", {"repeats": "full-except-down"}, "full-except-down"),
        ("full", {"repeats": "full"}, "full"),
        ("full", {}, "full"),
        ("full", None, "full"),
        ("full", [1], "full"),
        ("full", {"repeats": ["full-except-down"]}, "full"),
        ("full", {"repeats": "none"}, "full"),
        ("selective", {"repeats": "selective-attention"}, "selective-attention"),
        ("selective", {"repeats": "full"}, "selective"),
        ("none", {"repeats": "full"}, "none"),  # a report that would raise HFU
    ],
)
def test_a_report_counts_where_it_fits_the_choice(chosen: Recompute, details: Any, expected: str) -> None:
    assert repeated(chosen, {"details": details}) == expected


def test_without_the_event_the_choice_counts() -> None:
    assert repeated("full", None) == "full"


def recompute_fully(run: RunPaths, kind: str | None, layers: int | None = None) -> Plan:
    """Let the recorded run have recomputed fully, or so many layers; rank 0 reports `kind`."""

    def report(events: list[Event]) -> list[Event]:
        return [{**e, "details": {"repeats": kind}} if e["event"] == "framework" else e for e in events]

    plan = read_plan(run)
    chosen = {"recompute": "full", "recompute_layers": layers}
    plan = plan.model_copy(update={"tuning": plan.tuning.model_copy(update=chosen)})
    run.plan.write_text(dump(plan))
    edit(run.events / "rank0.jsonl", report)
    return plan


def test_hfu_counts_the_layers_that_were_repeated(run: RunPaths) -> None:
    layers = read_plan(run).work.model.layers
    plan = recompute_fully(run, None, layers - 1)
    result = collect(run)
    assert (result.recompute, result.recompute_layers, result.recomputation) == (
        "full",
        layers - 1,
        f"full {layers - 1}",
    )
    found = {u.formula: u for u in result.utilisation if u.kind == "HFU"}
    length = plan.work.training.sequence_length
    none, full = (flops_per_token("palm", plan.work.model, length, recompute=how) for how in ("none", "full"))
    expected = none + (full - none) * (layers - 1) / layers
    assert found["palm/1"].flops_per_token == pytest.approx(expected, rel=1e-12) and full > expected > none
    assert f"this run recomputes {layers - 1}" in str(found["megatron-2021/1"].reason)
    assert f"recomputation full {layers - 1}" in run_report(result, plan)


@pytest.mark.parametrize(("kind", "counted"), [("full-except-down", "full-except-down"), (None, "full")])
def test_hfu_counts_what_was_repeated(run: RunPaths, kind: str | None, counted: Any) -> None:
    plan = recompute_fully(run, kind)
    result = collect(run)
    assert (result.recompute, result.repeated) == ("full", counted)
    hfu = next(u for u in result.utilisation if (u.kind, u.formula) == ("HFU", "palm/1"))
    length = plan.work.training.sequence_length
    assert hfu.flops_per_token == flops_per_token("palm", plan.work.model, length, recompute=counted)
    assert ("recomputation full (full-except-down)" in run_report(result, plan)) is (kind is not None)
