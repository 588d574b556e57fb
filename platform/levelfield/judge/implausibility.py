"""Whether a valid run did the work that its figures state: `invalid (implausible)` where it cannot have.

Each rule returns a sentence with what was found, what is expected at least, and why; None where the run has enough, or
where a fact is not known. Limits lie far below what any real training showed (docs/decisions/least-work.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from levelfield.measure.device_use import in_use
from levelfield.measure.flops import FormulaError, flops_per_token
from levelfield.measure.memory import ALLOCATED, PROCESS, RESERVED, used_peaks
from levelfield.measure.other_use import used_seconds
from levelfield.measure.raw_facts import by_rank, too_little
from levelfield.measure.utilisation import chip_limit, core_limit
from levelfield.rundir.node_parts import NodePart
from levelfield.specs.plan import Plan
from levelfield.specs.result import IMPLAUSIBLE, Energy, Memory, Status, Throughput

_STATES = ("weights", "gradients", "optimizer_states")
_REPORTED = {"allocated peak": ALLOCATED, "reserved peak": RESERVED, "process peak": PROCESS}
# Of weights, gradients and optimizer states: all exist at once at the update. The least of 30 rehearsals is 1.07.
STATES_PART = 0.5
# Of the processor time that the products take at the peak: a probe may have been disturbed, and two threads of one core
# share its rate.
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
    reasons = [*_memory(plan, parts, memory), *(_work(plan, parts, throughput, energy) if throughput else ())]
    if not reasons:
        return status
    return Status(word="invalid", failure=IMPLAUSIBLE, reasons=tuple(f"{IMPLAUSIBLE}: {reason}" for reason in reasons))


def _memory(plan: Plan, parts: Sequence[NodePart], memory: Memory) -> Iterator[str]:
    """Hold each known figure against the states of the rank that needs most, as the planner counts them."""
    states = sum(plan.expected_memory.parts.get(name, 0) for name in _STATES)
    ranks, on_host = by_rank([record for part in parts for record in part.steps]), plan.hardware.is_host
    peaks, figures = dict[str, dict[str, float | None]](), dict[str, float | None]()
    for name, kind in _REPORTED.items():
        # a step without a peak hides nothing: each step needs the states
        sizes = {rank: [step.memory.get(kind) for step in steps] for rank, steps in ranks.items()}
        largest = {rank: max((size for size in row if size is not None), default=None) for rank, row in sizes.items()}
        peaks[name] = {f"rank {rank}": peak for rank, peak in largest.items()}
        if (name == "process peak") == on_host:  # unknown where one rank has none: it may be the fullest
            reported = [peak for peak in largest.values() if peak is not None]
            figures[name] = max(reported) if reported and len(reported) == len(largest) else None
    if not on_host:
        figures["device-used peak"] = memory.device_used_peak.value
        peaks["device-used peak"] = {place: used for part in parts for place, used in _used(plan, part)}
    if reason := nothing_reason(peaks) or memory_reason(figures, states):
        yield f"memory: {reason}"


def _used(plan: Plan, part: NodePart) -> Iterator[tuple[str, int | None]]:
    """Yield the used peak of each device whose readings cover the window. Before it, an idle device may show 0."""
    window_ns = part.window_ns(plan.work.window)
    for index, used in zip(part.indices, used_peaks(part.telemetry.readings, part.indices), strict=True):
        readings = (r for r in part.telemetry.readings if r.device == index and r.memory_used_bytes is not None)
        if window_ns is not None and not too_little(sorted(r.time_ns for r in readings), *window_ns):
            yield f"device {part.device(index)}", used


def _work(plan: Plan, parts: Sequence[NodePart], throughput: Throughput, energy: Energy) -> Iterator[str]:
    training = plan.work.training
    try:
        flops = flops_per_token("megatron", plan.work.model, training.sequence_length) * training.tokens_per_step
    except FormulaError:
        return
    window = plan.work.window
    steps = window.last_step - window.first_step + 1
    seconds, share = throughput.wall_seconds / steps, flops / plan.world_size
    maker = plan.hardware.chip.peaks.get(training.precision)  # what it publishes for these products; fp8: that of fp8
    limit = maker.tflops if maker else chip_limit(training.precision, plan.hardware.chip.peaks)
    source = maker.source if maker else "no more than its maker publishes for narrower numbers"
    if limit is not None and (reason := time_reason(seconds, share, limit, source)):
        yield f"time: {reason}"
    if plan.hardware.is_host:
        yield from _processors(plan, parts, flops, steps, seconds)
        return
    # a measured peak is a plugin's word: one that is too high would call every device idle
    peak = maker.tflops if maker else min((p for p in (plan.peak.tflops, limit) if p is not None), default=None)
    idle = _idle_watts(parts)
    if peak is not None and idle is not None and energy.mean_watts.value is not None:
        part = share / seconds / (peak * 1e12)
        if reason := energy_reason(energy.mean_watts.value, idle, part, 1 / seconds):
            yield f"energy: {reason}"


def _processors(plan: Plan, parts: Sequence[NodePart], flops: float, steps: int, seconds: float) -> Iterator[str]:
    """Hold each machine's step time and processor time against its ranks' products. flops, seconds: of a step."""
    if plan.runtime == "docker":  # the cores of the training are not those of the readings
        return
    for part in parts:
        window_ns, host = part.window_ns(plan.work.window), part.telemetry.host
        if window_ns is None or not host:
            continue
        if too_little(sorted(reading.time_ns for reading in host), *window_ns):
            continue
        ranks, cores = len(part.ranks), max(1, host[-1].cores)
        share, limit = flops * ranks / plan.world_size, cores * core_limit(plan.work.training.precision, None)
        if plan.peak.limit_tflops is not None:
            limit = min(limit, plan.peak.limit_tflops * ranks)
        if reason := time_reason(seconds, share, limit, f"no more than {cores} core(s) can"):
            yield f"time: {part.labelled(reason)}"
        # a probe has no more threads than cores are paid for, which may be fewer than there are
        threads = min(cores, (plan.tuning.threads or cores) * ranks)
        peak = min(limit, plan.peak.tflops * ranks) if plan.peak.tflops is not None else limit
        if reason := processor_reason(*used_seconds(host, *window_ns), share * steps, peak / threads):
            yield f"processors: {part.labelled(reason)}"


def _idle_watts(parts: Sequence[NodePart]) -> float | None:
    """Return the power of all devices before the training; None where one's is not known, or it may not be idle."""
    watts: list[float] = []
    for part in parts:
        before = {reading.device: reading for reading in part.telemetry.readings if reading.before}
        for index in part.indices:
            reading = before.get(index)
            if reading is None or reading.power_watts is None or in_use(None, None, reading.utilisation) is not False:
                return None
            watts.append(reading.power_watts)
    return math.fsum(watts) if watts and min(watts) > 0 else None


