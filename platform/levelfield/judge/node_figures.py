"""Computes memory, energy, load and use by others: of each machine on its own clock, then over all machines.

A node without telemetry makes a figure unknown, with a reason that names the node. The rest alone is never summed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from levelfield.contracts.readings import MIN_WATTS
from levelfield.measure import energy, memory
from levelfield.measure.device_use import describe_device_use, is_used_by_others
from levelfield.measure.memory import compare_with_estimate
from levelfield.measure.other_use import HostUse, describe_host_use, host_use
from levelfield.measure.raw_facts import NANOSECONDS, Reading, mean_load
from levelfield.rundir.node_parts import NodePart
from levelfield.rundir.telemetry_files import NodePowerTrace
from levelfield.specs.plan import Plan
from levelfield.specs.result import DeviceUse, Energy, Figure, Memory, NodeEnergy, OtherUse, Status, Throughput


def run_memory(plan: Plan, parts: Sequence[NodePart], status: Status) -> Memory:
    """Return the memory of the fullest device and of the worst rank over all machines."""
    peaks = {part.name: _memory_peaks(plan, part) for part in parts}
    nodes = {name: figures for name, figures in peaks.items() if name is not None}
    measured = memory.fullest_over_nodes(nodes) if nodes else peaks[None]
    absence_reason = None if status.has_figures else f"the run is {status.word}"  # it may not have reached its peak
    stages, main_peak = None, measured.process if plan.hardware.is_host else measured.used
    if main_peak.peak_bytes is not None:
        rank_peaks: list[int | None] = []
        for part in sorted(parts, key=lambda part: part.ranks.start):
            if plan.hardware.is_host:
                rank_peaks += memory.process_peaks(part.steps)
            else:
                rank_peaks += memory.used_peaks(part.telemetry.readings, part.device_indices)
        stages = memory.stage_peaks(rank_peaks, plan.tuning.layout.pipeline, plan.world_size)
    return Memory(
        device_used_peak=_figure(measured.used.peak_bytes, "B", measured.used.reason),
        allocated_peak=_figure(measured.allocated.peak_bytes, "B", measured.allocated.reason),
        reserved_peak=_figure(measured.reserved.peak_bytes, "B", measured.reserved.reason),
        process_peak=_figure(measured.process.peak_bytes, "B", measured.process.reason),
        capacity_bytes=plan.hardware.memory_bytes_per_device,
        expected_bytes=plan.expected_memory.total_bytes,
        expectation=compare_with_estimate(
            plan.expected_memory.total_bytes, measured, plan.hardware.is_host, absence_reason
        ),
        stage_peaks=stages,
    )


def _memory_peaks(plan: Plan, part: NodePart) -> memory.MemoryPeaks:
    capacity, shares = plan.hardware.memory_bytes_per_device, plan.hardware.devices_per_node // len(part.device_indices)
    device_capacity = capacity * max(1, shares) if capacity else None  # to the tool, a divided host is one device
    sizes, window_ns = dict.fromkeys(part.device_indices, device_capacity), part.window_ns(plan.work.window)
    peaks = memory.memory_peaks(part.telemetry.readings, part.steps, sizes, window_ns)
    if peaks.used.peak_bytes is not None:
        return peaks
    reason = part.silence_reason or _append_cause(peaks.used.reason, part.tool_reason("memory_used_bytes", "tool"))
    return replace(peaks, used=replace(peaks.used, reason=reason))


def _figure(value: float | None, unit: str, reason: str | None) -> Figure:
    return Figure(value=value, unit=unit, reason=reason if value is None else None)


def run_energy(
    plan: Plan,
    parts: Sequence[NodePart],
    power_by_node: Mapping[int, NodePowerTrace],
    throughput: Throughput | None,
    absence_reason: str,
) -> Energy:
    """Return the energy of all machines over the window; where there is none, with the reason.

    power_by_node: the power of whole nodes, by node. absence_reason: why there is no throughput, hence no energy.
    """
    chips = energy.DeviceEnergyUse(reason=absence_reason)
    window = plan.work.window
    tokens = plan.work.training.tokens_per_step * (window.last_step - window.first_step + 1)
    if throughput is not None:
        uses = {part.name: _device_energy(plan, part, tokens) for part in parts}
        nodes = {name: use for name, use in uses.items() if name is not None}
        chips = energy.sum_over_nodes(nodes) if nodes else uses[None]
    return Energy(
        joules=Figure(value=chips.joules, unit="J", reason=chips.reason),
        joules_per_token=Figure(value=chips.joules_per_token, unit="J/token", reason=chips.reason),
        mean_watts=Figure(value=chips.mean_watts, unit="W", reason=chips.reason),
        boundary=energy.BOUNDARY,
        nodes=_node_energy(plan, parts, power_by_node, chips, tokens, absence_reason if throughput is None else None),
    )


def _node_energy(
    plan: Plan,
    parts: Sequence[NodePart],
    power_by_node: Mapping[int, NodePowerTrace],
    chips: energy.DeviceEnergyUse,
    tokens: int,
    absence_reason: str | None,
) -> NodeEnergy | None:
    """Return the energy of the whole nodes beside that of their chips; None where the plan has no power of nodes."""
    if plan.node_power is None:
        return None
    traces = [power_by_node.get(node, NodePowerTrace()) for node in range(len(parts))]
    uses = [_node_use(plan, part, trace) for part, trace in zip(parts, traces, strict=True)]
    reasons_by_node = [
        part.labelled(use.reason or "") for part, use in zip(parts, uses, strict=True) if use.joules is None
    ]
    reason = absence_reason or next(iter(reasons_by_node), None)
    windows = filter(None, (part.window_ns(plan.work.window) for part in parts))
    seconds = max((end - begin for begin, end in windows), default=0) / NANOSECONDS
    joules = None if reason else math.fsum(use.joules or 0.0 for use in uses)
    if joules is not None and chips.joules is not None and joules < chips.joules:
        reason = f"the nodes' {joules:.6g} J are less than their chips' {chips.joules:.6g} J: other machines, or units"
        joules = None
    per_token = None if joules is None else joules / tokens
    per_token_beside_chips = (
        None if per_token is None or chips.joules_per_token is None else per_token - chips.joules_per_token
    )
    certificate_note = "" if plan.node_power.verify else ", certificate not checked"
    return NodeEnergy(
        joules=_figure(joules, "J", reason),
        joules_per_token=_figure(per_token, "J/token", reason),
        mean_watts=_figure(None if joules is None else joules / seconds, "W", reason),
        other_joules_per_token=_figure(per_token_beside_chips, "J/token", reason or chips.reason),
        sources=tuple(dict.fromkeys(f"{trace.source}{certificate_note}" for trace in traces if trace.source)),
        readings=min((use.readings for use in uses), default=None),
        resolution_seconds=max((s for use in uses if (s := use.resolution_seconds) is not None), default=None),
    )


def _node_use(plan: Plan, part: NodePart, trace: NodePowerTrace) -> energy.NodeEnergyUse:
    """Return the energy of a node over its window: on this machine's clock, for another node by the time of day."""
    window_ns = part.window_ns(plan.work.window)
    if window_ns is None:
        return energy.NodeEnergyUse(None, f"rank {part.ranks.start} lacks an end of the window")
    if not trace.readings:
        return energy.NodeEnergyUse(None, f"no reading of its power: {trace.error or 'nothing was read'}")
    if plan.launch is None:
        use = energy.node_energy(trace.readings, *window_ns)
    elif part.telemetry.wall_clock:
        readings = [replace(reading, time_ns=reading.epoch_ns) for reading in trace.readings]
        use = energy.node_energy(readings, *map(part.time_of_day_ns, window_ns))
    else:
        return energy.NodeEnergyUse(None, "it left no time of day, which the readings of its power have")
    return replace(use, reason=_append_cause(use.reason, trace.error and f"node power: {trace.error}"))


