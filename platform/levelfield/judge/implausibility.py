"""Whether a valid run did the work that its figures state: it is `invalid (implausible)` where it cannot have.

Each rule returns a sentence with what was found, the least that is expected, and why. It returns None where the run
has enough, or where a fact is not known. Limits lie far below what any real training showed
(docs/decisions/least-work.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from levelfield.measure.device_use import is_used_by_others
from levelfield.measure.flops import FormulaError, flops_per_token
from levelfield.measure.memory import ALLOCATED, PROCESS, RESERVED, used_peaks
from levelfield.measure.other_use import processor_seconds
from levelfield.measure.raw_facts import coverage_shortfall, records_by_rank
from levelfield.measure.utilisation import chip_tflops_limit, core_tflops_limit
from levelfield.rundir.node_parts import NodePart
from levelfield.specs.plan import Plan
from levelfield.specs.result import IMPLAUSIBLE, Energy, Memory, Status, Throughput

_STATE_PARTS = ("weights", "gradients", "optimizer_states")
_MEMORY_KEYS_BY_NAME = {"allocated peak": ALLOCATED, "reserved peak": RESERVED, "process peak": PROCESS}
# Least share of weights, gradients and optimizer states: all exist at once at the update. The least of 30
# rehearsals is 1.07.
STATES_SHARE = 0.5
# Least share of the memory that the operating system shows of a rank: the peak is no less, but some pages count late.
RESIDENT_SHARE = 0.9
# Least share of the processor time that the products take at the peak: a probe may have been disturbed, and two threads
# of one core share its rate.
PROCESSOR_SHARE = 1 / 8
# Least ratio of power to the power before the training; expected from this share of the peak on.
IDLE_FACTOR, BUSY_SHARE = 1.1, 0.1


def reject_implausible(
    status: Status,
    plan: Plan,
    parts: Sequence[NodePart],
    throughput: Throughput | None,
    memory: Memory,
    energy: Energy,
) -> Status:
    """Return the status; `invalid` in place of `valid` for a run with less than the least that its training needs."""
    if status.word != "valid":
        return status
    reasons = [
        *_memory_reasons(plan, parts, memory),
        *(_work_reasons(plan, parts, throughput, energy) if throughput else ()),
    ]
    if not reasons:
        return status
    return Status(word="invalid", failure=IMPLAUSIBLE, reasons=tuple(f"{IMPLAUSIBLE}: {reason}" for reason in reasons))


def _memory_reasons(plan: Plan, parts: Sequence[NodePart], memory: Memory) -> Iterator[str]:
    """Compare each known figure with the states of the rank that needs most, as the planner counts them."""
    states = sum(plan.expected_memory.parts.get(name, 0) for name in _STATE_PARTS)
    ranks, is_host = records_by_rank([record for part in parts for record in part.steps]), plan.hardware.is_host
    peaks, figures = dict[str, dict[str, float | None]](), dict[str, float | None]()
    for name, kind in _MEMORY_KEYS_BY_NAME.items():
        # a step without a peak hides nothing: each step needs the states
        sizes = {rank: [step.memory.get(kind) for step in steps] for rank, steps in ranks.items()}
        largest = {
            rank: max((size for size in rank_sizes if size is not None), default=None)
            for rank, rank_sizes in sizes.items()
        }
        peaks[name] = {f"rank {rank}": peak for rank, peak in largest.items()}
        if (name == "process peak") == is_host:  # unknown where one rank has none: it may be the fullest
            reported = [peak for peak in largest.values() if peak is not None]
            figures[name] = max(reported) if reported and len(reported) == len(largest) else None
    if not is_host:
        figures["device-used peak"] = memory.device_used_peak.value
        peaks["device-used peak"] = {place: used for part in parts for place, used in _device_peaks(plan, part)}
    if reason := zero_memory_reason(peaks) or memory_reason(figures, states):
        yield f"memory: {reason}"
    else:
        for part in parts:
            if resident_reason := _resident_reason(plan, part):
                yield f"memory: {part.labelled(resident_reason)}"


def _resident_reason(plan: Plan, part: NodePart) -> str | None:
    """Return why the process peaks of a machine's ranks are too low: the platform saw a rank with more, in time."""
    reported = [size for step in part.steps if (size := step.memory.get(PROCESS)) is not None]
    end = part.first_rank_end_ns.get(plan.work.window.last_step)
    if not reported or end is None:
        return None
    resident = max((r.rank_bytes for r in part.telemetry.host if r.rank_bytes and r.time_ns <= end), default=0)
    if max(reported) >= RESIDENT_SHARE * resident:
        return None
    return (
        f"the process peak is {max(reported):,} bytes, expected at least {RESIDENT_SHARE * resident:,.0f}: the "
        f"operating system showed {resident:,} bytes of a rank before its last step"
    )


def _device_peaks(plan: Plan, part: NodePart) -> Iterator[tuple[str, int | None]]:
    """Yield the used peak of each device whose readings cover the window. Before it, an idle device may show 0."""
    window_ns = part.window_ns(plan.work.window)
    for index, used in zip(part.device_indices, used_peaks(part.telemetry.readings, part.device_indices), strict=True):
        readings = (r for r in part.telemetry.readings if r.device == index and r.memory_used_bytes is not None)
        if window_ns is not None and not coverage_shortfall(sorted(r.time_ns for r in readings), *window_ns):
            yield f"device {part.device_name(index)}", used


