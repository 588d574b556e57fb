"""A rehearsal in lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from levelfield.specs.tuning import recomputation

GIB = 2**30
ENGINES = "transformer-engine's cudnn"  # how the stand-in counts its kernels (standin/attention.c)


def gib(size: float | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"


def lines_of(entry: dict[str, Any], planned: int | None, reports: list[dict[str, Any]]) -> list[str]:
    """The table of memory and the last step's work of each rank."""
    tuning = entry["plan"]["tuning"]
    layout = ", ".join(f"{key} {value}" for key, value in tuning["layout"].items() if value not in (1, False))
    again = recomputation(tuning["recompute"], tuning.get("recompute_layers"))
    head = [
        f"{entry['plan']['asked']}, pretended devices",
        f"  {layout or 'one device'}; micro-batch {tuning['micro_batch']}, recompute {again}",
        f"  planned without the reserve: {gib(planned)} GiB",
    ]
    return head + [line for report in reports for line in rank_lines(report)]


def rank_lines(report: dict[str, Any]) -> list[str]:
    if report.get("error") or report["exit_code"]:
        return failure_lines(report)
    mode = "alone" if report["alone"] else "with all others"
    compiled = report.get("compiled_steps")
    choices = ", ".join(attention_names(report))
    choices = choices or ("see the kernels below" if compiled else "none fused")
    lines = [f"rank {report['rank']} of {report['world']}, {mode}; attention: {choices}"]
    lines += [f"  layers: {report['layers']}"] if report.get("layers") else []
    lines += [line for step in report["steps"] for line in step_lines(step)]
    return [*lines, *compile_lines(compiled or []), *work_lines(report["steps"][-1])]


def compile_lines(steps: list[dict[str, Any]]) -> list[str]:
    """What torch.compile did in each step that compiled something."""
    lines = []
    for step in steps:
        breaks = step["graph_breaks"]
        if step["graphs"] or breaks:
            lines.append(
                f"  step {step['step']}: {step['graphs']} graphs compiled, {sum(breaks.values())} graph breaks"
            )
        lines += [f"    {many} x {reason}"[:80] for reason, many in breaks.items()]
    return lines


def attention_names(report: dict[str, Any]) -> list[str]:
    """The kernels that the framework would take on the device: torch's choices, and transformer-engine's."""
    counted = [name for step in report["steps"] for name in step["attention_kernels"]]
    engine = [ENGINES] if any(name.startswith(ENGINES) for name in counted) else []
    return sorted({*report["attention_choices"].values(), *engine})


def cause(report: dict[str, Any]) -> str:
    """Why a rank failed: a full device where it printed that, as pipelining's own error does not name it."""
    printed = (report.get("printed") or "").splitlines()
    full = next((line.strip() for line in printed if "CUDA out of memory" in line), None)
    return full or report.get("error") or f"ended with code {report['exit_code']}"


def failure_lines(report: dict[str, Any]) -> list[str]:
    reason = cause(report)
    printed = [line for line in (report.get("printed") or "").splitlines() if line.strip()]
    last_lines = [line for line in printed if line.startswith(("stand-in", "  rank"))] or printed[-3:]
    return [f"rank {report['rank']}: {reason}"[:400], *(f"  {line}"[:400] for line in last_lines)]


def step_lines(step: dict[str, Any]) -> list[str]:
    return [
        f"  step {step['step']}: allocated {gib(step['allocated_peak_bytes'])}, "
        f"reserved {gib(step['reserved_peak_bytes'])} GiB; "
        f"{step['failed_allocations']} failed, {step['allocator_retries']} flushes"
    ]


def work_lines(step: dict[str, Any]) -> list[str]:
    waits = ", ".join(f"{name} {many}" for name, many in sorted(step["synchronisations"].items())) or "none"
    back = step["copies"].get("device to host", {"count": 0})
    lines = [
        f"  products {step['product_flops']:.4g} FLOPs; kernels {step['kernels']}, {step['kernels_a_layer']} a layer",
        f"  synchronisations: {waits}; copies to the host: {back['count']}",
    ]
    for name, row in step["collectives"].items():
        lines.append(f"  {name:<26} {row['count']:>7} x {gib(row['bytes']):>10} GiB")
    return lines + [f"  {many} x {name[:60]}" for name, many in step["attention_kernels"].items()]


def finding_lines(findings: list[str]) -> list[str]:
    """What rehearsal/judgement.py found."""
    return [line for finding in findings for line in textwrap.wrap(f"FINDING: {finding}", 80, subsequent_indent="  ")]


def launch_lines(reports: list[dict[str, Any]]) -> Iterator[str]:
    """How many launches of the recorded step each part has, of each rank."""
    for report in reports:
        if launches := report.get("launches"):
            every, no_part = sum(launches.values()), launches.get("unexplained", 0)
            yield f"rank {report['rank']}: {every} launches of one step; unexplained {no_part / every:.2%}"
            yield from (f"  {many:>7} {part}" for part, many in sorted(launches.items(), key=lambda item: -item[1]))
        elif "launches" in report:
            yield f"rank {report['rank']}: no step was recorded"
