"""Which value the visible-devices variable has for each device, where the vendor's tool counts otherwise.

A runtime counts the devices that it finds from 0 without a gap. A tool may count slots, of which one is empty, or in
another order. What is then unknown is unknown: a device is never taken by another one's number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from levelfield.contracts.vendor import Device, DeviceList
from levelfield.specs.tool import Tool
from levelfield.specs.vendor import VendorFile


def numbered(spec: VendorFile, devices: Sequence[Device], printed: Mapping[int, str | None], why: str) -> list[Device]:
    """Return the devices with their values in the variable, or each with the reason why its value is unknown.

    printed: the value that a tool prints, by the tool's index. why: the reason where it prints none.
    """
    tool = printer(spec)
    if tool is None:
        unknown = _why_gap(spec, devices)
        return [replace(device, unnumbered=unknown) for device in devices]
    values = [printed.get(device.index) or "" for device in devices]
    is_known = len({*values}) == len(values) and all(re.fullmatch("[0-9]{1,6}", value) for value in values)
    if is_known:
        pairs = zip(devices, values, strict=True)
        return [replace(d, visible_as=None if value == str(d.index) else value) for d, value in pairs]
    if [device.index for device in devices] == [0]:
        return list(devices)
    unknown = (
        f"`{' '.join(tool.command)}` does not say by which number {spec.visible_devices_variable} means each of "
        f"{_devices(devices)}: {why}. Use all {len(devices)} of them, or install a release of {tool.command[0]} that "
        "says it"
    )
    return [replace(device, unnumbered=unknown) for device in devices]


def printer(spec: VendorFile) -> Tool | None:
    """Return the tool that prints the value of each device in the variable; None where none does."""
    discovery, numbering = spec.discovery, spec.numbering
    tools = (numbering and numbering.tool, discovery and discovery.tool, spec.monitor)
    return next((tool for tool in tools if tool and "visible" in tool.fields), None)


def _why_gap(spec: VendorFile, devices: Sequence[Device]) -> str | None:
    """Return why the values are unknown where the tool's numbers are not 0, 1, 2 and so on; None where they are."""
    variable, count = spec.visible_devices_variable, len(devices)
    keeps_gaps = spec.numbering is not None and spec.numbering.keeps_gaps
    if variable is None or keeps_gaps or sorted(device.index for device in devices) == list(range(count)):
        return None
    container = "; or use --runtime docker, which gives a container their files" if spec.container.renumbered else ""
    return (
        f"found {_devices(devices)}, expected {', '.join(map(str, range(count)))}: {variable} counts from 0 without a "
        "gap, so it is unknown which number means which device. If the runtime counts no other device, name its "
        f"numbers yourself, {variable}={','.join(map(str, range(count)))}; they are taken in this order{container}"
    )


def named_by_user(spec: VendorFile, devices: DeviceList, outer: str | None, inner: str | None) -> DeviceList:
    """Return the devices, whose numbers are unknown, that the user's variables name by the runtime's numbers.

    Behind a gap they are taken in the tool's order. Where a tool should print the numbers, their order itself is
    unknown: then all devices have to be named.
    """
    by_number = {str(place): device for place, device in enumerate(devices)}
    lists = [[entry.strip() for entry in value.split(",")] for value in (outer, inner) if value is not None]
    are_numbers = all(len({*entries}) == len(entries) and {*entries} <= {*by_number} for entries in lists)
    if printer(spec) and are_numbers and all(len(entries) == len(devices) for entries in lists):
        return devices
    if printer(spec) is None and are_numbers and outer is None:
        chosen = [replace(by_number[entry], visible_as=entry, unnumbered=None) for entry in lists[0]]
        notice = f"found {spec.visible_devices_variable}={inner}, which is taken for {_devices(chosen)}"
        return DeviceList(chosen, f"{notice} of {_listed(devices)}, in this order")
    pairs = ((spec.outer_devices_variable, outer), (spec.visible_devices_variable, inner))
    settings = ", ".join(f"{name}={value[:80]}" for name, value in pairs if value is not None)
    return DeviceList(problem=f"found {settings}, which cannot be read: {devices[0].unnumbered}")


def _devices(devices: Sequence[Device]) -> str:
    return f"{'device' if len(devices) == 1 else 'devices'} {_listed(devices)}"


def _listed(devices: Sequence[Device]) -> str:
    return ", ".join(str(device.index) for device in devices)
