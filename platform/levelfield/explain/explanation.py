"""The parts of a run's step from its raw files: the recorded steps of its ranks, whose digests its events have."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.catalog.registry import Registry
from levelfield.contracts.phases import RunFeature
from levelfield.errors import UsageError
from levelfield.explain.step_alone import AloneTimes, ChipRates, alone_times, step_alone
from levelfield.explain.step_difference import step_planned
from levelfield.explain.step_division import (
    RankLayout,
    StepTime,
    divide_waits,
    kernels,
    late_ranks,
    mean_parts,
    median_step_timeline,
    milliseconds,
    overhead,
    rank_parts,
    uneven_layers,
    warnings,
)
from levelfield.measure.step_timeline import Operation, Timeline, add_arguments, build_timeline
from levelfield.node.regular_files import read_regular
from levelfield.predict.layout_search import predict
from levelfield.predict.machines import UnknownLink, port_rate
from levelfield.predict.questions import chip_question, host_question
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.rundir.event_lines import (
    DAMAGE_ERRORS,
    JsonObject,
    mapping,
    measured_events,
    parse_event,
    sequence,
    whole_number,
)
from levelfield.specs.base import dump, load
from levelfield.specs.constants import speed_interval
from levelfield.specs.host_rates import HostRates
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import MAX_RECORD_BYTES, Hardware, PeakUsed, Plan
from levelfield.specs.step_parts import StepParts, StepPlanned
from levelfield.specs.vendor import PeakDtype

# The worker's events (worker/step_profile.py).
STEP_EVENT, PROFILE_EVENT, ALONE_EVENT = "profiled_step", "step_profile", "step_alone"
_TORCH_DTYPES: dict[str, PeakDtype] = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
_MAX_TRACE_BYTES = 2**31  # of one record, unpacked
_RECORD_NAME = re.compile(r"rank(\d{1,7})\.step(\d{1,4})\.json\.gz", re.ASCII)


@dataclass(frozen=True)
class RecordedRun:
    """A run whose steps were recorded."""

    run_id: str
    framework: str
    ranks: int  # how many there are
    layout: RankLayout
    chip: ChipRates = field(default_factory=ChipRates)


@dataclass
class _RankRecords:
    """What the ranks recorded in events and traces."""

    times: list[StepTime] = field(default_factory=list)  # of the steps after the training's last one
    steps: dict[int, dict[int, Timeline]] = field(default_factory=dict)  # by number of the step and by rank
    missing: list[str] = field(default_factory=list)  # sentences
    profilers: set[str] = field(default_factory=set)
    alone: dict[int, AloneTimes] = field(default_factory=dict)  # what operations take alone, by rank


class Explanation(RunFeature):
    """The parts of the step of a run with --explain-step, from its recorded steps."""

    def after(self, plan: Plan, paths: RunPaths) -> None:
        """Write the parts. Where there are none to read, `report explain` gives the reason."""
        if plan.explain_steps is not None:
            with suppress(UsageError):
                write_atomically(paths.step_parts, dump(compute_step_parts(paths)))

    def hint(self, paths: RunPaths) -> str | None:
        """Return the command that shows the parts, where a run has them."""
        if not paths.step_parts.exists():
            return None
        return f"its step in parts: run_benchmarks.py report explain {paths.root.name}"


def step_parts(paths: RunPaths) -> StepParts:
    """Return the parts of the run's step, computed at its end, or now. Raises UsageError as `compute_step_parts`."""
    return load(StepParts, paths.step_parts) if paths.step_parts.exists() else compute_step_parts(paths)


def compute_step_parts(paths: RunPaths) -> StepParts:
    """Compute the parts of the run's step from its recorded steps. Raises UsageError where there is none to read."""
    plan = read_plan(paths)
    if plan.explain_steps is None:
        raise UsageError(
            f"{plan.run_id}: found no recorded steps, expected a run with --explain-step; run it again with that option"
        )
    framework, layout = plan.implementation.framework, rank_layout(plan.tuning.layout)
    run = RecordedRun(plan.run_id, framework, plan.world_size, layout, chip_rates(plan.hardware, plan.peak))
    return parts_from_records(run, paths.events, paths.profile)


