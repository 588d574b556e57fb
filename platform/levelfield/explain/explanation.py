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
from levelfield.explain.step_alone import AloneTimes, ChipRates, parse_alone_times, step_alone
from levelfield.explain.step_difference import compare_with_prediction
from levelfield.explain.step_division import (
    RankLayout,
    StepTime,
    divide_waits,
    late_ranks,
    mean_kernels,
    mean_parts,
    median_step_timeline,
    milliseconds,
    rank_parts,
    recording_overhead,
    step_warnings,
    uneven_layers,
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
    parse_object,
    sequence,
    truncated_number,
)
from levelfield.specs.base import dump, load
from levelfield.specs.host_rates import HostRates
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import MAX_RECORD_BYTES, Hardware, PeakUsed, Plan
from levelfield.specs.residuals import RunKind, plan_error
from levelfield.specs.step_parts import PredictedStep, StepParts
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
    chip_rates: ChipRates = field(default_factory=ChipRates)


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

    def after_run(self, plan: Plan, paths: RunPaths) -> None:
        """Write the parts. Where there are none to read, `report explain` gives the reason."""
        if plan.explain_steps is not None:
            with suppress(UsageError):
                write_atomically(paths.step_parts, dump(compute_step_parts(paths)))

    def hint(self, paths: RunPaths) -> str | None:
        """Return the command that shows the parts, where a run has them."""
        if not paths.step_parts.exists():
            return None
        return f"its step in parts: run_benchmarks.py report explain {paths.root.name}"


def load_step_parts(paths: RunPaths) -> StepParts:
    """Return the parts of the run's step: those computed at its end, else computed now. Raises UsageError."""
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


def predict_step(plan: Plan, parts: StepParts, registry: Registry, host: HostRates | None) -> PredictedStep:
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
            return PredictedStep(
                reason="the rates of this host were not measured: `plan CASE --chip cpu` measures them"
            )
        else:
            question = host_question(registry, framework, plan.work, devices, None, host)
        precision, is_mixture = plan.work.training.precision, plan.work.model.experts is not None
        run_kind = RunKind(plan.hardware.vendor, chip.name, framework, precision, is_mixture)
        error = None if question.on_host else plan_error(registry.planner_residuals, run_kind, False)
        interval = (error.low, error.high) if error and error.vendor_runs else None
        return compare_with_prediction(parts, predict(question, plan.tuning).time._asdict(), interval)
    except (UsageError, UnknownLink) as error:
        return PredictedStep(reason=str(error))


def parts_from_records(run: RecordedRun, events: Path, profile: Path) -> StepParts:
    """Compute the parts of a step from the events and the recorded steps of all ranks. Raises UsageError without one.

    events, profile: the folders of the ranks' events and of the recorded steps.
    """
    records = _read_ranks(run.ranks, events, profile)
    whole_steps = [
        divide_waits(step, run.layout) for _, step in sorted(records.steps.items()) if len(step) == run.ranks
    ]
    overhead = recording_overhead(records.times)
    if not whole_steps or overhead is None:
        reasons = "; ".join(records.missing) or "no rank recorded one, so the training ended before"
        raise UsageError(f"{run.run_id}: found no step that every rank recorded: {reasons}")
    ranks = rank_parts(whole_steps, run.layout)
    lines = [line for step in whole_steps for line in step.lines.values()]
    step_ms = milliseconds([step.ms for step in whole_steps])
    late = late_ranks(ranks)
    parts, kernels = mean_parts(ranks, whole_steps), mean_kernels(lines)
    return StepParts(
        run_id=run.run_id,
        framework=run.framework,
        profiler=", ".join(sorted(records.profilers)) or "unknown",
        device="accelerator" if any(line.has_device for line in lines) else "processor",
        recorded_steps=len(whole_steps),
        step=step_ms,
        overhead=overhead,
        parts=parts,
        ranks=ranks,
        late=late,
        kernels=kernels,
        warnings=(*step_warnings(step_ms.mean, parts, kernels), *uneven_layers(ranks)),
        missing=tuple(records.missing),
        timeline=median_step_timeline(whole_steps, [rank.rank for rank in late]),
        alone=step_alone(whole_steps, parts, records.alone, run.chip_rates)
        if len(records.alone) == run.ranks
        else None,
    )


def rank_layout(layout: Layout) -> RankLayout:
    """Return how a layout arranges its ranks: tensor-parallel ones are neighbours, stages are apart."""
    sizes = (layout.data, layout.context, layout.tensor, layout.pipeline)
    return RankLayout(layout.data * layout.context * layout.tensor, sum(size > 1 for size in sizes) <= 1)


