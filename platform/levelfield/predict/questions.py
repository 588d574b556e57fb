"""Builds the planner's questions: a case by a framework on a known chip, or on this host's processors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from levelfield.catalog.machine import usable_cores
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.predict import machines
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, SupportedParallelism, predict
from levelfield.predict.machines import MachineRates
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.host_rates import HostRates
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import HOST_KIND, Chip, PeakDtype


def chip_question(
    registry: Registry,
    framework: str,
    work: Work,
    chip: Chip,
    device_kind: str,
    nodes: int,
    devices_per_node: int,
    network_bytes_per_second: float | None,
    product_dtype: PeakDtype | None = None,
) -> LayoutQuestion:
    """Return the question for a chip. Raises UsageError when data of the chip or the framework is missing."""
    machine = machines.machine_rates(
        chip, work.training.precision, devices_per_node, network_bytes_per_second, product_dtype
    )
    return _question(registry, framework, work, machine, device_kind, nodes * devices_per_node, chip.memory_bytes)


def host_question(
    registry: Registry, framework: str, work: Work, processes: int, memory_bytes: int | None, rates: HostRates
) -> LayoutQuestion:
    """Return the question for the host with so many processes. Raises UsageError for an unmeasured division."""
    threads = max(1, usable_cores() // processes)
    share = rates.share(processes, threads)
    if share is None:
        counts = ", ".join(str(s.processes) for s in rates.shares)
        raise UsageError(f"this host was not measured as {processes} processes of {threads} thread(s); known: {counts}")
    capacity = memory_bytes // processes if memory_bytes else None
    machine = machines.host_machine(share, work.training.precision)
    return _question(registry, framework, work, machine, HOST_KIND, processes, capacity)


def _question(
    registry: Registry,
    framework: str,
    work: Work,
    machine: MachineRates,
    device_kind: str,
    devices: int,
    capacity_bytes: int | None,
) -> LayoutQuestion:
    implementation, _ = registry.implementation(framework)
    precision, offered = work.training.precision, implementation.offered_precisions(device_kind)
    if precision not in offered:
        files = {name: registry.implementation(name)[0] for name in registry.frameworks}
        others = [name for name, file in files.items() if precision in file.offered_precisions(device_kind)]
        raise UsageError(
            f"framework {implementation.framework} on {device_kind}: found precision {precision}, expected one of "
            f"{', '.join(offered) or 'none'}; {precision} is offered by {', '.join(others) or 'no framework'}"
        )
    constants = registry.planner_constants(framework)
    if constants is None:
        raise UsageError(
            f"framework {framework}: found no configs/planner/{framework}.yaml, which holds its pace; known: "
            f"{', '.join(registry.planner_constants_files)}"
        )
    offer = supported_parallelism(implementation, device_kind)
    constants = constants.for_device_kind(device_kind)
    return LayoutQuestion(work, machine, constants, offer, device_kind == HOST_KIND, devices, capacity_bytes)


def supported_parallelism(implementation: ImplementationFile, device_kind: str) -> SupportedParallelism:
    """Return what the framework supports on a device kind."""
    parallelism = frozenset(implementation.offered_parallelism(device_kind))
    return SupportedParallelism(parallelism, implementation.recompute, tuple(implementation.refusals(device_kind)))


# What a rate may be, as a share of the chip's: the least that is looked for, and the most (specs/constants.py).
MIN_EFFICIENCY, MAX_EFFICIENCY, HALVINGS = 0.02, 1.2, 50
RATE_WORDS = {
    "matmul_efficiency": "matrix products",
    "communication_efficiency": "the links of a node",
    "network_efficiency": "the network between nodes",
}


@dataclass(frozen=True)
class Calibration:
    """The rate that one measured run sets."""

    rate_name: str  # a field of Pace
    old_rate: float
    new_rate: float
    row: LayoutEstimate  # the run, as it was predicted with the old rate
    measured_speed: float  # in tokens/s of a device

    def apply_to(self, constants: Constants, on_host: bool) -> Constants:
        """Return the constants with this rate."""
        pace = constants.pace_on(on_host).model_copy(update={self.rate_name: self.new_rate})
        return constants.model_copy(update={"host_pace" if on_host and constants.host_pace else "pace": pace})


def calibrate(question: LayoutQuestion, tuning: Tuning, measured_speed: float) -> Calibration:
    """Return the one rate with which the row has its measured speed: that of products, or that of the links which the
    messages take where these are more than half of the step. Raises UsageError where none within its range does.

    One run has one speed, so it sets one rate; what else differs is in this rate too.
    """
    if not (measured_speed > 0 and math.isfinite(measured_speed)):
        raise UsageError(f"found a run of {measured_speed} tokens/s, expected a positive speed")
    row, old_pace = predict(question, tuning), question.constants.pace_on(question.on_host)
    time, rate_name = row.time, "matmul_efficiency"
    if time.tensor + time.context + time.pipeline + time.data + time.expert > time.total / 2:
        is_one_node = question.devices <= question.machine.devices_per_node
        rate_name = "communication_efficiency" if is_one_node else "network_efficiency"

    def speed(value: float) -> float:
        constants = Calibration(rate_name, 0, value, row, measured_speed).apply_to(question.constants, question.on_host)
        return predict(replace(question, constants=constants), tuning).tokens_per_second

    low, high = MIN_EFFICIENCY, MAX_EFFICIENCY
    if not speed(low) <= measured_speed <= speed(high):
        raise UsageError(
            f"found {measured_speed:,.0f} tokens/s on each device, expected {speed(low):,.0f} to {speed(high):,.0f}: "
            f"no rate of {RATE_WORDS[rate_name]} from {low:g} to {high:g} of the chip's explains the run; `report RUN` "
            "and `plan --explain` show where its time goes"
        )
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if speed(middle) < measured_speed else (low, middle)
    return Calibration(rate_name, getattr(old_pace, rate_name), high, row, measured_speed)
