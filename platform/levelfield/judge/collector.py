"""Computes the result of a run from its raw files. The same files give the same bytes.

Every figure comes from `levelfield.measure`; this module has no formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from levelfield.errors import DocumentError
from levelfield.judge.certification import apply_certificate, certificate_finding, uncovered_imports_warning
from levelfield.judge.doubtful_facts import doubtful_facts
from levelfield.judge.implausibility import reject_implausible
from levelfield.judge.node_figures import device_load, run_energy, run_memory, use_by_others
from levelfield.judge.outlying_steps import find_disturbance, reject_disturbed
from levelfield.judge.status import judge_run, missing_evidence_warnings, node_results, step_rule_reasons
from levelfield.judge.verdict import (
    Redaction,
    sealed_status,
    training_verdict,
    verdict_under_status,
    withhold_if_tampered,
)
from levelfield.measure.flops import FORMULAS, Recomputation, repeated_layers
from levelfield.measure.parameter_counts import count_parameters
from levelfield.measure.raw_facts import StepRecord, values_by_step
from levelfield.measure.routing import expert_load, routing_reasons, sum_expert_shares
from levelfield.measure.straggler import find_stragglers
from levelfield.measure.throughput import (
    LossCrossing,
    WindowError,
    clock_rank,
    level_step,
    loss_crossing,
    loss_level,
    measure_window,
    step_ends,
    window_spans,
)
from levelfield.measure.utilisation import hfu, mfu, peak_range
from levelfield.measure.validity import loss_curve, tokens_checksum
from levelfield.measure.weights import weight_checksums
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import JsonObject, mapping
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords, origin_of, read_raw
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import load, sha256_of
from levelfield.specs.bundle import SealFinding
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import PreflightReport
from levelfield.specs.reference import Identity, Reference
from levelfield.specs.result import (
    ATTENTION_KERNELS,
    FP8_LIBRARIES,
    FUSED_KERNELS,
    AttentionKernelFound,
    Energy,
    ExpertLoad,
    Fp8LibraryFound,
    FusedKernel,
    Loss,
    Memory,
    NodeResult,
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

# What each choice of recomputation may repeat in a framework; the first is taken where the training reports nothing.
RECOMPUTATION_KINDS: dict[Recompute, tuple[Recomputation, ...]] = {
    "none": ("none",),
    "selective": ("selective", "selective-attention"),
    "full": ("full", "full-except-down"),
}


def collect(paths: RunPaths, raw: RawRecords | None = None, redaction: Redaction | None = None) -> Result:
    """Return the result of a run directory, from its plan and raw files only. Raises DocumentError for a bad plan.

    raw: the raw files, where they were read already. redaction: of the files of a bundle, what it stores about the
    original ones.
    """
    plan, raw = read_plan(paths), raw or read_raw(paths)
    seal = redaction.seal if redaction else seal_finding(paths)
    parts = node_parts(plan, raw)
    disturbance, disturbance_reason = find_disturbance(plan, raw, parts)
    status_before_checks = reject_disturbed(judge_run(plan, raw, paths), disturbance_reason)
    figures = _measure_window(plan, raw, parts, status_before_checks)
    status = sealed_status(reject_implausible(status_before_checks, plan, parts, *figures), seal)
    if status.word != status_before_checks.word:
        figures = _measure_window(plan, raw, parts, status)
    throughput, peaks, energy = figures
    versions = (str(event["version"]) for event in raw.framework_events.values() if event.get("version"))
    identity, version = _identity(plan, raw), next(versions, plan.implementation.version)
    reference = load(Reference, paths.reference) if paths.reference.exists() else None
    alignment = withhold_if_tampered(training_verdict(plan, raw, identity, reference), seal)
    certificate = certificate_finding(paths, plan, version, redaction.software if redaction else None)
    verdict = verdict_under_status(apply_certificate(alignment, plan, certificate), status)
    recompute = recomputation_kind(plan.tuning.recompute, raw.framework_events.get(0))
    (other_use, other_warnings), nodes = use_by_others(plan, parts), node_results(plan, raw, parts)
    return Result(
        **_planned_fields(plan),
        framework_version=version,
        repeated=recompute,
        compile_seconds=compile_seconds(raw.steps),
        attention_kernel=attention_kernel(raw.framework_events),
        kernels=fused_kernels(raw.framework_events),
        fp8_library=fp8_library(raw.framework_events),
        status=status,
        steps_done=raw.steps_done,
        loss=_loss(plan, raw),
        experts=_experts(plan, raw),
        to_loss=_time_to_loss(plan, raw, reference, verdict.verdict),
        throughput=throughput,
        utilisation=_utilisation(plan, throughput, recompute),
        memory=peaks,
        energy=energy,
        system=raw.system,
        load=device_load(plan, parts),
        other_use=other_use,
        disturbance=disturbance,
        identity=identity,
        alignment=verdict,
        certificate=certificate,
        warnings=(
            *plan.notices,
            *raw.warnings,
            *_warnings(plan, raw, other_warnings, nodes, status, seal),
            *_finished_steps_warning(plan, raw, status),
            *(doubtful_facts(plan, raw, parts, reference) if status.has_figures else ()),
        ),
        inherited=raw.inherited_variables,
        preflight=_preflight(paths),
        origin=origin_of(raw.provenance, plan.implementation.rests_on),
        pace=rank_pace(plan, raw),
        machines=nodes,
        seal=seal,
    )


def _measure_window(
    plan: Plan, raw: RawRecords, parts: Sequence[NodePart], status: Status
) -> tuple[Throughput | None, Memory, Energy]:
    """Return the window's throughput, memory and energy. Only a run whose rules hold has a throughput."""
    throughput, absence_reason = None, f"the run is {status.word}"
    if status.has_figures:
        try:
            throughput, absence_reason = _throughput(plan, raw), ""
        except WindowError as error:
            absence_reason = str(error)
    return (
        throughput,
        run_memory(plan, parts, status),
        run_energy(plan, parts, raw.node_power, throughput, absence_reason),
    )