def _device_energy(plan: Plan, part: NodePart, tokens: int) -> energy.DeviceEnergyUse:
    window_ns = part.window_ns(plan.work.window)
    if window_ns is None or part.silence_reason:
        reason = f"rank {part.ranks.start} lacks an end of the window" if window_ns is None else part.silence_reason
        return energy.DeviceEnergyUse(reason=reason)
    if len(part.device_indices) > 1 and not plan.hardware.device_indices and plan.hardware.is_host:
        reason = f"the tool shows {len(part.device_indices)} devices of a host that is one"
        return energy.DeviceEnergyUse(reason=f"{reason}, so which of them trained is unknown")
    least_watts = 0.0 if plan.hardware.is_host else MIN_WATTS
    use = energy.device_energy(part.telemetry.readings, part.device_indices, *window_ns, tokens, least_watts)
    if use.joules is not None:
        return use
    causes = (part.tool_reason(figure) for figure in ("energy_joules", "power_watts"))
    text = "; ".join(dict.fromkeys(filter(None, causes))) or part.tool_reason("tool")
    return replace(use, reason=_append_cause(use.reason, text))


def device_load(plan: Plan, parts: Sequence[NodePart]) -> Figure:
    """Return the mean load of all devices over the window. Every machine has the same number of them."""
    loads = []
    for part in parts:
        window_ns = part.window_ns(plan.work.window)
        if part.silence_reason:
            return Figure(value=None, unit="1", reason=part.labelled(part.silence_reason))
        load: float | str = f"rank {part.ranks.start} lacks the window"
        if window_ns:
            load = mean_load(part.telemetry.readings, part.device_indices, *window_ns)
        if isinstance(load, str):
            reason = _append_cause(load, part.tool_reason("utilisation")) or load
            return Figure(value=None, unit="1", reason=part.labelled(reason))
        loads.append(load)
    return Figure(value=sum(loads) / len(loads), unit="1")


