"""The planner's best layouts on this machine, and runs of them, each with its prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.plan.request import Entry, UserRequest
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion
from levelfield.predict.questions import question_on_chip, question_on_host
from levelfield.report.words import worst_memory
from levelfield.run import measurement
from levelfield.specs.case import Scale, Work
from levelfield.specs.result import Result
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import TuningChoice


@dataclass(frozen=True)
class PredictedRun:
    """A row of the plan and the result of its run. result: None without a run."""

    row: LayoutEstimate
    result: Result | None = None

    @property
    def measured_rate(self) -> float | None:
        """Return tokens/s per device."""
        throughput = self.result.throughput if self.result else None
        return throughput.tokens_per_second_per_device if throughput else None

    @property
    def measured_memory(self) -> float | None:
        """Return the memory of the fullest device, in bytes."""
        return worst_memory(self.result)[1] if self.result else None


def entries_of(
    rows: Sequence[LayoutEstimate], selector: Selector, vendor: str, devices: int, request: UserRequest, scale: Scale
) -> list[Entry]:
    """Return one entry of work for each row, on `devices` devices."""
    framework = f"{selector.framework}_{selector.version}" if selector.version else selector.framework
    text = f"{selector.case}:{framework}:{selector.target or vendor}:1:{devices}"
    return [Entry(text, replace(request, scale=scale, choice=_choice(row))) for row in rows]


def _choice(row: LayoutEstimate) -> TuningChoice:
    return TuningChoice(
        layout=str(row.layout),
        micro_batch=row.tuning.micro_batch,
        recompute=row.tuning.recompute,
        virtual_pipeline=row.tuning.virtual_pipeline,
    )


def distinct(rows: Sequence[LayoutEstimate]) -> list[LayoutEstimate]:
    """Return the first row of each group with equal predicted time and memory."""
    groups: dict[tuple[float, int], LayoutEstimate] = {}
    for row in rows:
        groups.setdefault((row.time.total, row.memory.total), row)
    return list(groups.values())


def question_here(
    registry: Registry, found: Selection, work: Work, devices: int, say: Callable[[str], None]
) -> LayoutQuestion:
    """Return the question about the devices here. A host is measured once; later questions use the stored rates."""
    memory = found.devices[0].memory_bytes if found.devices else None
    if not found.vendor.is_host:
        return question_on_chip(
            registry, found.implementation.framework, work, found.chip, found.vendor.device_kind, 1, devices, None
        )
    rates = measurement.known_host_rates(registry) or measurement.measure_host_rates(registry, say)
    return question_on_host(registry, found.implementation.framework, work, devices, memory, rates)