def _throughput(plan: Plan, raw: RawRecords) -> Throughput:
    """Return the throughput of the window. Raises WindowError."""
    first, last = plan.work.window.first_step, plan.work.window.last_step
    begin = raw.first_step_start_ns.get(clock_rank(raw.steps, first, last))
    return measure_window(step_ends(raw.steps, first, last), begin, first, last, plan.world_size)


def _planned_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of a result that its plan alone gives."""
    work, chip, tuning = plan.work, plan.hardware.chip, plan.tuning
    chosen = {name: who for name, origin in plan.origins.items() if (who := chosen_by(origin))}
    has_experts = work.model.experts is not None
    return {
        "run_id": plan.run_id,
        "case": plan.case,
        "scale": plan.scale,
        "framework": plan.implementation.framework,
        "vendor": plan.hardware.vendor,
        "chip": chip.name,
        "device_is": chip.device_is,
        "nodes": plan.hardware.nodes,
        "devices": plan.world_size,
        "precision": work.training.precision,
        "layout": tuning.layout,
        "micro_batch": tuning.micro_batch,
        "virtual_pipeline": tuning.virtual_pipeline,
        "accumulation": plan.accumulation,
        "recompute": tuning.recompute,
        "recompute_layers": tuning.recompute_layers,
        "compile": tuning.compile,
        "graph": tuning.graph,
        "tuning": TuningFound(word="peak" if chosen else "base", chosen=chosen),
        "parameters": plan.parameters,
        "active_parameters": count_parameters(work.model, work.training.sequence_length).active
        if has_experts
        else None,
        "repeat": plan.repeat,
        "steps_planned": work.training.steps,
        "window": (work.window.first_step, work.window.last_step),
        "work_but_precision": work.digest_without_precision,
        "deviations": plan.deviations,
        "entry": plan.entry,
        "runtime": plan.runtime,
        "allowed": plan.container.allowed if plan.container else (),
        "predicted_rate": plan.predicted[0].tokens_per_second if plan.predicted else None,
    }


def _warnings(
    plan: Plan,
    raw: RawRecords,
    other_warnings: tuple[str, ...],
    nodes: Sequence[NodeResult],
    status: Status,
    seal: SealFinding,
) -> Iterator[str]:
    """Yield what a reader has to know beside the status. other_warnings: of other programs on the machines."""
    planned = plan.implementation.framework
    names = {str(event["name"]) for event in raw.framework_events.values() if event.get("name")} - {planned}
    if names:  # its folder is a copy, or the label is wrong
        yield f"the training reports the framework {', '.join(sorted(names))}; this run is called {planned}"
    yield from other_warnings
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        if raw.inherited_variables.get(name):
            yield f"the training inherited {name}={raw.inherited_variables[name]}: code that the plan does not name"
    yield from uncovered_imports_warning(raw.outcome)
    if status.word != "not-run":  # else no evidence was to arrive
        yield from missing_evidence_warnings(nodes)
    if seal.word == "tampered" and status.word != "tampered":
        yield f"the run is tampered: {seal.reason}"


def _finished_steps_warning(plan: Plan, raw: RawRecords, status: Status) -> Iterator[str]:
    """Yield what was measured where a run finished its steps and did not end well. It counts nowhere."""
    ended_well = status.word in ("valid", "unsealed", "invalid", "tampered")
    if ended_well or step_rule_reasons(plan, raw):
        return
    with suppress(WindowError):
        throughput = _throughput(plan, raw)
        rate, window = throughput.tokens_per_second_per_device, plan.work.window
        yield (
            f"the steps were right, and the run did not end well: steps {window.first_step} to {window.last_step} had "
            f"{rate:,.6g} tokens/s per device, which counts in no comparison"
        )


def _preflight(paths: RunPaths) -> str | None:
    """Return the preflight of a run in a sentence; None where there was none."""
    try:
        return load(PreflightReport, paths.preflight).sentence if paths.preflight.is_file() else None
    except DocumentError:
        return "preflight.json is damaged"


def _utilisation(plan: Plan, throughput: Throughput | None, recompute: Recomputation) -> tuple[Utilisation, ...]:
    """Return each formula's MFU, and its HFU where the run recomputes or the formula counts recomputation."""
    if throughput is None:
        return ()
    model, length = plan.work.model, plan.work.training.sequence_length
    rate, precision, used = throughput.tokens_per_second_per_device, plan.work.training.precision, plan.peak
    published: dict[PeakDtype, Peak] = dict(plan.hardware.chip.peaks)
    if precision not in published and used.tflops is not None:
        published[precision] = Peak(tflops=used.tflops, source=used.source)  # measured
    peaks = peak_range(precision, published)
    hfu_formulas = [f for f in FORMULAS if f == "megatron-2021" or recompute != "none"]
    layout, chunks, first = plan.tuning.layout, plan.tuning.virtual_pipeline, plan.tuning.recompute_layers
    layers = None if first is None else repeated_layers(model.layers, layout.pipeline, chunks, first)
    return (
        *(mfu(f, model, length, rate, peaks) for f in FORMULAS if f != "megatron-2021"),
        *(hfu(f, model, length, rate, peaks, recompute, layers) for f in hfu_formulas),
    )


