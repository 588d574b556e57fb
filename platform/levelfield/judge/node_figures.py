"""Memory, energy and load of a run: each machine's readings over the window on its own clock, then all machines.

A node without telemetry makes a figure unknown, with a reason that names the node. The rest alone is never summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from levelfield.contracts.readings import LEAST_WATTS
from levelfield.measure import energy as energies
from levelfield.measure import memory as memories
from levelfield.measure.memory import against_expected
from levelfield.measure.readings import mean_load
from levelfield.rundir.node_parts import NodePart
from levelfield.specs.plan import Plan
from levelfield.specs.result import Energy, Figure, Memory, MemoryExpectation, Status, Throughput


def memory(plan: Plan, parts: Sequence[NodePart], status: Status) -> Memory:
    """Return the memory of the fullest device and of the worst rank over all machines."""
    each = {part.name: _peaks(plan, part) for part in parts}
    named = {name: peaks for name, peaks in each.items() if name is not None}
    measured = memories.over_nodes(named) if named else each[None]
    return Memory(
        device_used_peak=_bytes(measured.used),
        allocated_peak=_bytes(measured.allocated),
        reserved_peak=_bytes(measured.reserved),
        process_peak=_bytes(measured.process),
        capacity_bytes=plan.hardware.memory_bytes_per_device,
        expected_bytes=plan.expected_memory.total_bytes,
        expectation=_expectation(plan, measured, status),
    )


def _peaks(plan: Plan, part: NodePart) -> memories.MemoryPeaks:
    capacity, shares = plan.hardware.memory_bytes_per_device, plan.hardware.devices_per_node // len(part.indices)
    whole = capacity * max(1, shares) if capacity else None  # the tool reads a divided host as one device
    sizes, window_ns = dict.fromkeys(part.indices, whole), part.window_ns(plan.work.window)
    found = memories.memory(part.read.readings, part.steps, sizes, window_ns)
    if found.used.peak_bytes is not None:
        return found
    reason = part.why_silent or _with_reason(found.used.reason, part.said_by_tool("memory_used_bytes", "tool"))
    return replace(found, used=replace(found.used, reason=reason))


def _expectation(plan: Plan, measured: memories.MemoryPeaks, status: Status) -> MemoryExpectation:
    """Return measured against expected memory of a valid run. An incomplete run may not have reached its peak."""
    why_none = None if status.has_figures else f"the run is {status.word}"
    return against_expected(plan.expected_memory.total_bytes, measured, plan.hardware.is_host, why_none)


def _bytes(peak: memories.MemoryPeak) -> Figure:
    return Figure(value=peak.peak_bytes, unit="B", reason=peak.reason if peak.peak_bytes is None else None)


def energy(plan: Plan, parts: Sequence[NodePart], throughput: Throughput | None, why_none: str) -> Energy:
    """Return the energy of all machines over the window; without one, with the reason."""
    if throughput is None:
        return _no_energy(why_none)
    window = plan.work.window
    tokens = plan.work.training.tokens_per_step * (window.last_step - window.first_step + 1)
    each = {part.name: _used(plan, part, tokens) for part in parts}
    named = {name: use for name, use in each.items() if name is not None}
    found = energies.over_nodes(named) if named else each[None]
    return Energy(
        joules=Figure(value=found.joules, unit="J", reason=found.reason),
        joules_per_token=Figure(value=found.joules_per_token, unit="J/token", reason=found.reason),
        mean_watts=Figure(value=found.mean_watts, unit="W", reason=found.reason),
        boundary=energies.BOUNDARY,
    )


def _used(plan: Plan, part: NodePart, tokens: int) -> energies.EnergyUse:
    window_ns = part.window_ns(plan.work.window)
    if window_ns is None or part.why_silent:
        reason = f"rank {part.ranks.start} lacks an end of the window" if window_ns is None else part.why_silent
        return energies.EnergyUse(None, None, None, reason)
    if len(part.indices) > 1 and not plan.hardware.device_indices and plan.hardware.is_host:
        reason = (
            f"the tool shows {len(part.indices)} devices of a host that is one, so which of them trained is unknown"
        )
        return energies.EnergyUse(None, None, None, reason)
    least = 0.0 if plan.hardware.is_host else LEAST_WATTS
    found = energies.energy(part.read.readings, part.indices, *window_ns, tokens, least)
    if found.joules is not None:
        return found
    known = (part.said_by_tool(figure) for figure in ("energy_joules", "power_watts"))
    why = "; ".join(dict.fromkeys(reason for reason in known if reason))
    return replace(found, reason=_with_reason(found.reason, why))


def _no_energy(reason: str) -> Energy:
    nothing = {unit: Figure(value=None, unit=unit, reason=reason) for unit in ("J", "J/token", "W")}
    return Energy(
        joules=nothing["J"], joules_per_token=nothing["J/token"], mean_watts=nothing["W"], boundary=energies.BOUNDARY
    )


def device_load(plan: Plan, parts: Sequence[NodePart]) -> Figure:
    """Return the mean load of all devices over the window. Every machine has the same number of them."""
    each = [_mean_load(plan, part) for part in parts]
    unknown = [found for found in each if isinstance(found, str)]
    if unknown:
        return Figure(value=None, unit="1", reason=unknown[0])
    return Figure(value=sum(found for found in each if isinstance(found, float)) / len(each), unit="1")


def _mean_load(plan: Plan, part: NodePart) -> float | str:
    window_ns = part.window_ns(plan.work.window)
    if part.why_silent:
        return part.said(part.why_silent)
    rank = part.ranks.start
    found = mean_load(part.read.readings, part.indices, *window_ns) if window_ns else f"rank {rank} lacks the window"
    if isinstance(found, float):
        return found
    return part.said(_with_reason(found, part.said_by_tool("utilisation")) or found)


def _with_reason(reason: str | None, why: str | None) -> str | None:
    """Return the reason with that of the vendor's tool in brackets."""
    return f"{reason} ({why})" if reason and why else reason or why
