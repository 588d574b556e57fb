"""Runs that vary one case: the planner's best layouts on this machine, and the same work with other arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.plan.request import Entry, UserRequest
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion
from levelfield.predict.questions import chip_question, host_question
from levelfield.report.result_words import first_known_memory
from levelfield.run import measurement
from levelfield.specs.case import Scale, Work
from levelfield.specs.host_rates import HostRates
from levelfield.specs.implementation import refused_choices
from levelfield.specs.layout import parse_layout
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.selector import Selector, versioned_framework
from levelfield.specs.tuning import TuningChoice

# By the parallelism that an implementation must offer: a layout with it over two processes.
TWO_PROCESS_LAYOUTS = {"data": "DP2", "tensor": "TP2", "pipeline": "PP2", "zero1": "DP2SH1SP2"}


@dataclass(frozen=True)
class PredictedRun:
    """A row of the plan and the result of its run; None without a run, or where it measured nothing."""

    row: LayoutEstimate
    result: Result | None
    measured_rate: float | None  # tokens/s per device
    rate_difference: float | None  # prediction / measurement - 1
    measured_memory: float | None  # of the fullest device, in bytes


def predicted_run(row: LayoutEstimate, result: Result | None = None) -> PredictedRun:
    """Return the row with what its run measured."""
    throughput = result.throughput if result else None
    rate = throughput.tokens_per_second_per_device if throughput else None
    difference = row.tokens_per_second / rate - 1 if rate else None
    return PredictedRun(row, result, rate, difference, first_known_memory(result)[1] if result else None)


def row_entries(
    rows: Sequence[LayoutEstimate], selector: Selector, vendor: str, devices: int, request: UserRequest, scale: Scale
) -> list[Entry]:
    """Return one entry of work for each row, on `devices` devices."""
    framework = versioned_framework(selector.framework, selector.version)
    text = f"{selector.case}:{framework}:{selector.target or vendor}:1:{devices}"
    names, entries = ("micro_batch", "recompute", "recompute_layers", "virtual_pipeline"), []
    for row in rows:
        choice = TuningChoice(layout=str(row.layout), **{name: getattr(row.tuning, name) for name in names})
        entries.append(Entry(text, replace(request, scale=scale, choice=choice)))
    return entries


def distinct_rows(rows: Sequence[LayoutEstimate]) -> list[LayoutEstimate]:
    """Return the first row of each group with equal predicted time and memory."""
    groups: dict[tuple[float, int], LayoutEstimate] = {}
    for row in rows:
        groups.setdefault((row.time.total, row.memory.total), row)
    return list(groups.values())


def host_rates(registry: Registry, say: Callable[[str], None]) -> HostRates:
    """Return the rates of this host. They are measured once; later calls return the stored ones."""
    return measurement.load_host_rates(registry) or measurement.measure_host_rates(registry, say)


def local_question(
    registry: Registry, selection: Selection, work: Work, devices: int, rates: HostRates | None
) -> LayoutQuestion:
    """Return the question about devices of this machine. rates: those of a host; None for any other chip."""
    framework, vendor = selection.implementation.framework, selection.vendor
    if rates is None:
        return chip_question(registry, framework, work, selection.chip, vendor.device_kind, 1, devices, None)
    memory = selection.devices[0].memory_bytes if selection.devices else None
    return host_question(registry, framework, work, devices, memory, rates)


def variation_entries(registry: Registry, plan: Plan) -> list[Entry]:
    """Return entries of the same work: one thread, other micro-batches, each layout over two processes."""
    framework, vendor = plan.implementation.label, plan.hardware.vendor
    single_process, two_processes = (f"{plan.case}:{framework}:{vendor}:1:{devices}" for devices in (1, 2))
    choices = [(single_process, TuningChoice(threads=1))]
    # Half the micro-batch, and a larger one, as far as the same global batch divides into them. At smoke scale the
    # larger one is all sequences of a step at once: in 16 bits the difference grows with the factor, so it covers the
    # sizes between. At full scale it is twice the micro-batch, for which memory more often has room.
    micro_batch = plan.tuning.micro_batch
    if micro_batch % 2 == 0:
        choices.append((single_process, TuningChoice(micro_batch=micro_batch // 2)))
    if plan.accumulation % 2 == 0:
        larger = micro_batch * (plan.accumulation if plan.scale == "smoke" else 2)
        choices.append((single_process, TuningChoice(micro_batch=larger)))
    # The layouts that the framework offers for this work, such as none in tensor parallel for fp8.
    implementation, kind = registry.implementation_of_label(framework)[0], plan.hardware.device_kind
    offered, refusals = implementation.parallelism.get(kind, ()), implementation.refusals(kind)
    for key, text in TWO_PROCESS_LAYOUTS.items():
        tuning = plan.tuning.model_copy(update={"layout": parse_layout(text).layout})
        if key in offered and not refused_choices(refusals, plan.work, tuning):
            choices.append((two_processes, TuningChoice(layout=text, threads=1)))
    return [Entry(text, UserRequest(plan.scale, choice)) for text, choice in choices]
