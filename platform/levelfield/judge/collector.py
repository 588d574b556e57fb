"""Computes the result of a run from its raw files. The same files give the same bytes.

Every figure comes from `levelfield.measure`; this module has no formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

from levelfield.errors import DocumentError
from levelfield.judge.certification import certificate_finding, warning_elsewhere, with_certificate
from levelfield.judge.implausibility import unless_implausible
from levelfield.judge.node_figures import device_load, energy, memory, other_use
from levelfield.judge.outlying_steps import disturbance, disturbed
from levelfield.judge.status import judge, missing_warnings, name_warnings, node_results
from levelfield.judge.verdict import (
    Redaction,
    seal_warnings,
    training_verdict,
    under_seal,
    under_status,
    unless_tampered,
)
from levelfield.measure.flops import FORMULAS, Recomputation, repeated_layers
from levelfield.measure.parameter_counts import parameters
from levelfield.measure.raw_facts import StepRecord, curve_of
from levelfield.measure.routing import expert_load, routing_of, routing_reasons
from levelfield.measure.straggler import stragglers
from levelfield.measure.throughput import (
    LossCrossing,
    WindowError,
    clock_rank,
    crossing,
    level_of,
    level_step,
    spans,
    step_times,
    window,
)
from levelfield.measure.utilisation import PeakRange, hfu, mfu, peak_range
from levelfield.measure.validity import loss_curve, tokens_checksum
from levelfield.measure.weights import weight_checksums
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import Event, mapping
from levelfield.rundir.node_parts import node_parts
from levelfield.rundir.raw_files import RawRecords, origin_of, read_raw
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import load, sha256_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import PreflightReport
from levelfield.specs.reference import Identity, Reference
from levelfield.specs.result import (
    FP8_LIBRARIES,
    FUSED_KERNELS,
    KERNELS,
    AttentionKernelFound,
    ExpertLoad,
    Fp8LibraryFound,
    FusedKernel,
    Loss,
    RankPace,
    Result,
    Status,
    Throughput,
    TimeToLoss,
    TuningFound,
    Utilisation,
)
from levelfield.specs.tuning import Recompute, chosen_by
from levelfield.specs.vendor import Peak, PeakDtype

Name = TypeVar("Name", bound=str)

# What each choice may mean in a framework; the first is meant where the training reports nothing.
MEANINGS: dict[Recompute, tuple[Recomputation, ...]] = {
    "none": ("none",),
    "selective": ("selective", "selective-attention"),
    "full": ("full", "full-except-down"),
}


def collect(paths: RunPaths, raw: RawRecords | None = None, redaction: Redaction | None = None) -> Result:
    """Return the result of a run directory, from its plan and raw files only. Raises DocumentError for a bad plan.

    raw: the raw files, where they were read already. redaction: for the files of a bundle, what the bundle keeps of
    those that were redacted.
    """
    plan, raw = read_plan(paths), raw or read_raw(paths)
    seal = redaction.seal if redaction else seal_finding(paths)
    parts = node_parts(plan, raw)
    around, why_disturbed = disturbance(plan, raw, parts)
    ended = disturbed(judge(plan, raw, paths), why_disturbed)
    throughput, why_none = _throughput(plan, raw, ended)
    peaks, used_energy = memory(plan, parts, ended), energy(plan, parts, raw.node_power, throughput, why_none)
    status = under_seal(unless_implausible(ended, plan, parts, throughput, peaks, used_energy), seal)
    if status.word != ended.word:
        throughput, why_none = _throughput(plan, raw, status)
        peaks, used_energy = memory(plan, parts, status), energy(plan, parts, raw.node_power, throughput, why_none)
    (others, other_warnings), nodes = other_use(plan, parts), node_results(plan, raw, parts)
    versions = (str(event["version"]) for event in raw.frameworks.values() if event.get("version"))
    identity, version = _identity(plan, raw), next(versions, plan.implementation.version)
    recompute = repeated(plan.tuning.recompute, raw.frameworks.get(0))
    reference = load(Reference, paths.reference) if paths.reference.exists() else None
    alignment = unless_tampered(training_verdict(plan, raw, identity, reference), seal)
    certificate = certificate_finding(paths, plan, version, redaction.software if redaction else None)
    chosen = {name: who for name, origin in plan.origins.items() if (who := chosen_by(origin))}
    verdict = under_status(with_certificate(alignment, plan, certificate), status)
    model, length = plan.work.model, plan.work.training.sequence_length
    return Result(
        run_id=plan.run_id,
        case=plan.case,
        scale=plan.scale,
        framework=plan.implementation.framework,
        framework_version=version,
        vendor=plan.hardware.vendor,
        chip=plan.hardware.chip.name,
        device_is=plan.hardware.chip.device_is,
        nodes=plan.hardware.nodes,
        devices=plan.world_size,
        precision=plan.work.training.precision,
        layout=plan.tuning.layout,
        micro_batch=plan.tuning.micro_batch,
        virtual_pipeline=plan.tuning.virtual_pipeline,
        accumulation=plan.accumulation,
        recompute=plan.tuning.recompute,
        recompute_layers=plan.tuning.recompute_layers,
        repeated=recompute,
        compile=plan.tuning.compile,
        compile_seconds=compile_seconds(raw.steps),
        graph=plan.tuning.graph,
        tuning=TuningFound(word="peak" if chosen else "base", chosen=chosen),
        attention_kernel=attention_kernel(raw.frameworks),
        kernels=fused_kernels(raw.frameworks),
        fp8_library=fp8_library(raw.frameworks),
        parameters=plan.parameters,
        active_parameters=parameters(model, length).active if model.experts is not None else None,
        repeat=plan.repeat,
        status=status,
        steps_done=raw.steps_done,
        steps_planned=plan.work.training.steps,
        window=(plan.work.window.first_step, plan.work.window.last_step),
        loss=_loss(plan, raw),
        experts=_experts(plan, raw),
        to_loss=_to_loss(plan, raw, reference, verdict.verdict),
        throughput=throughput,
        utilisation=_utilisation(plan, throughput, recompute),
        memory=peaks,
        energy=used_energy,
        system=raw.system,
        load=device_load(plan, parts),
        other_use=others,
        disturbance=around,
        identity=identity,
        work_but_precision=plan.work.digest_but_precision,
        alignment=verdict,
        certificate=certificate,
        deviations=plan.deviations,
        entry=plan.entry,
        runtime=plan.runtime,
        warnings=(
            *plan.notices,
            *raw.warnings,
            *name_warnings(plan, raw),
            *other_warnings,
            *(
                f"the training inherited {name}={raw.inherited[name]}: code that the plan does not name"
                for name in ("LD_PRELOAD", "LD_AUDIT")
                if raw.inherited.get(name)
            ),
            *warning_elsewhere(raw.outcome),
            *(missing_warnings(nodes) if status.word != "not-run" else ()),  # else none was to be
            *seal_warnings(status, seal),
        ),
        allowed=plan.container.allowed if plan.container else (),
        inherited=raw.inherited,
        preflight=_preflight(paths),
        origin=origin_of(raw.provenance, plan.implementation.rests_on),
        predicted_rate=plan.predicted[0].tokens_per_second if plan.predicted else None,
        pace=rank_pace(plan, raw),
        machines=nodes,
        seal=seal,
    )


def _preflight(paths: RunPaths) -> str | None:
    """Return the preflight of a run in a sentence; None where there was none."""
    try:
        return load(PreflightReport, paths.preflight).sentence if paths.preflight.is_file() else None
    except DocumentError:
        return "preflight.json is damaged"


def _throughput(plan: Plan, raw: RawRecords, status: Status) -> tuple[Throughput | None, str]:
    """Return the window's throughput, or None and the reason. Only a run whose rules hold has a throughput."""
    if not status.has_figures:
        return None, f"the run is {status.word}"
    first, last = plan.work.window.first_step, plan.work.window.last_step
    try:
        times = step_times(raw.steps, first, last)
        begin = raw.begins.get(clock_rank(raw.steps, first, last))
        return window(times, begin, first, last, plan.world_size), ""
    except WindowError as error:
        return None, str(error)


