"""Computes the result of a run from its raw files. The same files give the same bytes.

Every figure comes from `levelfield.measure`; this module has no formula.
"""

from __future__ import annotations

import hashlib
import math

from levelfield.contracts.readings import LEAST_WATTS
from levelfield.judge.certification import certificate_finding, with_certificate
from levelfield.judge.disturbance import disturbance, disturbed
from levelfield.judge.other_use import other_use
from levelfield.judge.recomputation import repeated
from levelfield.judge.sealing import Redaction, seal_warnings, under_seal, unless_tampered
from levelfield.judge.status import judge
from levelfield.judge.verdict import judged
from levelfield.measure import energy as energies
from levelfield.measure import memory as memories
from levelfield.measure.expectation import against_expected
from levelfield.measure.flops import FORMULAS, Recomputation
from levelfield.measure.load import mean_load
from levelfield.measure.throughput import WindowError, WindowThroughput, step_times, window
from levelfield.measure.utilisation import PeakRange, hfu, mfu, peak_range
from levelfield.measure.validity import loss_curve, tokens_checksum
from levelfield.measure.weights import weight_checksums
from levelfield.rundir.directory import read_plan
from levelfield.rundir.preflight_file import preflight_sentence
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.rundir.seal import seal_finding
from levelfield.rundir.system_facts import origin_of
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import (
    Energy,
    Figure,
    Identity,
    Loss,
    Memory,
    MemoryExpectation,
    Result,
    Status,
    Throughput,
    Utilisation,
)
from levelfield.specs.vendor import Peak, PeakDtype


def collect(paths: RunPaths, raw: RawRecords | None = None, redaction: Redaction | None = None) -> Result:
    """Return the result of a run directory, from its plan and raw files only. Raises DocumentError for a bad plan.

    raw: the raw files, where they were read already. redaction: for the files of a bundle, what the bundle keeps of
    those that were redacted.
    """
    plan, raw = read_plan(paths), raw or read_raw(paths)
    seal = redaction.seal if redaction else seal_finding(paths)
    around = disturbance(plan, raw)
    status = under_seal(disturbed(judge(plan, raw, paths), around), seal)
    throughput, why_none = _throughput(plan, raw, status)
    used = other_use(plan, raw, _window(plan, raw))
    identity, version = _identity(plan, raw), _framework_version(plan, raw)
    recompute = repeated(plan.tuning.recompute, raw.frameworks.get(0))
    alignment = unless_tampered(judged(plan.work.training.steps, raw, identity, _reference(paths)), seal)
    certificate = certificate_finding(paths, plan, version, redaction.software if redaction else None)
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
        repeated=recompute,
        compile=plan.tuning.compile,
        parameters=plan.parameters,
        repeat=plan.repeat,
        status=status,
        steps_done=raw.steps_done,
        steps_planned=plan.work.training.steps,
        window=(plan.work.window.first_step, plan.work.window.last_step),
        loss=_loss(plan, raw),
        throughput=_as_result(throughput) if throughput else None,
        utilisation=_utilisation(plan, throughput, recompute),
        memory=_memory(plan, raw, status),
        energy=_energy(plan, raw, throughput, why_none),
        system=raw.system,
        load=_load(plan, raw),
        other_use=used.figures,
        disturbance=around.figures if around else None,
        identity=identity,
        work_but_precision=plan.work.digest_but_precision,
        alignment=with_certificate(alignment, plan, certificate),
        certificate=certificate,
        deviations=plan.deviations,
        entry=plan.entry,
        runtime=plan.runtime,
        warnings=(*plan.notices, *raw.warnings, *used.warnings, *_loaded(raw), *seal_warnings(status, seal)),
        allowed=plan.container.allowed if plan.container else (),
        inherited=raw.inherited,
        preflight=preflight_sentence(paths.preflight),
        origin=origin_of(raw.provenance, plan.implementation.rests_on),
        seal=seal,
    )