def _append_cause(reason: str | None, cause: str | None) -> str | None:
    """Return the reason with the cause in brackets; where one is missing, the other alone."""
    return f"{reason} ({cause})" if reason and cause else reason or cause


def use_by_others(plan: Plan, parts: Sequence[NodePart]) -> tuple[OtherUse | None, tuple[str, ...]]:
    """Return what others used of each machine, and a sentence for each figure that is above its limit.

    Of several machines the processors' figures are those of the busiest one.
    """
    if not any(r.before for part in parts for r in part.telemetry.readings) and not any(
        part.telemetry.host for part in parts
    ):
        return None, ()  # a run of an earlier version, or one that did not start
    uses_before, uses_in_window = zip(*(_host_uses(plan, part) for part in parts), strict=True)
    devices, warnings = list[DeviceUse](), list[str]()
    for part, use_before, use_in_window in zip(parts, uses_before, uses_in_window, strict=True):
        readings = {reading.device: reading for reading in part.telemetry.readings if reading.before}
        for index in map(str, plan.hardware.device_indices):
            use, warning = _device_use(plan, part, index, readings.get(index))
            devices.append(use)
            warnings += [warning] if warning else []
        # about the window, or about the time before where the window is not known
        if use_in_window.is_noticeable:
            warnings.append(part.labelled(describe_host_use(use_in_window, "in the window")))
        elif use_in_window.other_cores is None and use_before.is_noticeable:
            warnings.append(part.labelled(describe_host_use(use_before, "before the training")))
    busiest = max(range(len(parts)), key=lambda k: -1.0 if (cores := uses_in_window[k].other_cores) is None else cores)
    figures = OtherUse(
        devices=tuple(devices),
        host_before=_busiest_cores(parts, uses_before),
        host_in_window=_busiest_cores(parts, uses_in_window),
        host_cores=uses_in_window[busiest].cores or uses_before[busiest].cores,
    )
    return figures, tuple(warnings)


def _device_use(plan: Plan, part: NodePart, index: str, reading: Reading | None) -> tuple[DeviceUse, str | None]:
    """Return the use of a device, and a warning where others use it, or where nothing of it could be read."""
    name, capacity = part.device_name(index), plan.hardware.memory_bytes_per_device
    unread_sentence = f"device {name} could not be read before the training"
    if reading is None:
        reason = part.silence_reason or part.tool_reason("tool") or "the vendor's tool gave no reading in time"
        use = DeviceUse(device=name, memory_used=_figure(None, "B", reason), load=None, in_use=None)
        return use, f"{unread_sentence}: {reason}"
    used, load = reading.memory_used_bytes, reading.utilisation
    figure = _figure(used, "B", reading.reasons.get("memory_used_bytes", "the vendor's tool gave no figure"))
    use = DeviceUse(device=name, memory_used=figure, load=load, in_use=is_used_by_others(used, capacity, load))
    if use.in_use:
        return use, describe_device_use(name, used, capacity, load, "before the training")
    is_silent = use.in_use is None and reading.power_watts is None and reading.energy_joules is None
    return use, f"{unread_sentence}: {figure.reason}" if is_silent else None


def _host_uses(plan: Plan, part: NodePart) -> tuple[HostUse, HostUse]:
    """Return the use of a machine's processors before the training and in the window."""
    host, window_ns = part.telemetry.host, part.window_ns(plan.work.window)
    readings_before = [reading for reading in host if reading.before]
    if len(readings_before) < 2:
        reason = part.silence_reason or "there are no two readings from before the training"
        use_before = HostUse(None, readings_before[0].cores if readings_before else None, reason)
    else:
        use_before = host_use(readings_before, readings_before[0].time_ns, readings_before[-1].time_ns)
    if part.silence_reason or window_ns is None:
        reason = part.silence_reason or "the run ended before its window"
        return use_before, HostUse(None, host[-1].cores if host else None, reason)
    return use_before, host_use(host, *window_ns)


def _busiest_cores(parts: Sequence[NodePart], uses: Sequence[HostUse]) -> Figure:
    """Return the use of the busiest machine; unknown where one machine's use is unknown, for it may be the busiest."""
    for part, use in zip(parts, uses, strict=True):
        if use.other_cores is None:
            return Figure(value=None, unit="cores", reason=part.labelled(use.reason or "unknown"))
    return Figure(value=max(use.other_cores or 0.0 for use in uses), unit="cores")
