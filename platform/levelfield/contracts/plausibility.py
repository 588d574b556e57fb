"""Values of a vendor's tool that cannot be right, by what is known about the device. They become null with a reason.

The checks of `vendor check` look at recordings; these look at the same faults on the machine itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from levelfield.contracts.readings import LEAST_WATTS
from levelfield.contracts.vendor import Device, DeviceList, Sample, Vendor
from levelfield.specs.vendor import Chip, VendorFile

MEMORY_TOLERANCE = 0.03  # below the difference of MB and MiB (4.9 %), above the share that drivers reserve (1 %)


def memory_fault(device: Device, chip: Chip | None) -> str | None:
    """Return why the tool's total memory of a device cannot be that of its chip; None where it can, or is unknown."""
    right, found = chip.memory_bytes if chip else None, device.memory_bytes
    if not right or not found or abs(found / right - 1) <= MEMORY_TOLERANCE:
        return None
    return (
        f"the tool's total memory is {found} bytes, and chip {device.chip} has {right}: {abs(found / right - 1):.1%} "
        "apart, so that its unit or its place is wrong"
    )


def checked(spec: VendorFile, devices: DeviceList) -> DeviceList:
    """Return the devices; the problem names those whose memory cannot be right. A divided host is one device."""
    if spec.is_divided and len(devices) > 1:
        return DeviceList(problem=several_of_a_host(len(devices)))
    faults = [f"device {d.index}: {fault}" for d in devices if (fault := memory_fault(d, _chip(spec, d)))]
    problems = [problem for problem in (devices.problem, *faults[:1]) if problem]
    return DeviceList(devices, "; ".join(problems) or None)


def several_of_a_host(count: int) -> str:
    """Return why several devices of a divided host cannot be used: nothing says which of them a run takes."""
    return (
        f"found {count} devices, expected one record, of the whole host: device_kind cpu divides one machine into "
        "shares. Let the tool print one, or give vendor.yaml a visible_devices_variable, which chooses among them"
    )


def plausible(spec: VendorFile, device: Device, sample: Sample) -> Sample:
    """Return the sample with null for each value that cannot be right on this device, with the reason."""
    faults = {field: why for field, why in _faults(spec, device, sample) if getattr(sample, field) is not None}
    nulls: dict[str, Any] = dict.fromkeys(faults)
    return replace(sample, **nulls, reasons={**sample.reasons, **faults}) if faults else sample


def plausible_samples(vendor: Vendor, devices: Sequence[Device]) -> dict[str, object]:
    """Return what a line of telemetry holds: the samples of now, or the error of an adapter, which may be any."""
    try:
        samples = vendor.sample(devices)
        known = {device.index: device for device in devices}
        kept = [plausible(vendor.spec, known[s.index], s) if s.index in known else s for s in samples]
        return {"samples": [asdict(sample) for sample in kept]}
    except Exception as error:  # an adapter may raise anything, and the run must go on
        return {"samples": [], "error": f"{type(error).__name__}: {error}"}


def _faults(spec: VendorFile, device: Device, sample: Sample) -> Iterator[tuple[str, str]]:
    used, whole, watts = sample.memory_used_bytes, device.memory_bytes, sample.power_watts
    if fault := memory_fault(device, _chip(spec, device)):
        yield "memory_used_bytes", fault
    elif used is not None and whole is not None and not used <= whole:
        yield "memory_used_bytes", f"found {used} bytes in use, expected at most the device's {whole}"
    if not spec.is_host and watts is not None and not watts >= LEAST_WATTS:
        yield "power_watts", f"found {watts:g} W, expected at least {LEAST_WATTS:g} W of an accelerator"


def _chip(spec: VendorFile, device: Device) -> Chip | None:
    return spec.chip(device.chip) if device.chip else None
