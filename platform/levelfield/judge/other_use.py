"""What others used of the machine, from the telemetry of a run: figures for the result, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from levelfield.measure.other_use import HostUse, device_sentence, host_sentence, host_use, in_use
from levelfield.measure.raw_facts import HostReading, Reading
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.result import DeviceUse, Figure, OtherUse


class OtherUseFound(NamedTuple):
    """The figures, and a sentence for each that is above its limit."""

    figures: OtherUse | None
    warnings: tuple[str, ...]


def other_use(plan: Plan, raw: RawRecords, window_ns: tuple[int, int] | None) -> OtherUseFound:
    """Return what others used. window_ns: begin and end of the measured window; None when the run ended before."""
    before = {r.device: r for r in raw.readings if r.before}
    if not before and not raw.host:
        return OtherUseFound(None, ())  # a run of an earlier version, or one that did not start
    earlier, during = _before(raw.host), _in_window(raw.host, window_ns)
    indices = [str(index) for index in plan.hardware.device_indices]
    figures = OtherUse(
        devices=tuple(_device(plan, raw, index, before.get(index)) for index in indices),
        host_before=_cores(earlier),
        host_in_window=_cores(during),
        host_cores=during.cores or earlier.cores,
    )
    said = (_sentence(plan, use, before.get(use.device)) for use in figures.devices)
    return OtherUseFound(figures, (*filter(None, said), *_of_host(earlier, during)))


def _device(plan: Plan, raw: RawRecords, index: str, reading: Reading | None) -> DeviceUse:
    if reading is None:
        reason = raw.telemetry_reasons.get("tool", "the vendor's tool gave no reading in time")
        return DeviceUse(device=index, memory_used=_bytes(None, reason), load=None, in_use=None)
    used, load = reading.memory_used_bytes, reading.utilisation
    memory = plan.hardware.memory_bytes_per_device
    reason = reading.reasons.get("memory_used_bytes", "the vendor's tool gave no figure")
    return DeviceUse(device=index, memory_used=_bytes(used, reason), load=load, in_use=in_use(used, memory, load))


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


def _before(host: Sequence[HostReading]) -> HostUse:
    kept = [r for r in host if r.before]
    if len(kept) < 2:
        return HostUse(None, kept[0].cores if kept else None, "there are no two readings from before the training")
    return host_use(kept, kept[0].time_ns, kept[-1].time_ns)


def _in_window(host: Sequence[HostReading], window_ns: tuple[int, int] | None) -> HostUse:
    if window_ns is None:
        return HostUse(None, host[-1].cores if host else None, "the run ended before its window")
    return host_use(host, *window_ns)


def _cores(use: HostUse) -> Figure:
    return Figure(value=use.other_cores, unit="cores", reason=use.reason if use.other_cores is None else None)


def _of_host(before: HostUse, during: HostUse) -> Iterator[str]:
    """Return the warning about the window, or about the time before where the window is not known."""
    if during.is_noticeable:
        yield host_sentence(during, "in the window")
    elif during.other_cores is None and before.is_noticeable:
        yield host_sentence(before, "before the training")
