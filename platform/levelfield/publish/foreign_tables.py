"""Measured results in the columns of other reports, with their headings, ready to paste into them.

A missing value is `/`, as in those reports. docs/published.md defines each column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from levelfield.catalog.registry import Registry
from levelfield.measure.flops import flops_per_token
from levelfield.report.result_words import find_utilisation, headline_memory, status_in_words
from levelfield.report.words import GIB
from levelfield.specs.figures import PublishedRow
from levelfield.specs.layout import Layout
from levelfield.specs.plan import MemoryExpected, Plan
from levelfield.specs.result import Result

NONE = "/"
MIB = 2**20
# FlagPerf's rule: the mean relative difference of the losses from step 21 on is below 2 %.
MAX_FLAGPERF_ERROR = 0.02
FLAGPERF_BATCH = 512  # its Llama table prints a global batch only when it is not 512


@dataclass(frozen=True)
class ExportedRun:
    """A result with its plan, to write in the columns of another report."""

    result: Result
    plan: Plan
    constants: Mapping[str, float]  # of the case's report: a rounded parameter count, another vocabulary size
    baseline: Result | None = None  # the run without sharded states

    @property
    def tokens_per_second_per_device(self) -> float | None:
        speed = self.result.throughput
        return speed.tokens_per_second_per_device if speed else None

    def samples_per_second(self, result: Result | None) -> float | None:
        """Return the samples per second of the run or of its baseline; None without a speed."""
        speed = result.throughput if result else None
        return speed.tokens_per_second / self.plan.work.training.sequence_length if speed else None


ExportColumns = Mapping[str, Callable[[ExportedRun], str]]


def exported_runs(results: Sequence[Result], plans: Sequence[Plan], registry: Registry) -> list[ExportedRun]:
    """Return each run with its report's constants at full scale. A sharded run's baseline is one of the others."""
    rows = [row for name in sorted(registry.published) for row in registry.published_set(name).rows]
    pairs = list(zip(results, plans, strict=True))
    constants = {result.case: case_constants(result.case, rows) for result in results if result.scale == "full"}
    return [
        ExportedRun(r, plan, constants[r.case] if r.scale == "full" else {}, _baseline(r, plan, pairs))
        for r, plan in pairs
    ]


def case_constants(case: str, rows: Sequence[PublishedRow]) -> dict[str, float]:
    """Return the constants in the published figures of this case."""
    cells = [figure for row in rows if row.setting.case == case for figure in row.figures.values()]
    return {name: value for figure in cells for name, value in figure.constants.items()}


def number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def strip_zeros(value: float | None, digits: int = 2) -> str:
    """Return a number without trailing zeros: 41 for 41.00."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def row_notes(runs: Sequence[ExportedRun]) -> list[str]:
    """Return the notes that belong to a pasted row: another scale, failures, and deviations from the request."""
    remarks = []
    for r in (run.result for run in runs):
        remarks += [f"{r.run_id}: smoke scale, never to be compared with a full run"] * (r.scale == "smoke")
        remarks += [f"{r.run_id}: {status_in_words(r)}"] * (status_in_words(r) != "valid")
        remarks += [f"{r.run_id}: {reason}" for reason in (*r.status.reasons, *r.deviations)]
    return remarks


def or_oom(memory: Callable[[ExportedRun], str]) -> Callable[[ExportedRun], str]:
    """Return a column of memory that says OOM of a run that had too little."""
    return lambda run: "OOM" if run.result.status.word == "oom" else memory(run)


@or_oom
def memory_over_capacity(run: ExportedRun) -> str:
    """Return used memory / capacity in GiB, such as `76/80`."""
    used, capacity = headline_memory(run.result).value, run.result.memory.capacity_bytes
    return NONE if used is None or capacity is None else f"{used / GIB:.0f}/{capacity / GIB:.0f}"


