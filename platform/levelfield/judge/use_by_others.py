"""What others used of the machine, from the telemetry of a run: figures for the result, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from levelfield.measure.other_use import HostUse, device_sentence, host_sentence, host_use, in_use
from levelfield.measure.raw_facts import Reading
from levelfield.rundir.node_parts import NodePart
from levelfield.specs.plan import Plan
from levelfield.specs.result import DeviceUse, Figure, OtherUse


class OtherUseFound(NamedTuple):
    """The figures, and a sentence for each that is above its limit."""

    figures: OtherUse | None
    warnings: tuple[str, ...]


def other_use(plan: Plan, parts: Sequence[NodePart]) -> OtherUseFound:
    """Return what others used of each machine. Of several, the processors' figures are those of the busiest one."""
    if not any(r.before for part in parts for r in part.read.readings) and not any(part.read.host for part in parts):
        return OtherUseFound(None, ())  # a run of an earlier version, or one that did not start
    each = [_of_machine(plan, part) for part in parts]
    busiest = max(each, key=lambda found: _order(found.during))
    figures = OtherUse(
        devices=tuple(use for found in each for use in found.devices),
        host_before=_cores([(part, found.before) for part, found in zip(parts, each, strict=True)]),
        host_in_window=_cores([(part, found.during) for part, found in zip(parts, each, strict=True)]),
        host_cores=busiest.during.cores or busiest.before.cores,
    )
    return OtherUseFound(figures, tuple(warning for found in each for warning in found.warnings))


class _MachineUse(NamedTuple):
    devices: tuple[DeviceUse, ...]
    before: HostUse
    during: HostUse
    warnings: tuple[str, ...]


def _of_machine(plan: Plan, part: NodePart) -> _MachineUse:
    before = {r.device: r for r in part.read.readings if r.before}
    earlier, during = _before(part), _in_window(part, part.window_ns(plan.work.window))
    indices = [str(index) for index in plan.hardware.device_indices]
    uses = tuple(_device(plan, part, index, before.get(index)) for index in indices)
    said = (_sentence(plan, use, before.get(index)) for index, use in zip(indices, uses, strict=True))
    return _MachineUse(uses, earlier, during, (*filter(None, said), *map(part.said, _of_host(earlier, during))))


def _order(use: HostUse) -> float:
    return -1.0 if use.other_cores is None else use.other_cores


def _device(plan: Plan, part: NodePart, index: str, reading: Reading | None) -> DeviceUse:
    name = part.device(index)
    if reading is None:
        reason = part.why_silent or part.said_by_tool("tool") or "the vendor's tool gave no reading in time"
        return DeviceUse(device=name, memory_used=_bytes(None, reason), load=None, in_use=None)
    used, load = reading.memory_used_bytes, reading.utilisation
    memory = plan.hardware.memory_bytes_per_device
    reason = reading.reasons.get("memory_used_bytes", "the vendor's tool gave no figure")
    return DeviceUse(device=name, memory_used=_bytes(used, reason), load=load, in_use=in_use(used, memory, load))


def _bytes(value: int | None, reason: str) -> Figure:
    return Figure(value=value, unit="B", reason=reason if value is None else None)


def _sentence(plan: Plan, use: DeviceUse, reading: Reading | None) -> str | None:
    """Return the warning about a device that others use, or of which the tool shows nothing, not even its power."""
    if reading is None:
        return f"device {use.device} could not be read before the training: {use.memory_used.reason}"
    if use.in_use:
        values = (reading.memory_used_bytes, plan.hardware.memory_bytes_per_device, reading.utilisation)
        return device_sentence(use.device, *values, "before the training")
    if use.in_use is None and reading.power_watts is None and reading.energy_joules is None:
        return f"device {use.device} could not be read before the training: {use.memory_used.reason}"
    return None


def _before(part: NodePart) -> HostUse:
    kept = [r for r in part.read.host if r.before]
    if len(kept) < 2:
        reason = part.why_silent or "there are no two readings from before the training"
        return HostUse(None, kept[0].cores if kept else None, reason)
    return host_use(kept, kept[0].time_ns, kept[-1].time_ns)


def _in_window(part: NodePart, window_ns: tuple[int, int] | None) -> HostUse:
    host = part.read.host
    if part.why_silent or window_ns is None:
        reason = part.why_silent or "the run ended before its window"
        return HostUse(None, host[-1].cores if host else None, reason)
    return host_use(host, *window_ns)


def _cores(uses: Sequence[tuple[NodePart, HostUse]]) -> Figure:
    """Return the use of the busiest machine; unknown when it is unknown of one, which may be the busiest."""
    unknown = [part.said(use.reason or "unknown") for part, use in uses if use.other_cores is None]
    value = None if unknown else max(use.other_cores or 0.0 for _, use in uses)
    return Figure(value=value, unit="cores", reason=unknown[0] if unknown else None)


def _of_host(before: HostUse, during: HostUse) -> Iterator[str]:
    """Return the warning about the window, or about the time before where the window is not known."""
    if during.is_noticeable:
        yield host_sentence(during, "in the window")
    elif during.other_cores is None and before.is_noticeable:
        yield host_sentence(before, "before the training")