def memory_reason(figures: Mapping[str, float | None], states: int) -> str | None:
    """Return why the memory does not hold the states. figures: bytes of the fullest rank or device, by name."""
    least = STATES_PART * states
    low = {name: size for name, size in figures.items() if size is not None and not size >= least}
    if not low:
        return None
    name, size = min(low.items(), key=lambda item: item[1])
    return (
        f"the {name} is {size:,.0f} bytes, expected at least {least:,.0f}: {STATES_PART:.0%} of the {states:,} "
        "bytes of weights, gradients and optimizer states on a rank"
    )


def nothing_reason(peaks: Mapping[str, Mapping[str, float | None]]) -> str | None:
    """Return which rank or device used no memory, as it says: 0 is no measurement. peaks: bytes by name and place."""
    for name, places in peaks.items():
        for place, peak in places.items():
            if peak is not None and not peak > 0:
                return f"the {name} of {place} is {peak:,.0f} bytes, expected more than 0, or null if it is not known"
    return None


def time_reason(step_seconds: float, flops: float, peak_tflops: float, source: str) -> str | None:
    """Return why a step is too short. flops: of the products of a step on one device; peak: a published one."""
    least = flops / (peak_tflops * 1e12)
    if step_seconds >= least:
        return None
    return (
        f"a step lasted {step_seconds:.4g} s, expected at least {least:.4g} s: {flops:.4g} FLOPs of matrix products on "
        f"each device, at its peak of {peak_tflops:g} TFLOP/s ({source})"
    )


def processor_reason(seconds: float, whose: str, flops: float, core_tflops: float) -> str | None:
    """Return why the host's processors did too little in the window. seconds: of processor time. whose: who used it.

    flops: of the products of this machine's ranks in the window. core_tflops: the peak of a core.
    """
    least = PROCESSOR_PART * flops / (core_tflops * 1e12)
    if seconds >= least:
        return None
    return (
        f"{whose} used {seconds:.3g} s of the processors in the window, expected at least {least:.3g} s: an "
        f"eighth of what {flops:.4g} FLOPs of matrix products take at a peak of {core_tflops:.3g} TFLOP/s a core"
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
