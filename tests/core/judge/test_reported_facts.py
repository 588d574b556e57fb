"""What ranks report about how they computed: kernels, libraries, recomputation and the time of compiling."""

from __future__ import annotations

import math
from typing import Any

import pytest
from levelfield.judge.collector import attention_kernel, collect, fp8_library, fused_kernels, recomputation_kind
from levelfield.measure.flops import flops_per_token
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import ATTENTION_KERNELS, FP8_LIBRARIES, FUSED_KERNELS
from levelfield.specs.tuning import Recompute
from recorded_runs import Event, change_all_steps, change_plan, change_steps, report_framework
from report_rows import report_rows

# ---- attention's kernel and the library of fp8


@pytest.mark.parametrize("kernel", ATTENTION_KERNELS)
def test_a_known_kernel_is_named(kernel: str) -> None:
    report = attention_kernel({rank: {"details": {"attention_kernel": kernel}} for rank in range(2)})
    assert report is not None and (report.name, report.reason) == (kernel, None)


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
    report = attention_kernel({rank: {"details": {"attention_kernel": name}} for rank, name in enumerate(reported)})
    assert report is not None and report.name is None and report.reason is not None
    assert report.reason.startswith(reason) and len(report.reason) < 200


def test_the_library_of_fp8_is_named_in_the_same_way() -> None:
    def report(*names: str | None) -> tuple[str | None, str]:
        library = fp8_library({rank: {"details": {"fp8_library": name}} for rank, name in enumerate(names)})
        return (library.name, library.reason or "") if library else (None, "none")

    assert [report(name, name) for name in FP8_LIBRARIES] == [(name, "") for name in FP8_LIBRARIES]
    name, reason = report("torchao", "transformer_engine")
    assert name is None
    assert reason.endswith("libraries: 'torchao' by rank 0, 'transformer_engine' by rank 1")
    assert report("warp")[1].endswith(f"one of {', '.join(FP8_LIBRARIES)}")
    assert report(None) == (None, "none")


@pytest.mark.parametrize("events", [[], [{}], [{"details": None}], [{"details": ["cudnn"]}], [{"details": {}}] * 2])
def test_a_training_that_reports_none_has_none(events: list[Event]) -> None:
    assert attention_kernel(dict(enumerate(events))) is None and fused_kernels(dict(enumerate(events))) is None


@pytest.mark.parametrize(
    ("kernel", "cell"),
    [("cudnn", "cudnn"), ("warp", f"-: the training reported 'warp', expected one of {', '.join(ATTENTION_KERNELS)}")],
)
def test_result_and_report_name_the_kernel(run: RunPaths, kernel: str, cell: str) -> None:
    report_framework(run, details={"attention_kernel": kernel})
    result = collect(run)
    assert result.attention_kernel and result.attention_kernel.name == (kernel if kernel in ATTENTION_KERNELS else None)
    assert report_rows(run, result)["attention kernel"] == [cell]


def test_an_earlier_run_has_no_line(run: RunPaths) -> None:
    result = collect(run)
    assert result.attention_kernel is None
    assert "attention kernel" not in report_rows(run, result)


# ---- fused kernels


def listing(*lists: Any) -> dict[int, Event]:
    return {rank: {"details": {"kernels": names}} for rank, names in enumerate(lists)}


@pytest.mark.parametrize("names", [[], ["cross_entropy"], list(FUSED_KERNELS)])
def test_fused_kernels_that_all_ranks_list_are_in_the_result(names: list[str]) -> None:
    assert fused_kernels(listing(names, names)) == tuple(names)


@pytest.mark.parametrize(
    "lists",
    [
        (None,), ("rotary",), ({"rotary": 1},), (["warp"],), (["rotary", "warp"],), (["rotary", "rotary"],), ([1],),
        ([["rotary"]],), (["rotary"], []), (["rotary"], None), (["rotary"], ["swiglu"]),
    ],
)  # fmt: skip
def test_any_other_list_is_null(lists: tuple[Any, ...]) -> None:
    assert fused_kernels(listing(*lists)) is None


@pytest.mark.parametrize("names", [["cross_entropy", "rotary"], []])
def test_result_and_report_list_the_fused_kernels(run: RunPaths, names: list[str]) -> None:
    report_framework(run, details={"kernels": names})
    result = collect(run)
    assert result.kernels == tuple(names)
    assert report_rows(run, result).get("fused kernels", [""]) == [", ".join(names)]


# ---- recomputation


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
    assert recomputation_kind(chosen, {"details": details}) == expected


def test_without_the_event_the_choice_counts() -> None:
    assert recomputation_kind("full", None) == "full"


def recompute_fully(run: RunPaths, kind: str | None, layers: int | None = None) -> Plan:
    """Let the recorded run have recomputed fully, or so many layers; rank 0 reports `kind`."""
    report_framework(run, 0, details={"repeats": kind})
    chosen = {"recompute": "full", "recompute_layers": layers}
    return change_plan(run, tuning=read_plan(run).tuning.model_copy(update=chosen))


def test_hfu_counts_the_layers_that_were_repeated(run: RunPaths) -> None:
    layers = read_plan(run).work.model.layers
    plan = recompute_fully(run, None, layers - 1)
    result = collect(run)
    assert (result.recompute_layers, result.recomputation) == (layers - 1, f"full {layers - 1}")
    hfu = {u.formula: u for u in result.utilisation if u.kind == "HFU"}
    length = plan.work.training.sequence_length
    none, full = (flops_per_token("palm", plan.work.model, length, recompute=how) for how in ("none", "full"))
    expected = none + (full - none) * (layers - 1) / layers
    assert hfu["palm/1"].flops_per_token == pytest.approx(expected, rel=1e-12) and full > expected > none
    assert f"recomputes {layers - 1}" in str(hfu["megatron-2021/1"].reason)
    assert report_rows(run, result)["layout"][0].endswith(f", recomputation full {layers - 1}")


@pytest.mark.parametrize(("kind", "counted"), [("full-except-down", "full-except-down"), (None, "full")])
def test_hfu_counts_what_was_repeated(run: RunPaths, kind: str | None, counted: Any) -> None:
    plan = recompute_fully(run, kind)
    result = collect(run)
    assert (result.recompute, result.repeated) == ("full", counted)
    hfu = next(u for u in result.utilisation if (u.kind, u.formula) == ("HFU", "palm/1"))
    length = plan.work.training.sequence_length
    assert hfu.flops_per_token == flops_per_token("palm", plan.work.model, length, recompute=counted)
    assert ("(full-except-down)" in report_rows(run, result)["layout"][0]) is (kind is not None)


# ---- compiling


def test_the_rank_where_compiling_took_longest_is_reported(run: RunPaths) -> None:
    change_steps(run, lambda event: event.update(compile_seconds=12.0), rank=0)
    change_steps(run, lambda event: event.update(compile_seconds=15.0 - 2 * (event["step"] == 1)))
    result = collect(run)
    assert result.compile_seconds == 15.0
    assert report_rows(run, result)["compiling took"][0] == "15.0 s"


def test_a_training_that_compiles_nothing_has_no_such_time(run: RunPaths) -> None:
    result = collect(run)
    assert result.compile_seconds is None
    assert "compiling took" not in report_rows(run, result)


@pytest.mark.parametrize("value", ["nan", "soon", None, [], -1, 0, math.inf])
def test_a_damaged_time_of_compiling_is_none(run: RunPaths, value: object) -> None:
    change_all_steps(run, lambda event: event.update(compile_seconds=value))
    assert collect(run).compile_seconds is None
