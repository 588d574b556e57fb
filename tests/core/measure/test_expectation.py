"""Measured memory against expected: the right figure of each kind of device, its ratio, and what makes a remark."""

from __future__ import annotations

import csv
import io
import json

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.memory import MemoryPeak, MemoryPeaks, compare_with_estimate
from levelfield.report.costs import format_results
from levelfield.report.one_run import result_lines
from levelfield.report.tables import format_json
from levelfield.run.runner import finish
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import MemoryExpectation, Result
from recorded_runs import USED_BYTES, break_off, change_all_steps, change_plan, change_steps, edit, fail
from report_rows import report_rows, terminal_rows

GIB = 2**30


def measured(used: float | None = None, process: float | None = None) -> MemoryPeaks:
    """What was measured: bytes, or none with a reason."""
    used_peak, process_peak = (
        MemoryPeak(None, None, "no counter") if value is None else MemoryPeak(int(value), "0")
        for value in (used, process)
    )
    return MemoryPeaks(used_peak, MemoryPeak(None, None), MemoryPeak(None, None), process_peak)


def compared(
    memory: MemoryPeaks, kind: str = "nvidia", expected: int = GIB, missing_reason: str | None = None
) -> MemoryExpectation:
    return compare_with_estimate(expected, memory, kind == "cpu", missing_reason)


@pytest.mark.parametrize(("kind", "figure", "ratio"), [("cpu", "process peak", 1.1), ("amd", "device-used peak", 0.9)])
def test_each_kind_of_device_has_the_figure_that_the_estimate_is_of(kind: str, figure: str, ratio: float) -> None:
    finding = compared(measured(used=0.9 * GIB, process=1.1 * GIB), kind)
    assert (finding.figure, finding.remark, finding.measured.reason) == (figure, None, None)
    assert finding.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.2])
def test_what_is_within_a_fifth_needs_no_remark(ratio: float) -> None:
    assert compared(measured(used=ratio * 10**9), expected=10**9).remark is None


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (0.79, "the device-used peak is 0.79 times what was expected: the model of memory counts what is not there"),
        (1.21, "the device-used peak is 1.21 times what was expected: the model of memory lacks something"),
        (2.0, "is 2 times what was expected: the model of memory lacks something"),
        (1024, "is 1.02e+03 times what was expected: as if KiB and bytes were mixed up"),
        (1 / 1024, "as if KiB and bytes were mixed up"),
        (0.9 / 1024, "as if KiB and bytes were mixed up"),
        (1 / 2**20, "as if MiB and bytes were mixed up"),
        (1.1 * 2**20, "as if MiB and bytes were mixed up"),
        (1e-6, "as if MiB and bytes were mixed up"),
        (1 / 2**30, "as if GiB and bytes were mixed up"),
    ],
)
def test_what_is_further_off_is_remarked_on(ratio: float, words: str) -> None:
    finding = compared(measured(used=ratio * 2**40), expected=2**40)
    assert finding.remark is not None and words in finding.remark and finding.ratio == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(
    ("memory", "kind", "expected", "cause", "reason"),
    [
        (measured(process=GIB), "nvidia", GIB, None, "no counter"),
        (measured(used=GIB), "cpu", GIB, None, "no counter"),
        (measured(used=GIB), "nvidia", 0, None, "the plan expects 0 bytes"),
        (measured(used=GIB), "nvidia", GIB, "the run is oom", "the run is oom"),
    ],
)
def test_without_a_figure_there_is_no_ratio_but_a_reason(
    memory: MemoryPeaks, kind: str, expected: int, cause: str | None, reason: str
) -> None:
    finding = compared(memory, kind, expected, cause)
    assert (finding.measured.value, finding.ratio, finding.remark, finding.measured.reason) == (
        None,
        None,
        None,
        reason,
    )


# ---- of a run directory


def expectation(run: RunPaths) -> MemoryExpectation:
    finding = collect(run).memory.expectation
    assert finding is not None
    return finding


