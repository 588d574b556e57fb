"""Whether a valid run did the work that its figures state: `invalid (implausible)` where it cannot have.

Each rule returns a sentence with what was found, what is expected at least, and why; None where the run has enough, or
where a fact is not known. Limits lie far below what any real training showed (docs/decisions/least-work.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from levelfield.measure.flops import FormulaError, flops_per_token
from levelfield.measure.other_use import busy_seconds, in_use
from levelfield.measure.readings import coverage, too_little
from levelfield.rundir.node_parts import NodePart
from levelfield.specs.plan import Plan
from levelfield.specs.result import IMPLAUSIBLE, Energy, Memory, Status, Throughput

_STATES = ("weights", "gradients", "optimizer_states")
# Of weights, gradients and optimizer states: all exist at once at the update. The least of 30 rehearsals is 1.07.
STATES_PART = 0.5
# Of the processor time that the products take at the measured peak: a probe may have been disturbed, and two threads of
# one core share its rate.
PROCESSOR_PART = 1 / 8
# Of the power before the training, and from which part of the peak on a device has to be above it.
IDLE_FACTOR, BUSY_PART = 1.1, 0.1


def unless_implausible(
    status: Status,
    plan: Plan,
    parts: Sequence[NodePart],
    throughput: Throughput | None,
    memory: Memory,
    energy: Energy,
) -> Status:
    """Return the status; `invalid` in place of `valid` for a run that has less than its training needs at least."""
    if status.word != "valid":
        return status
    reasons = [*_memory(plan, memory), *(_work(plan, parts, throughput, energy) if throughput else ())]
    if not reasons:
        return status
    return Status(word="invalid", failure=IMPLAUSIBLE, reasons=tuple(f"{IMPLAUSIBLE}: {each}" for each in reasons))


def _memory(plan: Plan, memory: Memory) -> Iterator[str]:
    """Hold each known figure against the states of the rank that needs most, as the planner counts them."""
    states = sum(plan.expected_memory.parts.get(name, 0) for name in _STATES)
    on_device = {
        "device-used peak": memory.device_used_peak.value,
        "allocated peak": memory.allocated_peak.value,
        "reserved peak": memory.reserved_peak.value,
    }
    figures = {"process peak": memory.process_peak.value} if plan.hardware.is_host else on_device
    if reason := memory_reason(figures, states):
        yield f"memory: {reason}"


def _work(plan: Plan, parts: Sequence[NodePart], throughput: Throughput, energy: Energy) -> Iterator[str]:
    training = plan.work.training
    try:
        flops = flops_per_token("megatron", plan.work.model, training.sequence_length) * training.tokens_per_step
    except FormulaError:
        return
    window = plan.work.window
    steps = window.last_step - window.first_step + 1
    seconds, each = throughput.wall_seconds / steps, flops / plan.world_size
    maker = plan.hardware.chip.peaks.get(training.precision)  # what it publishes for these products; fp8: that of fp8
    published = (maker.tflops, maker.source) if maker else None
    if published is not None and (reason := time_reason(seconds, each, *published)):
        yield f"time: {reason}"
    if plan.hardware.is_host:
        yield from _processors(plan, parts, flops * steps)
        return
    peak = published[0] if published else plan.peak.tflops
    idle = _idle_watts(parts)
    if peak is not None and idle is not None and energy.mean_watts.value is not None:
        part = each / seconds / (peak * 1e12)
        if reason := energy_reason(energy.mean_watts.value, idle, part, 1 / seconds):
            yield f"energy: {reason}"


def _processors(plan: Plan, parts: Sequence[NodePart], flops: float) -> Iterator[str]:
    """Hold each machine's processor time against its ranks' products. A published peak of a host's share is none."""
    if plan.peak.tflops is None:
        return
    for part in parts:
        window_ns, host = part.window_ns(plan.work.window), part.read.host
        if window_ns is None or not host or any(reading.own_seconds is None for reading in host):
            continue  # in a container the cores of the training are not those of the readings
        if too_little(coverage(sorted(reading.time_ns for reading in host), *window_ns)):
            continue
        core = plan.peak.tflops * len(part.ranks) / host[-1].cores
        reason = processor_reason(busy_seconds(host, *window_ns), flops * len(part.ranks) / plan.world_size, core)
        if reason:
            yield f"processors: {part.said(reason)}"


def _idle_watts(parts: Sequence[NodePart]) -> float | None:
    """Return the power of all devices before the training; None where one's is not known, or it may not be idle."""
    found: list[float] = []
    for part in parts:
        before = {reading.device: reading for reading in part.read.readings if reading.before}
        for index in part.indices:
            reading = before.get(index)
            if reading is None or reading.power_watts is None or in_use(None, None, reading.utilisation) is not False:
                return None
            found.append(reading.power_watts)
    return math.fsum(found) if found and min(found) > 0 else None


def memory_reason(figures: Mapping[str, float | None], states: int) -> str | None:
    """Return why the memory does not hold the states. figures: bytes of the fullest rank or device, by name."""
    least = STATES_PART * states
    low = {name: found for name, found in figures.items() if found is not None and not found >= least}
    if not low:
        return None
    name, found = min(low.items(), key=lambda item: item[1])
    return (
        f"the {name} is {found:,.0f} bytes, expected at least {least:,.0f}: {STATES_PART:.0%} of the {states:,} "
        "bytes of weights, gradients and optimizer states on a rank"
    )


def time_reason(step_seconds: float, flops: float, peak_tflops: float, source: str) -> str | None:
    """Return why a step is too short. flops: of the products of a step on one device; peak: a published one."""
    least = flops / (peak_tflops * 1e12)
    if step_seconds >= least:
        return None
    return (
        f"a step lasted {step_seconds:.4g} s, expected at least {least:.4g} s: {flops:.4g} FLOPs of matrix products on "
        f"each device, at its peak of {peak_tflops:g} TFLOP/s ({source})"
    )


def processor_reason(busy_seconds: float, flops: float, core_tflops: float) -> str | None:
    """Return why the host's processors did too little in the window. busy_seconds: of all programs on its cores.

    flops: of the products of this machine's ranks in the window. core_tflops: the measured peak over the cores.
    """
    least = PROCESSOR_PART * flops / (core_tflops * 1e12)
    if busy_seconds >= least:
        return None
    return (
        f"all programs used {busy_seconds:.3g} s of the processors in the window, expected at least {least:.3g} s: an "
        f"eighth of what {flops:.4g} FLOPs of matrix products take at the measured peak, {core_tflops:.3g} TFLOP/s a "
        "core"
    )


def energy_reason(watts: float, idle_watts: float, peak_part: float, steps_per_second: float) -> str | None:
    """Return why the devices were idle. watts, idle_watts: of all, in the window and before the training."""
    least = IDLE_FACTOR * idle_watts
    if not peak_part >= BUSY_PART or watts >= least:
        return None
    joules, expected = watts / steps_per_second, least / steps_per_second
    return (
        f"a step took {joules:.4g} J ({watts:.4g} W), expected at least {expected:.4g} J: {IDLE_FACTOR:g} times the "
        f"{idle_watts:.4g} W before the training, as its products need {peak_part:.1%} of the peak"
    )