def mfu_cell(run: ExportedRun) -> str:
    """Return MFU by 6 N, with the rounded N of the case's report, if it has one."""
    figure = find_utilisation(run.result, "6n")
    if figure is None or figure.low is None or figure.high is None or not figure.flops_per_token:
        return NONE
    scale = 6 * run.constants["parameters"] / figure.flops_per_token if "parameters" in run.constants else 1.0
    low, high = f"{figure.low * scale:.1%}", f"{figure.high * scale:.1%}"
    return low if low == high else f"{low}-{high}"


def alignment_cell(run: ExportedRun) -> str:
    """Return the result of the report's own rule for losses, in its words for a baseline and for a speed alone.

    Levelfield's verdict is stricter.
    """
    alignment, error = run.result.alignment, run.result.alignment.flagperf_mean_error
    if alignment.reference and run.result.run_id in alignment.reference:
        return "True(作为基线)"
    if error is None and run.result.scale == "full" and run.plan.work.training.global_batch != FLAGPERF_BATCH:
        return f"{NONE},仅供性能参考"  # another batch has another loss
    return NONE if error is None else str(error < MAX_FLAGPERF_ERROR)


def achieved_tflops(run: ExportedRun) -> float | None:
    """Return TFLOP/s of a device by `megatron-2021`, only for runs with full recomputation, which it counts."""
    figure = find_utilisation(run.result, "megatron-2021", "HFU")
    if figure is None or not figure.flops_per_token or run.tokens_per_second_per_device is None:
        return None
    model, length = run.plan.work.model, run.plan.work.training.sequence_length
    model = model.model_copy(update={"vocab_size": int(run.constants.get("vocab_size", model.vocab_size))})
    flops = flops_per_token("megatron-2021", model, length, recompute="full")
    return flops * run.tokens_per_second_per_device / 1e12


def share_of_peak(run: ExportedRun) -> str:
    figure, achieved = find_utilisation(run.result, "megatron-2021", "HFU"), achieved_tflops(run)
    if figure is None or achieved is None or figure.peak_tflops is None:
        return NONE
    return f"{100 * achieved / figure.peak_tflops:.0f}%"


def number_with_change(value: float | None, baseline: float | None, show_difference: bool = False) -> str:
    """Return `89(↓14.4%)` or `3849(-1754,↓31.3%)`, or only the value when there is no baseline."""
    if value is None or baseline is None or baseline == 0:
        return number(value, 0)
    difference, relative_change = round(value) - round(baseline), value / baseline - 1
    arrow = f"{'↓' if relative_change < 0 else '↑'}{abs(relative_change):.1%}"
    return f"{value:.0f}({f'{difference},' if show_difference else ''}{arrow})"


def _baseline(result: Result, plan: Plan, others: Iterable[tuple[Result, Plan]]) -> Result | None:
    """Return the run of the same plan but for its optimizer states, which are not sharded, or None.

    Of repeats it is the one with the same number.
    """
    if result.layout.sharding_stage != 1 or result.status.is_unproven:
        return None
    unsharded_layout = result.layout.model_copy(update={"sharding_stage": 0, "sharding_degree": 1})
    unsharded_runs = [(r, p) for r, p in others if r.layout == unsharded_layout and not r.status.is_unproven]
    identity = _plan_identity(result, plan)
    candidates = [other for other, other_plan in unsharded_runs if _plan_identity(other, other_plan) == identity]
    return next((other for other in candidates if other.repeat == result.repeat), candidates[0] if candidates else None)


def _plan_identity(result: Result, plan: Plan) -> tuple[object, ...]:
    """Return where a run ran and the digest of its plan, without its layout and what follows from that."""
    tuning = plan.tuning.model_copy(update={"layout": Layout()})
    memory = MemoryExpected(parts={}, total_bytes=0, available_bytes=None)
    derived_fields = {"origins": {}, "predicted": (), "expected_memory": memory, "certificate": None}
    request_fields = {"entry": None, "deviations": (), "scale_reason": ""}
    r, digest = result, plan.model_copy(update={"tuning": tuning, **derived_fields, **request_fields}).repeats_digest
    return r.case, r.scale, r.framework, r.chip, r.nodes, r.devices, r.micro_batch, digest