def _utilisation(plan: Plan, throughput: Throughput | None, recompute: Recomputation) -> tuple[Utilisation, ...]:
    """Return each formula's MFU, and its HFU where the run recomputes or the formula counts recomputation."""
    if throughput is None:
        return ()
    model, length = plan.work.model, plan.work.training.sequence_length
    rate, peaks = throughput.tokens_per_second_per_device, _peaks(plan)
    counting = [f for f in FORMULAS if f == "megatron-2021" or recompute != "none"]
    layout, chunks, first = plan.tuning.layout, plan.tuning.virtual_pipeline, plan.tuning.recompute_layers
    layers = None if first is None else repeated_layers(model.layers, layout.pipeline, chunks, first)
    return (
        *(mfu(f, model, length, rate, peaks) for f in FORMULAS if f != "megatron-2021"),
        *(hfu(f, model, length, rate, peaks, recompute, layers) for f in counting),
    )


def _peaks(plan: Plan) -> PeakRange:
    """Return the published peaks, with the plan's measured peak where none of this dtype is published."""
    peaks: dict[PeakDtype, Peak] = dict(plan.hardware.chip.peaks)
    used, precision = plan.peak, plan.work.training.precision
    if precision not in peaks and used.tflops is not None:
        peaks[precision] = Peak(tflops=used.tflops, source=used.source)
    return peak_range(precision, peaks)


