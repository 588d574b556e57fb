"""Which kernel computed attention, and which library fp8: what the ranks reported, or why that says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.judge.collector import attention_kernel, collect, fp8_library
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import FP8_LIBRARIES, KERNELS
from recorded_runs import Event, edit


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_known_kernel_is_named(kernel: str) -> None:
    found = attention_kernel({rank: {"details": {"attention_kernel": kernel}} for rank in range(2)})
    assert found is not None and (found.name, found.reason) == (kernel, None)


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        (["warp"], "the training reported 'warp', expected one of flash, cudnn, "),
        (["Flash"], "the training reported 'Flash', expected one of "),
        ([["flash"]], "the training reported ['flash'], expected one of "),
        ([1], "the training reported 1, expected one of "),
        (["x" * 400], "the training reported 'xxx"),
        (["flash", "cudnn", "flash"], "the ranks reported different kernels: 'flash' by rank 0, 'cudnn' by rank 1"),
        (["flash", None], "the ranks reported different kernels: 'flash' by rank 0, none by rank 1"),
    ],
)
def test_what_names_no_kernel_has_its_reason(reported: list[Any], reason: str) -> None:
    found = attention_kernel({rank: {"details": {"attention_kernel": each}} for rank, each in enumerate(reported)})
    assert found is not None and found.name is None and found.reason is not None
    assert found.reason.startswith(reason) and len(found.reason) < 200


def test_the_library_of_fp8_is_named_in_the_same_way() -> None:
    def found(*names: Any) -> Any:
        return fp8_library({rank: {"details": {"fp8_library": name}} for rank, name in enumerate(names)})

    assert [found(name, name).name for name in FP8_LIBRARIES] == list(FP8_LIBRARIES)
    assert found("torchao", "transformer_engine").reason.startswith("the ranks reported different libraries: 'torchao'")
    assert found("warp").reason.endswith("expected one of transformer_engine, torchao, rounded") and found(None) is None


@pytest.mark.parametrize("events", [[], [{}], [{"details": None}], [{"details": ["cudnn"]}], [{"details": {}}] * 2])
def test_a_training_that_reports_none_has_none(events: list[Event]) -> None:
    assert attention_kernel(dict(enumerate(events))) is None


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [("cudnn", "cudnn"), ("warp", f"-: the training reported 'warp', expected one of {', '.join(KERNELS)}")],
)
def test_result_and_report_name_the_kernel(run: RunPaths, kernel: str, shown: str) -> None:
    def report(events: list[Event]) -> list[Event]:
        return [{**e, "details": {"attention_kernel": kernel}} if e["event"] == "framework" else e for e in events]

    for path in run.events.glob("rank*.jsonl"):
        edit(path, report)
    result = collect(run)
    assert result.attention_kernel is not None and result.attention_kernel.name == (
        kernel if kernel in KERNELS else None
    )
    assert f"| attention kernel | {shown} |" in run_report(result, read_plan(run))


def test_an_earlier_run_has_no_line(run: RunPaths) -> None:
    result = collect(run)
    assert result.attention_kernel is None
    assert "attention kernel" not in run_report(result, read_plan(run))