def _loss(plan: Plan, raw: RawRecords) -> Loss:
    losses = [value for _, value in sorted(loss_curve(raw.steps).items()) if math.isfinite(value)]
    tail = losses[-plan.work.acceptance.tail_steps :]
    return Loss(
        first=losses[0] if losses else None,
        last=losses[-1] if losses else None,
        tail_mean=math.fsum(tail) / len(tail) if tail else None,
        floor=plan.corpus.entropy_nats,
    )


def _time_to_loss(plan: Plan, raw: RawRecords, reference: Reference | None, verdict: str) -> TimeToLoss:
    """Return the time to the reference's level. Only an aligned run has one: another curve may fall by an error."""
    training, first, tail = plan.work.training, plan.work.window.first_step, plan.work.acceptance.tail_steps
    level = loss_level(reference.losses, tail) if reference else None
    crossing_or_reason: LossCrossing | str = f"the training is {verdict}, expected aligned"
    if verdict == "aligned" and level is not None:
        last = plan.work.window.last_step
        times, begin = (
            step_ends(raw.steps, first, last),
            raw.first_step_start_ns.get(clock_rank(raw.steps, first, last)),
        )
        crossing_or_reason = loss_crossing(
            loss_curve(raw.steps), window_spans(times, begin, first, last, plan.world_size), level, tail
        )
    step, seconds = (
        (None, None) if isinstance(crossing_or_reason, str) else (crossing_or_reason.step, crossing_or_reason.seconds)
    )
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
        reason=crossing_or_reason if isinstance(crossing_or_reason, str) else None,
    )


