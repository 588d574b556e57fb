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
from levelfield.explain.step_alone import ChipRates, Repeated, repeated, step_alone
from levelfield.explain.step_difference import step_planned
from levelfield.explain.step_division import (
    RankLayout,
    StepTime,
    divided,
    kernels,
    late_ranks,
    mean_parts,
    milliseconds,
    overhead,
    rank_parts,
    step_timeline,
    uneven_layers,
    warnings,
)
from levelfield.measure.step_timeline import Operation, Timeline, timeline, with_arguments
from levelfield.node.regular_files import read_regular
from levelfield.predict.layout_search import predict
from levelfield.predict.machines import UnknownLink, port_rate
from levelfield.predict.questions import chip_question, host_question
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.rundir.event_lines import (
    DAMAGE_ERRORS,
    Event,
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
from levelfield.specs.plan import MOST_RECORD_BYTES, Hardware, PeakUsed, Plan
from levelfield.specs.step_parts import StepParts, StepPlanned
from levelfield.specs.vendor import PeakDtype

STEP, PROFILE, ALONE = "profiled_step", "step_profile", "step_alone"  # the worker's events (worker/step_profile.py)
_DTYPES: dict[str, PeakDtype] = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}  # by torch's names
_MOST_TRACE_BYTES = 2**31  # of one record, unpacked
_FILE = re.compile(r"rank(\d{1,7})\.step(\d{1,4})\.json\.gz", re.ASCII)


@dataclass(frozen=True)
class RecordedRun:
    """A run whose steps were recorded."""

    run_id: str
    framework: str
    ranks: int  # how many there are
    layout: RankLayout
    chip: ChipRates = field(default_factory=ChipRates)


@dataclass
class _Recorded:
    """What the ranks recorded."""

    times: list[StepTime] = field(default_factory=list)  # of the further steps
    steps: dict[int, dict[int, Timeline]] = field(default_factory=dict)  # by number of the step and by rank
    missing: list[str] = field(default_factory=list)  # sentences
    profilers: set[str] = field(default_factory=set)
    alone: dict[int, Repeated] = field(default_factory=dict)  # what operations take alone, by rank


class Explanation(RunFeature):
    """The parts of the step of a run with --explain-step, from its recorded steps."""

    def after(self, plan: Plan, paths: RunPaths) -> None:
        """Write the parts. Where there are none to read, `report explain` gives the reason."""
        if plan.explain_steps is not None:
            with suppress(UsageError):
                write_atomically(paths.step_parts, dump(explained(paths)))

    def hint(self, paths: RunPaths) -> str | None:
        """Return the command that shows the parts, where a run has them."""
        if not paths.step_parts.exists():
            return None
        return f"its step in parts: run_benchmarks.py report explain {paths.root.name}"


def step_parts(paths: RunPaths) -> StepParts:
    """Return the parts of the run's step, computed at its end, or now. Raises UsageError as `explained`."""
    return load(StepParts, paths.step_parts) if paths.step_parts.exists() else explained(paths)


def explained(paths: RunPaths) -> StepParts:
    """Compute the parts of the run's step from its recorded steps. Raises UsageError where there is none to read."""
    plan = read_plan(paths)
    if plan.explain_steps is None:
        raise UsageError(
            f"{plan.run_id}: found no recorded steps, expected a run with --explain-step; run it again with that option"
        )
    framework, layout = plan.implementation.framework, layout_of(plan.tuning.layout)
    run = RecordedRun(plan.run_id, framework, plan.world_size, layout, chip_rates(plan.hardware, plan.peak))
    return parts_of(run, paths.events, paths.profile)


def recomputed(paths: RunPaths) -> StepParts | None:
    """Compute the parts of the run's step; None where there is none to read."""
    try:
        return explained(paths)
    except UsageError:
        return None


def planned(plan: Plan, parts: StepParts, registry: Registry, host: HostRates | None) -> StepPlanned:
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


def parts_of(run: RecordedRun, events: Path, profile: Path) -> StepParts:
    """Compute the parts of a step from the events and the recorded steps of all ranks. Raises UsageError without one.

    events, profile: the folders of the ranks' events and of the recorded steps.
    """
    recorded = _recorded(run.ranks, events, profile)
    whole_steps = [divided(step, run.layout) for _, step in sorted(recorded.steps.items()) if len(step) == run.ranks]
    cost = overhead(recorded.times)
    if not whole_steps or cost is None:
        reasons = "; ".join(recorded.missing) or "no rank recorded one, so the training ended before"
        raise UsageError(f"{run.run_id}: found no step that every rank recorded: {reasons}")
    ranks = rank_parts(whole_steps, run.layout)
    lines = [line for step in whole_steps for line in step.lines.values()]
    step_ms = milliseconds([step.ms for step in whole_steps])
    late = late_ranks(ranks)
    parts, ran = mean_parts(ranks, whole_steps), kernels(lines)
    return StepParts(
        run_id=run.run_id,
        framework=run.framework,
        profiler=", ".join(sorted(recorded.profilers)) or "unknown",
        device="accelerator" if any(line.has_device for line in lines) else "processor",
        recorded_steps=len(whole_steps),
        step=step_ms,
        overhead=cost,
        parts=parts,
        ranks=ranks,
        late=late,
        kernels=ran,
        warnings=(*warnings(step_ms.mean, parts, ran), *uneven_layers(ranks)),
        missing=tuple(recorded.missing),
        timeline=step_timeline(whole_steps, [rank.rank for rank in late]),
        alone=step_alone(whole_steps, parts, recorded.alone, run.chip) if len(recorded.alone) == run.ranks else None,
    )