def expecting(run: RunPaths, kind: str | None = None, expected: int | None = None) -> None:
    plan = read_plan(run)
    hardware = plan.hardware.model_copy(update={"device_kind": kind or plan.hardware.device_kind})
    memory = plan.expected_memory.model_copy(update={"total_bytes": expected or plan.expected_memory.total_bytes})
    change_plan(run, hardware=hardware, expected_memory=memory)


def test_a_run_of_an_accelerator_is_held_against_what_its_tool_saw(run: RunPaths) -> None:
    expecting(run, expected=USED_BYTES)
    finding = expectation(run)
    assert (finding.figure, finding.measured.value, finding.ratio) == ("device-used peak", USED_BYTES, 1.0)


def test_a_run_on_the_host_is_held_against_its_largest_process(run: RunPaths) -> None:
    expecting(run, "cpu", GIB)
    finding = expectation(run)
    assert (finding.figure, finding.measured.value, finding.remark) == ("process peak", GIB + 1, None)


@pytest.mark.parametrize(
    ("kind", "bytes_of", "words"),
    [
        ("cpu", GIB // 1024, "as if KiB and bytes were mixed up"),
        ("cpu", 3 * GIB, "the process peak is 3 times what was expected"),
    ],
)
def test_a_counter_in_another_unit_is_seen(run: RunPaths, kind: str, bytes_of: int, words: str) -> None:
    expecting(run, kind, GIB)
    change_all_steps(run, lambda event: event["memory"].update(process_peak_bytes=bytes_of))
    result = collect(run)
    assert result.status.word == "valid"  # a remark, no failure
    assert result.memory.expectation and words in (result.memory.expectation.remark or "")


def test_a_missing_counter_is_null_with_the_reason(run: RunPaths) -> None:
    expecting(run, "cpu", GIB)
    change_steps(run, lambda event: event["memory"].pop("process_peak_bytes"))
    finding, reason = expectation(run), "the framework gave no figure for rank 1"
    assert (finding.measured.value, finding.ratio, finding.measured.reason) == (None, None, reason)
    expected, how = report_rows(run, collect(run))["memory, predicted"]
    assert expected == "1.00 GiB" and how.endswith(f": {reason}")


def test_a_device_that_its_tool_does_not_show_is_null_with_the_reason(run: RunPaths) -> None:
    edit(run.telemetry, lambda lines: [{**line, "samples": line["samples"][:1]} for line in lines])
    assert (expectation(run).measured.reason or "").endswith(" device 1")


def test_a_run_that_broke_off_is_not_compared(run: RunPaths) -> None:
    break_off(run, last_step=5)
    fail(run)
    finding = expectation(run)
    assert finding.ratio is None and "failed" in (finding.measured.reason or "")


def test_it_is_shown_wherever_results_are(run: RunPaths) -> None:
    expecting(run, "cpu", GIB // 2)
    result = collect(run)
    remark = expectation(run).remark
    assert remark is not None and "2 times" in remark
    expected, how = report_rows(run, result)["memory, predicted"]
    assert expected == "0.50 GiB"
    assert "+100 %" in how and how.endswith(f"remark: {remark}")
    line = terminal_rows(result)["memory"]
    assert [text for text in ("0.50 GiB", "1.00 GiB", "+100 %", f"remark: {remark}") if text not in line] == []
    assert all(len(line) <= 80 for text in result_lines(result) for line in text.splitlines())
    (row,) = csv.DictReader(io.StringIO(format_results("csv", [result], [None])))
    assert float(row["memory_over_expected"]) == pytest.approx(2, rel=1e-6)
    assert int(row["expected_memory_bytes"]) == GIB // 2
    assert json.dumps(remark) in format_json([result], [None])


def test_a_result_from_before_it_was_kept_can_be_read(run: RunPaths) -> None:
    finish(run)
    result = load(Result, run.result)
    memory = {k: v for k, v in result.memory.model_dump().items() if k != "expectation"}
    older = Result.model_validate(result.model_dump() | {"memory": memory})
    assert older.memory.expectation is None and load(Plan, run.plan)
    assert "predicted" in " ".join(result_lines(older))
    assert "memory, predicted" not in report_rows(run, older)