def _work_reasons(plan: Plan, parts: Sequence[NodePart], throughput: Throughput, energy: Energy) -> Iterator[str]:
    training = plan.work.training
    try:
        flops = flops_per_token("megatron", plan.work.model, training.sequence_length) * training.tokens_per_step
    except FormulaError:
        return
    window = plan.work.window
    steps = window.last_step - window.first_step + 1
    seconds, rank_flops = throughput.wall_seconds / steps, flops / plan.world_size
    published_peak = plan.hardware.chip.peaks.get(training.precision)  # the maker's, for this precision
    limit = published_peak.tflops if published_peak else chip_tflops_limit(training.precision, plan.hardware.chip.peaks)
    source = published_peak.source if published_peak else "no more than its maker publishes for narrower numbers"
    if limit is not None and (reason := time_reason(seconds, rank_flops, limit, source)):
        yield f"time: {reason}"
    if plan.hardware.is_host:
        yield from _processor_reasons(plan, parts, flops, steps, seconds)
        return
    # a plugin states a measured peak, and with one that is too high every device would seem idle
    peak = (
        published_peak.tflops
        if published_peak
        else min((p for p in (plan.peak.tflops, limit) if p is not None), default=None)
    )
    idle = _idle_watts(parts)
    if peak is not None and idle is not None and energy.mean_watts.value is not None:
        peak_share = rank_flops / seconds / (peak * 1e12)
        if reason := energy_reason(energy.mean_watts.value, idle, peak_share, 1 / seconds):
            yield f"energy: {reason}"


def _processor_reasons(
    plan: Plan, parts: Sequence[NodePart], flops: float, steps: int, seconds: float
) -> Iterator[str]:
    """Compare each machine's step time and processor time with its ranks' products. flops, seconds: of a step."""
    if plan.runtime == "docker":  # the cores of the training are not those of the readings
        return
    for part in parts:
        window_ns, host = part.window_ns(plan.work.window), part.telemetry.host
        if window_ns is None or not host:
            continue
        if coverage_shortfall(sorted(reading.time_ns for reading in host), *window_ns):
            continue
        ranks, cores = len(part.ranks), max(1, host[-1].cores)
        rank_flops, limit = (
            flops * ranks / plan.world_size,
            cores * core_tflops_limit(plan.work.training.precision, None),
        )
        if plan.peak.limit_tflops is not None:
            limit = min(limit, plan.peak.limit_tflops * ranks)
        if reason := time_reason(seconds, rank_flops, limit, f"no more than {cores} core(s) can"):
            yield f"time: {part.labelled(reason)}"
        # a probe has no more threads than cores are paid for, which may be fewer than there are
        threads = min(cores, (plan.tuning.threads or cores) * ranks)
        peak = min(limit, plan.peak.tflops * ranks) if plan.peak.tflops is not None else limit
        if reason := processor_reason(*processor_seconds(host, *window_ns), rank_flops * steps, peak / threads):
            yield f"processors: {part.labelled(reason)}"


def _idle_watts(parts: Sequence[NodePart]) -> float | None:
    """Return the power of all devices before the training; None where one's is not known, or it may not be idle."""
    watts: list[float] = []
    for part in parts:
        readings_before = {reading.device: reading for reading in part.telemetry.readings if reading.before}
        for index in part.device_indices:
            reading = readings_before.get(index)
            if (
                reading is None
                or reading.power_watts is None
                or is_used_by_others(None, None, reading.utilisation) is not False
            ):
                return None
            watts.append(reading.power_watts)
    return math.fsum(watts) if watts and min(watts) > 0 else None


def memory_reason(figures: Mapping[str, float | None], states: int) -> str | None:
    """Return why the memory does not hold the states. figures: bytes of the fullest rank or device, by name."""
    least = STATES_SHARE * states
    low_figures = {name: size for name, size in figures.items() if size is not None and not size >= least}
    if not low_figures:
        return None
    name, size = min(low_figures.items(), key=lambda item: item[1])
    return (
        f"the {name} is {size:,.0f} bytes, expected at least {least:,.0f}: {STATES_SHARE:.0%} of the {states:,} "
        "bytes of weights, gradients and optimizer states on a rank"
    )


def zero_memory_reason(peaks: Mapping[str, Mapping[str, float | None]]) -> str | None:
    """Return which rank or device reports 0 bytes, which is no measurement. peaks: bytes by name and place."""
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


def processor_reason(seconds: float, user: str, flops: float, core_tflops: float) -> str | None:
    """Return why the host's processors did too little in the window. seconds: of processor time. user: who used it.

    flops: of the products of this machine's ranks in the window. core_tflops: the peak of a core.
    """
    least = PROCESSOR_SHARE * flops / (core_tflops * 1e12)
    if seconds >= least:
        return None
    return (
        f"{user} used {seconds:.3g} s of the processors in the window, expected at least {least:.3g} s: an "
        f"eighth of what {flops:.4g} FLOPs of matrix products take at a peak of {core_tflops:.3g} TFLOP/s a core"
    )


def energy_reason(watts: float, idle_watts: float, peak_share: float, steps_per_second: float) -> str | None:
    """Return why the devices were idle. watts, idle_watts: of all, in the window and before the training."""
    least = IDLE_FACTOR * idle_watts
    if not peak_share >= BUSY_SHARE or watts >= least:
        return None
    joules, expected = watts / steps_per_second, least / steps_per_second
    return (
        f"a step took {joules:.4g} J ({watts:.4g} W), expected at least {expected:.4g} J: {IDLE_FACTOR:g} times the "
        f"{idle_watts:.4g} W before the training, as its products need {peak_share:.1%} of the peak"
    )
