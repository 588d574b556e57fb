"""What adapters share: limits of values, beyond which one is None with a reason, and the numbers of devices.

A runtime counts the devices that it finds from 0 without a gap. A tool may count slots, of which one is empty, or in
another order. What is then unknown is unknown: a device is never taken by another one's number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from levelfield.contracts.vendor import Device, DeviceList, Sample, Vendor
from levelfield.specs.tool import Tool
from levelfield.specs.vendor import Chip, VendorFile

# An accelerator that can be reached draws more when it is idle (the least recorded: 3.5 W). Less is no reading: a tool
# that prints 0 where it has no value, or another unit. Shares of a host are not held to it.
MIN_WATTS = 1.0
MIN_POWER_SHARE = 0.01  # of the most that the maker lets a chip draw; 1.2 kW read as 1.2 W is below it
# A number outside these limits has another unit than its tool names, or is damaged.
LIMITS: dict[str, tuple[float, float]] = {
    "power_watts": (MIN_WATTS, 10_000),
    "energy_joules": (0, 2**63),
    "memory_bytes": (1, 2**43),
    "memory_used_bytes": (0, 2**43),
    "utilisation": (0, 1),
    "temperature_celsius": (-50, 150),
}
SAMPLED_FIELDS = tuple(field for field in LIMITS if field != "memory_bytes")
ValueReader = Callable[[], float]  # reads one value of a device; it may raise

# The checks of `vendor check` look at recordings; these look at the same faults on the machine itself.
MIN_PARTITION_SHARE, MAX_PARTITION_SHARE = 0.01, 0.6  # of a chip's memory; a wrong unit gives 0.95 or a thousandth
MEMORY_TOLERANCE = 0.03  # below the difference of MB and MiB (4.9 %), above the share that drivers reserve (1 %)
# Nothing says which of several devices of a divided host a run takes.
SEVERAL_HOST_DEVICES = (
    "found {} devices, expected one record, of the whole host: device_kind cpu divides one machine into shares. Let "
    "the tool print one, or give vendor.yaml a visible_devices_variable, which chooses among them"
)


def parse_number(text: str) -> float:
    """Return a bare decimal number. Raises ValueError as `require_number` does."""
    require_number(text)
    return float(text)


def require_number(text: str) -> None:
    """Raises ValueError for a word (`[N/A]`, `[Not Supported]`), a unit or a comma: anything but a bare number."""
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text):
        raise ValueError(f"found '{text}', expected a number")


def read_value(field: str, read: ValueReader, reasons: dict[str, str]) -> float | None:
    """Return the value of `read`, or None with a reason in `reasons`: it failed, or the value is outside its limits."""
    low, high = LIMITS[field]
    try:
        value = read()
    except ValueError as error:
        reasons[field] = str(error)
        return None
    except Exception as error:  # vendors' bindings raise their own classes, or others by driver version
        reasons[field] = f"{type(error).__name__}: {error}".rstrip(": ")
        return None
    if low <= value <= high:
        return value
    reasons[field] = f"found {value:g}, expected {low:g} to {high:g}"
    return None


def read_sample(
    index: int, reads: Mapping[str, ValueReader], reasons: Mapping[str, str] = MappingProxyType({})
) -> Sample:
    """Return a sample from one reading function per field. `reasons`: for fields that the tool does not have."""
    null_reasons = dict(reasons)
    values = {field: read_value(field, read, null_reasons) for field, read in reads.items()}
    used = values.pop("memory_used_bytes", None)
    return Sample(index=index, memory_used_bytes=None if used is None else int(used), reasons=null_reasons, **values)


def empty_sample(index: int, reason: str) -> Sample:
    """Return a sample without values, each with this reason."""
    return Sample(index=index, reasons=dict.fromkeys(SAMPLED_FIELDS, reason))


def chip_named(spec: VendorFile, name: str) -> str | None:
    """Return the chip of vendor.yaml whose `match` ends the tool's name of a device, or None."""
    text = name.strip().lower()
    return next((chip.name for chip in spec.chips if text.endswith(tuple(map(str.lower, chip.match)))), None)


def hides_all(value: str | None) -> bool:
    """Return whether this value of a visible-devices variable hides every device. None: the variable is not set."""
    return value is not None and value.strip() in ("", "-1")


def visible_devices(devices: Sequence[Device], name: str, value: str | None) -> DeviceList:
    """Return the devices that a visible-devices variable shows, in its order.

    name, value: of the variable; a value of None means that it is not set.

    An entry is a device's value in the variable or the beginning of an identity. Entries after the first unknown one
    are ignored, as in the vendors' runtimes. The problem says what is wrong with a variable that leaves none of the
    devices that are here.
    """
    if value is None:
        return DeviceList(devices)
    chosen: list[Device] = []
    for entry in map(str.strip, value.split(",")):
        if entry.isdecimal():
            match = [device for device in devices if device.visible == entry]
        else:
            match = [device for device in devices if entry and (device.identity or "").startswith(entry)]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen += match
    if chosen or not devices or hides_all(value):
        return DeviceList(chosen)
    note = "parts of a card are not supported; " if value.strip().startswith("MIG-") else ""
    return DeviceList(
        problem=f"{name}={value[:80]} shows none of the devices that the tool lists: {note}expected some of "
        f"{', '.join(device.visible for device in devices)}, or an empty value to hide all"
    )