def layout_of(layout: Layout) -> RankLayout:
    """Return how a layout arranges its ranks: tensor-parallel ones are neighbours, stages are apart."""
    sizes = (layout.data, layout.context, layout.tensor, layout.pipeline)
    return RankLayout(layout.data * layout.context * layout.tensor, sum(size > 1 for size in sizes) <= 1)


def chip_rates(hardware: Hardware, peak: PeakUsed) -> ChipRates:
    """Return what the chip of a run can: the run's own peak, and the published rates."""
    chip, joined = hardware.chip, hardware.chip.interconnect
    flops = {
        torch_type: chip.peaks[dtype].tflops * 1e12 for torch_type, dtype in _DTYPES.items() if dtype in chip.peaks
    }
    if peak.tflops is not None:
        flops |= {torch_type: peak.tflops * 1e12 for torch_type, dtype in _DTYPES.items() if dtype == peak.dtype}
    rate = chip.memory_bandwidth_bytes_per_second
    return ChipRates(
        flops=flops,
        memory_bytes_per_second=rate,
        link_bytes_per_second=joined.each_way_bytes_per_second if joined else None,
        per_node=hardware.devices_per_node,
        peak=None
        if peak.tflops is None
        else f"{peak.tflops:.4g} TFLOP/s in {peak.dtype}, {peak.source.partition(';')[0]}",
        memory=None if rate is None else f"{rate / 1e9:.4g} GB/s, {chip.bandwidth_source}",
    )


def _recorded(ranks: int, events: Path, profile: Path) -> _Recorded:
    recorded = _Recorded()
    for rank in range(ranks):
        measured = measured_events(events / f"rank{rank}.jsonl")
        times = []
        for values in measured.get(STEP, ()):
            with suppress(*DAMAGE_ERRORS):
                if values["counted"]:  # a warm-up is not
                    ms = (whole_number(values["end_ns"]) - whole_number(values["begin_ns"])) / 1e6
                    times.append(StepTime(rank, whole_number(values["number"]), bool(values["recorded"]), ms))
        recorded.times += times
        summary = next(iter(measured.get(PROFILE, ())), {})
        if failed := summary.get("failed"):
            recorded.missing.append(f"rank {rank}: {str(failed)[:300]}")
        recorded.missing += [
            f"{str(name)[:60]}: larger than {MOST_RECORD_BYTES:,} bytes" for name in sequence(summary.get("left_out"))
        ]
        for values in measured.get(ALONE, ())[:1]:
            try:
                recorded.alone[rank] = repeated(values)
            except DAMAGE_ERRORS as error:
                recorded.alone[rank] = Repeated(missing=(f"rank {rank}: {error}",))
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
    recorded: _Recorded,
    alone: Collection[Operation],
) -> None:
    """Read a rank's records of the steps that count. What cannot be read is said in `missing`."""
    numbers = {int(match[2]): name for name in files if (match := _FILE.fullmatch(name)) and int(match[1]) == rank}
    noted: Event | None = None  # a step that does not count, for the types and sizes of arguments
    for number in sorted(numbers, key=lambda number: (number in counted, number)):
        name = numbers[number]
        try:
            content = read_regular(profile / name, most_bytes=MOST_RECORD_BYTES)
            if hashlib.sha256(content).hexdigest() != files[name]:
                raise ValueError("changed after the run ended: its digest is not that of the rank's event")
            trace = trace_of(content)
            if number not in counted:
                noted = noted or trace
                continue
            recorded.steps.setdefault(number, {})[rank] = timeline(with_arguments(trace, noted or {}), alone)
        except (OSError, zlib.error, *DAMAGE_ERRORS) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            recorded.missing.append(f"{name}: {reason or type(error).__name__}")


def trace_of(content: bytes) -> Event:
    """Return the trace of a compressed record. Raises ValueError for one that is cut short, or unpacks to too much."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(content, _MOST_TRACE_BYTES)
    if not unpacker.eof:
        raise ValueError(f"cut short, or larger than {_MOST_TRACE_BYTES:,} bytes unpacked")
    return parse_event(text)