def _loaded(raw: RawRecords) -> tuple[str, ...]:
    """Return a warning for each variable by which the loader takes code that no plan names."""
    found = {name: raw.inherited[name] for name in ("LD_PRELOAD", "LD_AUDIT") if raw.inherited.get(name)}
    return tuple(
        f"the training inherited {name}={text}: code that the plan does not name" for name, text in found.items()
    )


def _throughput(plan: Plan, raw: RawRecords, status: Status) -> tuple[WindowThroughput | None, str]:
    """Return the window's throughput, or None and the reason. Only a run whose rules hold has a throughput."""
    if not status.has_figures:
        return None, f"the run is {status.word}"
    first, last = plan.work.window.first_step, plan.work.window.last_step
    try:
        times = step_times(raw.steps, first, last)
        return window(times, raw.begins.get(0), first, last, plan.world_size), ""
    except WindowError as error:
        return None, str(error)


def _as_result(measured: WindowThroughput) -> Throughput:
    return Throughput(
        tokens_per_second=measured.tokens_per_second,
        tokens_per_second_per_device=measured.tokens_per_second_per_device,
        wall_seconds=measured.wall_seconds,
        step_seconds=measured.step_seconds,
    )


def _utilisation(plan: Plan, throughput: WindowThroughput | None, recompute: Recomputation) -> tuple[Utilisation, ...]:
    """Return each formula's MFU, and its HFU where the run recomputes or the formula counts recomputation."""
    if throughput is None:
        return ()
    model, length = plan.work.model, plan.work.training.sequence_length
    rate, peaks = throughput.tokens_per_second_per_device, _peaks(plan)
    found = [mfu(f, model, length, rate, peaks) for f in FORMULAS if f != "megatron-2021"]
    found += [
        hfu(f, model, length, rate, peaks, recompute) for f in FORMULAS if f == "megatron-2021" or recompute != "none"
    ]
    return tuple(found)


def _peaks(plan: Plan) -> PeakRange:
    """Return the published peaks, with the plan's measured peak where none of this dtype is published."""
    peaks: dict[PeakDtype, Peak] = dict(plan.hardware.chip.peaks)
    used, precision = plan.peak, plan.work.training.precision
    if precision not in peaks and used.tflops is not None:
        peaks[precision] = Peak(tflops=used.tflops, source=used.source)
    return peak_range(precision, peaks)


def _memory(plan: Plan, raw: RawRecords, status: Status) -> Memory:
    devices = _devices(plan, raw)
    capacity, shares = plan.hardware.memory_bytes_per_device, plan.hardware.devices_per_node // len(devices)
    whole = capacity * max(1, shares) if capacity else None  # the tool reads a divided host as one device
    measured = memories.memory(raw.readings, raw.steps, dict.fromkeys(devices, whole), _window(plan, raw))
    why = raw.telemetry_reasons.get("memory_used_bytes") or raw.telemetry_reasons.get("tool")
    return Memory(
        device_used_peak=_bytes(measured.used.peak_bytes, _with_reason(measured.used.reason, why)),
        allocated_peak=_bytes(measured.allocated.peak_bytes, measured.allocated.reason),
        reserved_peak=_bytes(measured.reserved.peak_bytes, measured.reserved.reason),
        process_peak=_bytes(measured.process.peak_bytes, measured.process.reason),
        capacity_bytes=capacity,
        expected_bytes=plan.expected_memory.total_bytes,
        expectation=_expectation(plan, measured, status),
    )


def _expectation(plan: Plan, measured: memories.MemoryPeaks, status: Status) -> MemoryExpectation:
    """Return measured against expected memory of a valid run. An incomplete run may not have reached its peak."""
    why_none = None if status.has_figures else f"the run is {status.word}"
    found = against_expected(plan.expected_memory.total_bytes, measured, plan.hardware.is_host, why_none)
    figure = _bytes(found.measured_bytes, found.reason)
    return MemoryExpectation(figure=found.figure, measured=figure, ratio=found.ratio, remark=found.remark)