def memory_fault(device: Device, chip: Chip | None) -> str | None:
    """Return why the tool's total memory of a device cannot be that of its chip; None where it can, or is unknown."""
    expected, actual = chip.memory_bytes if chip else None, device.memory_bytes
    if not expected or not actual or abs(actual / expected - 1) <= MEMORY_TOLERANCE:
        return None
    return (
        f"the tool's total memory is {actual} bytes, and chip {device.chip} has {expected}: "
        f"{abs(actual / expected - 1):.1%} apart, so that its unit or its place is wrong"
    )


def used_memory_fault(device: Device, chip: Chip | None, used: int | None) -> str | None:
    """Return why the memory in use cannot be right: more than the tool says the device has, else than its chip has."""
    if used is None:
        return None
    if device.memory_bytes is not None:
        fault = f"found {used} bytes in use, expected at most the device's {device.memory_bytes}"
        return None if used <= device.memory_bytes else fault
    if chip is None or chip.memory_bytes is None or used <= chip.memory_bytes * (1 + MEMORY_TOLERANCE):
        return None
    return f"found {used} bytes in use, expected at most the {chip.memory_bytes} of chip {chip.name}"


def whole_devices(spec: VendorFile, devices: DeviceList) -> DeviceList:
    """Return the devices without parts of a chip; the problem names those, and devices whose memory cannot be right.

    A divided host is one device.
    """
    if spec.is_divided and len(devices) > 1:
        return DeviceList(problem=SEVERAL_HOST_DEVICES.format(len(devices)))
    partitions = _partitions(spec, devices)
    remaining = [device for device in devices if device.index not in partitions]
    if partitions and any(device.unnumbered_reason for device in remaining):
        remaining = []  # which of the numbers are those of the parts is unknown
    faults = [f"device {d.index}: {fault}" for d in remaining if (fault := memory_fault(d, spec.chip(d.chip)))]
    listing_problem = devices.problem
    if len(partitions) == len(devices) and listing_problem in [device.unnumbered_reason for device in devices]:
        listing_problem = None  # it is about the numbers of devices that are left out
    by_reason: dict[str, list[int]] = {}
    for index, reason in partitions.items():
        by_reason.setdefault(reason, []).append(index)
    left_out = "; ".join(
        f"device{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}: {reason}"
        for reason, indices in by_reason.items()
    )
    if left_out:
        left_out += (
            ". Parts of a card are not supported, because their share of its peak and memory is unknown, and they are "
            "left out. Set the card to one partition (AMD: SPX and NPS1)"
        )
    problems = [problem for problem in (listing_problem, left_out, *faults[:1]) if problem]
    return DeviceList(remaining, "; ".join(problems) or None)


def _partitions(spec: VendorFile, devices: Sequence[Device]) -> dict[int, str]:
    """Return the devices that are parts of a chip, or may be, by index, each with what was found.

    A tool may print the whole memory for the first part of a card, and for every part. So where one device is a part by
    its memory, the others of its chip whose compute units are unknown may be parts of the same card.
    """
    reasons: dict[int, str] = {}
    for device in devices:
        chip, units, memory = spec.chip(device.chip), device.compute_units, device.memory_bytes
        if chip and chip.compute_units and units and units < chip.compute_units:
            reasons[device.index] = f"found {units} of the {chip.compute_units} compute units of chip {chip.name}"
        elif (
            chip
            and chip.memory_bytes
            and memory
            and MIN_PARTITION_SHARE <= memory / chip.memory_bytes <= MAX_PARTITION_SHARE
        ):
            reasons[device.index] = f"found {memory} of the {chip.memory_bytes} bytes of memory of chip {chip.name}"
    partitioned = {d.chip for d in devices if d.index in reasons and d.compute_units is None}
    doubtful = [d for d in devices if d.chip in partitioned and d.compute_units is None and d.index not in reasons]
    return reasons | {d.index: f"another device is a part of chip {d.chip}, and this one may be" for d in doubtful}


def plausible_sample(spec: VendorFile, device: Device, sample: Sample) -> Sample:
    """Return the sample with null for each value that cannot be right on this device, with the reason."""
    chip, watts, used, faults = spec.chip(device.chip), sample.power_watts, sample.memory_used_bytes, {}
    if used is not None and (fault := memory_fault(device, chip) or used_memory_fault(device, chip, used)):
        faults["memory_used_bytes"] = fault
    least = max(MIN_WATTS, MIN_POWER_SHARE * (chip.power_watts or 0)) if chip else MIN_WATTS
    if not spec.is_host and watts is not None and not watts >= least:
        faults["power_watts"] = f"found {watts:g} W, expected at least {least:g} W of an accelerator"
    nulls: dict[str, Any] = dict.fromkeys(faults)
    return replace(sample, **nulls, reasons={**sample.reasons, **faults}) if faults else sample