def step_parts_or_none(paths: RunPaths) -> StepParts | None:
    """Compute the parts of the run's step; None where there is none to read."""
    try:
        return compute_step_parts(paths)
    except UsageError:
        return None


def planned_step(plan: Plan, parts: StepParts, registry: Registry, host: HostRates | None) -> StepPlanned:
    """Return what the planner predicts of the run's step, beside what was measured; or the reason why it does not.

    host: the rates of this host, where they are known; they count for a run on its processors.
    """
    devices, nodes = plan.hardware.devices_per_node, plan.hardware.nodes
    framework, chip = plan.implementation.framework, plan.hardware.chip
    network = port_rate(chip) * devices if nodes > 1 else None
    try:
        if not plan.hardware.is_host:
            kind = plan.hardware.device_kind
            question = chip_question(registry, framework, plan.work, chip, kind, nodes, devices, network)
        elif host is None:
            return StepPlanned(reason="the rates of this host were not measured: `plan CASE --chip cpu` measures them")
        else:
            question = host_question(registry, framework, plan.work, devices, None, host)
        interval = speed_interval(plan.hardware.vendor, question.on_host, plan.work.model.experts is not None)
        return step_planned(parts, predict(question, plan.tuning).time._asdict(), interval)
    except (UsageError, UnknownLink) as error:
        return StepPlanned(reason=str(error))


def parts_from_records(run: RecordedRun, events: Path, profile: Path) -> StepParts:
    """Compute the parts of a step from the events and the recorded steps of all ranks. Raises UsageError without one.

    events, profile: the folders of the ranks' events and of the recorded steps.
    """
    recorded = _read_ranks(run.ranks, events, profile)
    whole_steps = [
        divide_waits(step, run.layout) for _, step in sorted(recorded.steps.items()) if len(step) == run.ranks
    ]
    recording_overhead = overhead(recorded.times)
    if not whole_steps or recording_overhead is None:
        reasons = "; ".join(recorded.missing) or "no rank recorded one, so the training ended before"
        raise UsageError(f"{run.run_id}: found no step that every rank recorded: {reasons}")
    ranks = rank_parts(whole_steps, run.layout)
    lines = [line for step in whole_steps for line in step.lines.values()]
    step_ms = milliseconds([step.ms for step in whole_steps])
    late = late_ranks(ranks)
    parts, kernels_run = mean_parts(ranks, whole_steps), kernels(lines)
    return StepParts(
        run_id=run.run_id,
        framework=run.framework,
        profiler=", ".join(sorted(recorded.profilers)) or "unknown",
        device="accelerator" if any(line.has_device for line in lines) else "processor",
        recorded_steps=len(whole_steps),
        step=step_ms,
        overhead=recording_overhead,
        parts=parts,
        ranks=ranks,
        late=late,
        kernels=kernels_run,
        warnings=(*warnings(step_ms.mean, parts, kernels_run), *uneven_layers(ranks)),
        missing=tuple(recorded.missing),
        timeline=median_step_timeline(whole_steps, [rank.rank for rank in late]),
        alone=step_alone(whole_steps, parts, recorded.alone, run.chip) if len(recorded.alone) == run.ranks else None,
    )


def rank_layout(layout: Layout) -> RankLayout:
    """Return how a layout arranges its ranks: tensor-parallel ones are neighbours, stages are apart."""
    sizes = (layout.data, layout.context, layout.tensor, layout.pipeline)
    return RankLayout(layout.data * layout.context * layout.tensor, sum(size > 1 for size in sizes) <= 1)