def _bytes(value: int | None, reason: str | None) -> Figure:
    return Figure(value=value, unit="B", reason=reason if value is None else None)


def _devices(plan: Plan, raw: RawRecords) -> list[str]:
    """Return the devices by their names in the telemetry. A host that is divided into shares is one device."""
    indices = [str(i) for i in plan.hardware.device_indices]
    return indices or sorted({r.device for r in raw.readings}) or ["0"]


def _energy(plan: Plan, raw: RawRecords, throughput: WindowThroughput | None, why_none: str) -> Energy:
    if throughput is None:
        return _no_energy(why_none)
    window_ns = _window(plan, raw)
    if window_ns is None:
        return _no_energy("rank 0 lacks an end of the window")
    least = 0.0 if plan.hardware.is_host else LEAST_WATTS
    found = energies.energy(raw.readings, _devices(plan, raw), *window_ns, throughput.tokens, least)
    known = (raw.telemetry_reasons.get(field) for field in ("energy_joules", "power_watts"))
    why = "; ".join(dict.fromkeys(reason for reason in known if reason))
    reason = _with_reason(found.reason, why) if found.joules is None else None
    return Energy(
        joules=Figure(value=found.joules, unit="J", reason=reason),
        joules_per_token=Figure(value=found.joules_per_token, unit="J/token", reason=reason),
        mean_watts=Figure(value=found.mean_watts, unit="W", reason=reason),
        boundary=found.boundary,
    )


def _load(plan: Plan, raw: RawRecords) -> Figure:
    window_ns = _window(plan, raw)
    found = mean_load(raw.readings, _devices(plan, raw), *window_ns) if window_ns else "rank 0 lacks the window"
    if isinstance(found, float):
        return Figure(value=found, unit="1")
    return Figure(value=None, unit="1", reason=_with_reason(found, raw.telemetry_reasons.get("utilisation")))


def _window(plan: Plan, raw: RawRecords) -> tuple[int, int] | None:
    """Return begin and end of the window on rank 0's clock; None when the run ended before."""
    ends = {r.step: r.end_ns for r in raw.steps if r.rank == 0}
    begin, end = ends.get(plan.work.window.first_step - 1), ends.get(plan.work.window.last_step)
    return None if begin is None or end is None or not begin < end else (begin, end)


def _with_reason(reason: str | None, why: str | None) -> str | None:
    """Return the reason with that of the vendor's tool in brackets."""
    return f"{reason} ({why})" if reason and why else reason or why


def _no_energy(reason: str) -> Energy:
    nothing = {unit: Figure(value=None, unit=unit, reason=reason) for unit in ("J", "J/token", "W")}
    return Energy(
        joules=nothing["J"], joules_per_token=nothing["J/token"], mean_watts=nothing["W"], boundary=energies.BOUNDARY
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


def _identity(plan: Plan, raw: RawRecords) -> Identity:
    weights = weight_checksums(raw.weights)
    listed = "\n".join(f"{name} {checksum:016x}" for name, checksum in sorted(weights.items()))
    tokens = tokens_checksum(raw.steps, plan.tuning.layout)
    return Identity(
        work=plan.work_digest,
        corpus=plan.corpus.digest,
        initial_weights="sha256:" + hashlib.sha256(listed.encode()).hexdigest() if weights else None,
        tokens=f"{tokens:016x}" if tokens is not None else None,
    )


def _reference(paths: RunPaths) -> Reference | None:
    return load(Reference, paths.reference) if paths.reference.exists() else None


def _framework_version(plan: Plan, raw: RawRecords) -> str:
    """Return the version that the training process wrote, else the pinned version."""
    said = next((str(e["version"]) for e in raw.frameworks.values() if e.get("version")), None)
    return said or plan.implementation.version