def _loss(plan: Plan, raw: RawRecords) -> Loss:
    losses = [value for _, value in sorted(loss_curve(raw.steps).items()) if math.isfinite(value)]
    tail = losses[-plan.work.acceptance.tail_steps :]
    return Loss(
        first=losses[0] if losses else None,
        last=losses[-1] if losses else None,
        tail_mean=math.fsum(tail) / len(tail) if tail else None,
        floor=plan.corpus.entropy_nats,
    )


def _to_loss(plan: Plan, raw: RawRecords, reference: Reference | None, verdict: str) -> TimeToLoss:
    """Return the time to the reference's level. Only an aligned run has one: another curve may fall by an error."""
    training, first, tail = plan.work.training, plan.work.window.first_step, plan.work.acceptance.tail_steps
    level = level_of(reference.losses, tail) if reference else None
    place: LossCrossing | str = f"the training is {verdict}, expected aligned"
    if verdict == "aligned" and level is not None:
        last = plan.work.window.last_step
        times, begin = step_times(raw.steps, first, last), raw.begins.get(clock_rank(raw.steps, first, last))
        place = crossing(loss_curve(raw.steps), spans(times, begin, first, last, plan.world_size), level, tail)
    step, seconds = (None, None) if isinstance(place, str) else (place.step, place.seconds)
    source = None
    if reference and level:
        end = level_step(len(reference.losses))
        steps = f"steps {end - tail + 1} to {end}, rounded up to 0.01"
        source = f"mean loss of {reference.name} ({reference.run_id}), {steps}"
    return TimeToLoss(
        level=level,
        source=source,
        averaged_steps=tail,
        step=step,
        tokens=step and step * training.global_batch * training.sequence_length,
        seconds=seconds,
        uncounted_steps=first - 1,
        reason=place if isinstance(place, str) else None,
    )


def _experts(plan: Plan, raw: RawRecords) -> ExpertLoad | None:
    """Return the load of the experts, where the routing is known whole."""
    if routing_reasons(raw.experts, plan.work):
        return None
    finite = {
        step: loss
        for step, loss in curve_of(raw.steps, lambda record: record.auxiliary_loss).items()
        if math.isfinite(loss)
    }
    return expert_load(routing_of(raw.experts), finite, plan.work.window)


def _identity(plan: Plan, raw: RawRecords) -> Identity:
    weights = weight_checksums(raw.weights)
    lines = "\n".join(f"{name} {checksum:016x}" for name, checksum in sorted(weights.items()))
    tokens = tokens_checksum(raw.steps, plan.tuning.layout)
    return Identity(
        work=plan.work_digest,
        corpus=plan.corpus.digest,
        initial_weights=sha256_of(lines.encode()) if weights else None,
        tokens=f"{tokens:016x}" if tokens is not None else None,
    )