def chip_rates(hardware: Hardware, peak: PeakUsed) -> ChipRates:
    """Return the rates of a run's chip: the run's own peak, and the published rates."""
    chip, links = hardware.chip, hardware.chip.interconnect
    flops = {
        torch_type: chip.peaks[dtype].tflops * 1e12
        for torch_type, dtype in _TORCH_DTYPES.items()
        if dtype in chip.peaks
    }
    if peak.tflops is not None:
        flops |= {torch_type: peak.tflops * 1e12 for torch_type, dtype in _TORCH_DTYPES.items() if dtype == peak.dtype}
    memory_rate = chip.memory_bandwidth_bytes_per_second
    return ChipRates(
        flops=flops,
        memory_bytes_per_second=memory_rate,
        link_bytes_per_second=links.each_way_bytes_per_second if links else None,
        per_node=hardware.devices_per_node,
        peak=None
        if peak.tflops is None
        else f"{peak.tflops:.4g} TFLOP/s in {peak.dtype}, {peak.source.partition(';')[0]}",
        memory=None if memory_rate is None else f"{memory_rate / 1e9:.4g} GB/s, {chip.bandwidth_source}",
    )


def _read_ranks(ranks: int, events: Path, profile: Path) -> _RankRecords:
    recorded = _RankRecords()
    for rank in range(ranks):
        measured = measured_events(events / f"rank{rank}.jsonl")
        times = []
        for values in measured.get(STEP_EVENT, ()):
            with suppress(*DAMAGE_ERRORS):
                if values["counted"]:  # a warm-up step does not count
                    ms = (whole_number(values["end_ns"]) - whole_number(values["begin_ns"])) / 1e6
                    times.append(StepTime(rank, whole_number(values["number"]), bool(values["recorded"]), ms))
        recorded.times += times
        summary = next(iter(measured.get(PROFILE_EVENT, ())), {})
        if failed := summary.get("failed"):
            recorded.missing.append(f"rank {rank}: {str(failed)[:300]}")
        recorded.missing += [
            f"{str(name)[:60]}: larger than {MAX_RECORD_BYTES:,} bytes" for name in sequence(summary.get("left_out"))
        ]
        for values in measured.get(ALONE_EVENT, ())[:1]:
            try:
                recorded.alone[rank] = alone_times(values)
            except DAMAGE_ERRORS as error:
                recorded.alone[rank] = AloneTimes(missing=(f"rank {rank}: {error}",))
        alone = recorded.alone[rank].seconds if rank in recorded.alone else ()
        recorded.profilers |= {str(summary["profiler"])[:60]} if "profiler" in summary else set()
        counted = {time.number for time in times if time.is_recorded}
        _read_records(profile, rank, mapping(summary.get("files")), counted, recorded, alone)
    return recorded


def _read_records(
    profile: Path,
    rank: int,
    files: Mapping[str, Any],
    counted: set[int],
    recorded: _RankRecords,
    alone: Collection[Operation],
) -> None:
    """Read a rank's records of the steps that count. What cannot be read gets a sentence in `missing`."""
    names_by_step = {
        int(match[2]): name for name in files if (match := _RECORD_NAME.fullmatch(name)) and int(match[1]) == rank
    }
    uncounted_trace: JsonObject | None = None  # of a step that does not count; it has the types and sizes of arguments
    for number in sorted(names_by_step, key=lambda number: (number in counted, number)):
        name = names_by_step[number]
        try:
            content = read_regular(profile / name, "step")
            if hashlib.sha256(content).hexdigest() != files[name]:
                raise ValueError("changed after the run ended: its digest is not that of the rank's event")
            trace = unpacked_trace(content)
            if number not in counted:
                uncounted_trace = uncounted_trace or trace
                continue
            recorded.steps.setdefault(number, {})[rank] = build_timeline(
                add_arguments(trace, uncounted_trace or {}), alone
            )
        except (OSError, zlib.error, *DAMAGE_ERRORS) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            recorded.missing.append(f"{name}: {reason or type(error).__name__}")


def unpacked_trace(content: bytes) -> JsonObject:
    """Return the trace of a compressed record. Raises ValueError for one that is cut short, or unpacks to too much."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(content, _MAX_TRACE_BYTES)
    if not unpacker.eof:
        raise ValueError(f"cut short, or larger than {_MAX_TRACE_BYTES:,} bytes unpacked")
    return parse_event(text)