def chip_rates(hardware: Hardware, peak: PeakUsed) -> ChipRates:
    """Return the rates of a run's chip: the run's own peak, and the published rates."""
    chip, links = hardware.chip, hardware.chip.interconnect
    flops_per_second = {
        torch_type: chip.peaks[dtype].tflops * 1e12
        for torch_type, dtype in _TORCH_DTYPES.items()
        if dtype in chip.peaks
    }
    if peak.tflops is not None:
        flops_per_second |= {
            torch_type: peak.tflops * 1e12 for torch_type, dtype in _TORCH_DTYPES.items() if dtype == peak.dtype
        }
    memory_rate = chip.memory_bandwidth_bytes_per_second
    return ChipRates(
        flops_per_second=flops_per_second,
        memory_bytes_per_second=memory_rate,
        link_bytes_per_second=links.each_way_bytes_per_second if links else None,
        ranks_per_node=hardware.devices_per_node,
        peak_text=None
        if peak.tflops is None
        else f"{peak.tflops:.4g} TFLOP/s in {peak.dtype}, {peak.source.partition(';')[0]}",
        memory_text=None if memory_rate is None else f"{memory_rate / 1e9:.4g} GB/s, {chip.bandwidth_source}",
    )


def _read_ranks(ranks: int, events: Path, profile: Path) -> _RankRecords:
    """Read what all ranks recorded. ranks: how many there are."""
    records = _RankRecords()
    for rank in range(ranks):
        measured = measured_events(events / f"rank{rank}.jsonl")
        times = []
        for values in measured.get(STEP_EVENT, ()):
            with suppress(*DAMAGE_ERRORS):
                if values["counted"]:  # a warm-up step does not count
                    ms = (truncated_number(values["end_ns"]) - truncated_number(values["begin_ns"])) / 1e6
                    times.append(StepTime(rank, truncated_number(values["number"]), bool(values["recorded"]), ms))
        records.times += times
        summary = next(iter(measured.get(PROFILE_EVENT, ())), {})
        if failed := summary.get("failed"):
            records.missing.append(f"rank {rank}: {str(failed)[:300]}")
        records.missing += [
            f"{str(name)[:60]}: larger than {MAX_RECORD_BYTES:,} bytes" for name in sequence(summary.get("left_out"))
        ]
        for values in measured.get(ALONE_EVENT, ())[:1]:
            try:
                records.alone[rank] = parse_alone_times(values)
            except DAMAGE_ERRORS as error:
                records.alone[rank] = AloneTimes(missing=(f"rank {rank}: {error}",))
        alone_operations = records.alone[rank].seconds if rank in records.alone else ()
        records.profilers |= {str(summary["profiler"])[:60]} if "profiler" in summary else set()
        counted_steps = {time.number for time in times if time.is_recorded}
        _read_records(profile, rank, mapping(summary.get("files")), counted_steps, records, alone_operations)
    return records


def _read_records(
    profile: Path,
    rank: int,
    files: Mapping[str, Any],
    counted_steps: set[int],
    records: _RankRecords,
    alone_operations: Collection[Operation],
) -> None:
    """Read a rank's traces of the steps that count into `records`. What cannot be read gets a sentence in `missing`.

    files: the digests of the traces by name. alone_operations: those that were repeated alone.
    """
    names_by_step = {
        int(match[2]): name for name in files if (match := _RECORD_NAME.fullmatch(name)) and int(match[1]) == rank
    }
    uncounted_trace: JsonObject | None = None  # of a step that does not count; it has the types and sizes of arguments
    for number in sorted(names_by_step, key=lambda number: (number in counted_steps, number)):
        name = names_by_step[number]
        try:
            content = read_regular(profile / name, "step")
            if hashlib.sha256(content).hexdigest() != files[name]:
                raise ValueError("changed after the run ended: its digest is not that of the rank's event")
            trace = unpacked_trace(content)
            if number not in counted_steps:
                uncounted_trace = uncounted_trace or trace
                continue
            records.steps.setdefault(number, {})[rank] = build_timeline(
                add_arguments(trace, uncounted_trace or {}), alone_operations
            )
        except (OSError, zlib.error, *DAMAGE_ERRORS) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            records.missing.append(f"{name}: {reason or type(error).__name__}")


def unpacked_trace(content: bytes) -> JsonObject:
    """Return the trace of a compressed record. Raises ValueError for one that is cut short, or unpacks to too much."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(content, _MAX_TRACE_BYTES)
    if not unpacker.eof:
        raise ValueError(f"cut short, or larger than {_MAX_TRACE_BYTES:,} bytes unpacked")
    return parse_object(text)