def attention_kernel(frameworks: Mapping[int, Event]) -> AttentionKernelFound | None:
    """Return the kernel that all ranks name, or why it is not known; None where no rank reported one.

    frameworks: each rank's event of that name.
    """
    report = _common_name(frameworks, "attention_kernel", KERNELS, "kernels")
    return AttentionKernelFound(name=report[0], reason=report[1]) if report else None


def fp8_library(frameworks: Mapping[int, Event]) -> Fp8LibraryFound | None:
    """Return the library that all ranks name, as `attention_kernel` does."""
    report = _common_name(frameworks, "fp8_library", FP8_LIBRARIES, "libraries")
    return Fp8LibraryFound(name=report[0], reason=report[1]) if report else None


def _common_name(
    frameworks: Mapping[int, Event], key: str, allowed: tuple[Name, ...], what: str
) -> tuple[Name | None, str | None] | None:
    """Return the allowed name that all ranks have under this key of their details, or the reason why there is none.

    None where no rank has a name. what: the plural noun for the reason.
    """
    names = {rank: mapping(event.get("details")).get(key) for rank, event in sorted(frameworks.items())}
    if all(name is None for name in names.values()):
        return None
    texts = {rank: "none" if name is None else repr(name)[:40] for rank, name in names.items()}
    first = {text: rank for rank, text in reversed(texts.items())}
    if len(first) > 1:
        reports = ", ".join(f"{text} by rank {first[text]}" for text in dict.fromkeys(texts.values()))
        return None, f"the ranks reported different {what}: {reports}"
    rank = min(names)
    name = next((name for name in allowed if name == names[rank]), None)
    return (
        (name, None) if name else (None, f"the training reported {texts[rank]}, expected one of {', '.join(allowed)}")
    )


def compile_seconds(steps: Iterable[StepRecord]) -> float | None:
    """Return what compiling took on the rank where it took longest; None where no rank reports a time above 0."""
    times = [step.compile_seconds for step in steps if step.compile_seconds is not None]
    return max((seconds for seconds in times if 0 < seconds < math.inf), default=None)


def fused_kernels(frameworks: Mapping[int, Event]) -> tuple[FusedKernel, ...] | None:
    """Return the fused kernels that all ranks list; None where a rank lists none, others, or an unknown name.

    frameworks: as of `attention_kernel`.
    """
    lists = [mapping(event.get("details")).get("kernels") for event in frameworks.values()]
    if not lists or not isinstance(lists[0], list) or any(names != lists[0] for names in lists):
        return None
    kernels = tuple(kernel for kernel in FUSED_KERNELS if kernel in lists[0])
    return kernels if len(kernels) == len(lists[0]) else None


def repeated(chosen: Recompute, framework: Event | None) -> Recomputation:
    """Return what is repeated. framework: the training's event of that name; `details.repeats` has the kind.

    A report that contradicts the choice counts as none.
    """
    reported = mapping(mapping(framework).get("details")).get("repeats")
    return next((kind for kind in MEANINGS[chosen] if kind == reported), MEANINGS[chosen][0])


def rank_pace(plan: Plan, raw: RawRecords) -> RankPace | None:
    """Return the nodes and ranks that the others waited for; None where no rank recorded its own work."""
    window, times = plan.work.window, dict[int, dict[int, float]]()
    for record in raw.steps:
        if record.before_exchange_seconds is not None:
            times.setdefault(record.rank, {})[record.step] = record.before_exchange_seconds
    if not times:
        return None
    inside = {
        rank: {s: t for s, t in times.get(rank, {}).items() if window.first_step <= s <= window.last_step}
        for rank in range(plan.world_size)
    }
    nodes = range(plan.hardware.nodes)
    return stragglers(inside, {f"node{node}": plan.ranks_of(node) for node in nodes} if len(nodes) > 1 else {})