def _experts(plan: Plan, raw: RawRecords) -> ExpertLoad | None:
    """Return the load of the experts, where the routing is known whole."""
    if routing_reasons(raw.experts, plan.work):
        return None
    finite = {
        step: loss
        for step, loss in values_by_step(raw.steps, lambda record: record.auxiliary_loss).items()
        if math.isfinite(loss)
    }
    return expert_load(sum_expert_shares(raw.experts), finite, plan.work.window)


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


def attention_kernel(framework_events: Mapping[int, JsonObject]) -> AttentionKernelFound | None:
    """Return the kernel that all ranks name, or why it is not known; None where no rank reported one.

    framework_events: the event `framework` of each rank.
    """
    report = _common_name(framework_events, "attention_kernel", ATTENTION_KERNELS, "kernels")
    return AttentionKernelFound(name=report[0], reason=report[1]) if report else None


def fp8_library(framework_events: Mapping[int, JsonObject]) -> Fp8LibraryFound | None:
    """Return the library that all ranks name, as `attention_kernel` does."""
    report = _common_name(framework_events, "fp8_library", FP8_LIBRARIES, "libraries")
    return Fp8LibraryFound(name=report[0], reason=report[1]) if report else None


def _common_name(
    framework_events: Mapping[int, JsonObject], key: str, allowed: tuple[Name, ...], plural: str
) -> tuple[Name | None, str | None] | None:
    """Return the allowed name that all ranks have under this key of their details, or the reason why there is none.

    None where no rank has a name. plural: the noun for the reason.
    """
    names = {rank: mapping(event.get("details")).get(key) for rank, event in sorted(framework_events.items())}
    if all(name is None for name in names.values()):
        return None
    texts = {rank: "none" if name is None else repr(name)[:40] for rank, name in names.items()}
    first = {text: rank for rank, text in reversed(texts.items())}
    if len(first) > 1:
        reports = ", ".join(f"{text} by rank {first[text]}" for text in dict.fromkeys(texts.values()))
        return None, f"the ranks reported different {plural}: {reports}"
    rank = min(names)
    name = next((name for name in allowed if name == names[rank]), None)
    return (
        (name, None) if name else (None, f"the training reported {texts[rank]}, expected one of {', '.join(allowed)}")
    )


def compile_seconds(steps: Iterable[StepRecord]) -> float | None:
    """Return what compiling took on the rank where it took longest; None where no rank reports a time above 0."""
    times = [step.compile_seconds for step in steps if step.compile_seconds is not None]
    return max((seconds for seconds in times if 0 < seconds < math.inf), default=None)


def fused_kernels(framework_events: Mapping[int, JsonObject]) -> tuple[FusedKernel, ...] | None:
    """Return the fused kernels that all ranks list; None where a rank lists none, others, or an unknown name.

    framework_events: as in `attention_kernel`.
    """
    lists = [mapping(event.get("details")).get("kernels") for event in framework_events.values()]
    if not lists or not isinstance(lists[0], list) or any(names != lists[0] for names in lists):
        return None
    kernels = tuple(kernel for kernel in FUSED_KERNELS if kernel in lists[0])
    return kernels if len(kernels) == len(lists[0]) else None


def recomputation_kind(chosen: Recompute, framework_event: JsonObject | None) -> Recomputation:
    """Return what the training recomputed. framework_event: its `details.repeats` has the kind.

    A report that contradicts the chosen recomputation counts as none.
    """
    reported = mapping(mapping(framework_event).get("details")).get("repeats")
    return next((kind for kind in RECOMPUTATION_KINDS[chosen] if kind == reported), RECOMPUTATION_KINDS[chosen][0])


def rank_pace(plan: Plan, raw: RawRecords) -> RankPace | None:
    """Return the nodes and ranks that the others waited for; None where no rank recorded its own work."""
    window, times = plan.work.window, dict[int, dict[int, float]]()
    for record in raw.steps:
        if record.before_exchange_seconds is not None:
            times.setdefault(record.rank, {})[record.step] = record.before_exchange_seconds
    if not times:
        return None
    window_times = {
        rank: {s: t for s, t in times.get(rank, {}).items() if window.first_step <= s <= window.last_step}
        for rank in range(plan.world_size)
    }
    nodes = range(plan.hardware.nodes)
    return find_stragglers(
        window_times, {f"node{node}": plan.ranks_of(node) for node in nodes} if len(nodes) > 1 else {}
    )