def plausible_samples(vendor: Vendor, devices: Sequence[Device]) -> dict[str, object]:
    """Return what a line of telemetry holds: the samples of now, or the error of an adapter, which may be any."""
    try:
        samples = vendor.sample(devices)
        repeated = [index for index, count in Counter(sample.index for sample in samples).items() if count > 1]
        if repeated:  # which of them is right is unknown
            return {"samples": [], "error": f"found several samples of device {repeated[0]}, expected one"}
        by_index = {device.index: device for device in devices}
        samples = [plausible_sample(vendor.spec, by_index[s.index], s) if s.index in by_index else s for s in samples]
        return {"samples": [asdict(sample) for sample in samples]}
    except Exception as error:  # an adapter may raise anything, and the run must go on
        return {"samples": [], "error": f"{type(error).__name__}: {error}"}


# ---- which value the visible-devices variable has for each device, where the vendor's tool counts otherwise


def assign_visible_values(
    spec: VendorFile, devices: Sequence[Device], printed_values: Mapping[int, str | None], reason: str
) -> list[Device]:
    """Return the devices with their values in the variable, or each with the reason why its value is unknown.

    printed_values: the value that a tool prints, by the tool's index. reason: why it prints none, where it does not.
    """
    tool, variable, count = visible_value_tool(spec), spec.visible_devices_variable, len(devices)
    numbers = [device.index for device in devices]
    device_words = f"{'device' if count == 1 else 'devices'} {', '.join(map(str, numbers))}"
    if tool is None:
        keeps_gaps = spec.numbering is not None and spec.numbering.keeps_gaps
        if variable is None or keeps_gaps or sorted(numbers) == list(range(count)):
            return [replace(device, unnumbered_reason=None) for device in devices]
        docker_hint = (
            "; or use --runtime docker, which gives a container their files" if spec.container.renumbered else ""
        )
        unknown_reason = (
            f"found {device_words}, expected {', '.join(map(str, range(count)))}: {variable} counts from 0 without a "
            "gap, so it is unknown which number means which device. If the runtime counts no other device, "
            f"name its numbers yourself, {variable}={','.join(map(str, range(count)))}; they are taken in this order"
            f"{docker_hint}"
        )
        return [replace(device, unnumbered_reason=unknown_reason) for device in devices]
    values = [printed_values.get(device.index) or "" for device in devices]
    is_known = len({*values}) == len(values) and all(re.fullmatch("[0-9]{1,6}", value) for value in values)
    if is_known:
        pairs = zip(devices, values, strict=True)
        return [replace(d, visible_as=None if value == str(d.index) else value) for d, value in pairs]
    if numbers == [0]:
        return list(devices)
    unknown_reason = (
        f"`{' '.join(tool.command)}` does not say by which number {variable} means each of "
        f"{device_words}: {reason}. Use all {count} of them, or install a release of {tool.command[0]} "
        "that says it"
    )
    return [replace(device, unnumbered_reason=unknown_reason) for device in devices]


def visible_value_tool(spec: VendorFile) -> Tool | None:
    """Return the tool that prints the value of each device in the variable; None where none does."""
    discovery, numbering = spec.discovery, spec.numbering
    tools = (numbering and numbering.tool, discovery and discovery.tool, spec.monitor)
    return next((tool for tool in tools if tool and "visible" in tool.fields), None)


def user_named_devices(spec: VendorFile, devices: DeviceList, outer: str | None, inner: str | None) -> DeviceList:
    """Return the devices, whose numbers are unknown, that the user's variables name by the runtime's numbers.

    outer, inner: the values of outer_devices_variable and visible_devices_variable; None: not set.

    Behind a gap they are taken in the tool's order. Where a tool should print the numbers, their order itself is
    unknown: then all devices have to be named.
    """
    by_number = {str(number): device for number, device in enumerate(devices)}
    lists = [[entry.strip() for entry in value.split(",")] for value in (outer, inner) if value is not None]
    are_numbers = all(len({*entries}) == len(entries) and {*entries} <= {*by_number} for entries in lists)
    if visible_value_tool(spec) and are_numbers and all(len(entries) == len(devices) for entries in lists):
        return devices
    if visible_value_tool(spec) is None and are_numbers and outer is None:
        chosen = [replace(by_number[entry], visible_as=entry, unnumbered_reason=None) for entry in lists[0]]
        chosen_indices, all_indices = (", ".join(str(device.index) for device in group) for group in (chosen, devices))
        noun = "device" if len(chosen) == 1 else "devices"
        notice = f"found {spec.visible_devices_variable}={inner}, which is taken for {noun} {chosen_indices}"
        return DeviceList(chosen, f"{notice} of {all_indices}, in this order")
    pairs = ((spec.outer_devices_variable, outer), (spec.visible_devices_variable, inner))
    settings = ", ".join(f"{name}={value[:80]}" for name, value in pairs if value is not None)
    return DeviceList(problem=f"found {settings}, which cannot be read: {devices[0].unnumbered_reason}")
