"""The adapter of a vendor without code: vendor.yaml defines devices, containers, samples and versions.

An adapter.py that needs little code of its own can derive from DeclaredVendor.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from levelfield.contracts.command import Ask, ask
from levelfield.contracts.readings import (
    ValueReader,
    assign_visible_values,
    chip_named,
    empty_sample,
    hides_all,
    read_sample,
    read_value,
    user_named_devices,
    visible_devices,
)
from levelfield.contracts.tool_records import ParsedOutput, Record, find_matches, parse_output
from levelfield.contracts.vendor import (
    ContainerOptions,
    Device,
    DeviceList,
    NodeCommands,
    Sample,
    Vendor,
)
from levelfield.specs.tool import FieldName, NodeCommand, Tool
from levelfield.specs.vendor import VendorFile

_SAMPLE_FIELDS: dict[str, FieldName] = {
    "power_watts": "power",
    "energy_joules": "energy",
    "memory_used_bytes": "memory_used",
    "utilisation": "utilisation",
    "temperature_celsius": "temperature",
}


class DeclaredVendor:
    """A vendor that its vendor.yaml defines. ask: runs a tool, or replays a recording. root: the folder above dev/."""

    def __init__(self, spec: VendorFile, ask: Ask = ask, root: Path = Path("/")) -> None:
        self.spec = spec
        self._ask = ask
        self._root = root

    def devices(self) -> Sequence[Device]:
        """Return the devices of the vendor's tool or the device nodes, without those that the variables hide.

        An outer variable chooses first; the other one then counts what it left.
        """
        names = self.spec.outer_devices_variable, self.spec.visible_devices_variable
        outer, inner = (os.environ.get(name) if name else None for name in names)
        if hides_all(outer) or hides_all(inner):
            return DeviceList()
        devices = self._all_devices()
        if any(device.unnumbered_reason for device in devices) and (outer or inner):
            return user_named_devices(self.spec, devices, outer, inner)
        after_outer = visible_devices(devices, str(names[0]), outer)
        renumbered = (
            after_outer
            if outer is None
            else [replace(d, visible_as=str(number)) for number, d in enumerate(after_outer)]
        )
        chosen = visible_devices(renumbered, str(names[1]), inner)
        problem = devices.problem or after_outer.problem or chosen.problem
        return DeviceList([after_outer[renumbered.index(device)] for device in chosen], problem)

    def container(self, devices: Sequence[Device]) -> ContainerOptions:
        """Return the `container` of vendor.yaml for these devices, with `{index}` filled in for each device."""
        access = self.spec.container
        identities = tuple(device.identity or str(device.index) for device in devices)
        nodes = [text.replace("{index}", str(device.index)) for text in access.device_nodes for device in devices]
        indices = ",".join(str(device.index) for device in devices)
        return ContainerOptions(
            device_nodes=tuple(dict.fromkeys(nodes)),
            read_only_mounts=tuple(mount.path for mount in access.mounts),
            device_request=identities if access.device_request else (),
            request_driver=access.device_request,
            groups=access.groups,
            engine_runtime=access.engine_runtime,
            environment={name: text.replace("{index}", indices) for name, text in access.environment.items()},
            capabilities=tuple(access.capabilities),
            security_options=tuple(access.security_options),
            host_ipc=access.host_ipc,
            shm_bytes=access.shm_bytes,
            network=access.network,
            ulimits=dict(access.ulimits),
        )

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        """Return one sample of each device from one run of the monitor. A missing value is None with a reason."""
        if self.spec.monitor is None:
            return [empty_sample(device.index, "vendor.yaml has no monitor") for device in devices]
        parsed, samples = self._records(self.spec.monitor), list[Sample]()
        for device in devices:
            record = parsed.records.get(device.index)
            identity = record and record.word("identity")
            if record is None:
                samples.append(empty_sample(device.index, parsed.missing_record_reason(device.index)))
            elif identity and device.identity and identity != device.identity:
                samples.append(empty_sample(device.index, f"index {device.index} is another device now: {identity}"))
            else:
                readers: dict[str, ValueReader] = {
                    name: partial(record.quantity, field) for name, field in _SAMPLE_FIELDS.items()
                }
                readers["memory_used_bytes"] = partial(_used_bytes, record, device.memory_bytes)
                samples.append(read_sample(device.index, readers))
        return samples

    def software(self) -> dict[str, str]:
        """Return the version of the kernel, and of each command of vendor.yaml, or why it is unreadable."""
        versions = {"kernel": f"{platform.system()} {platform.release()}"}
        for name, command in self.spec.software.items():
            answer = self._ask(command.command, command.timeout_seconds)
            if answer.text is None:
                versions[name] = f"unreadable: {answer.reason}"
                continue
            mismatch = f"nothing in {command.command[0]}'s output matches {command.pattern}"
            try:
                match = next(find_matches(command.pattern, answer.text), None)
            except ValueError as error:
                match, mismatch = None, str(error)
            text = match and ((match[1] if match.re.groups else match[0]) or "unreadable: an empty text")
            versions[name] = f"unreadable: {mismatch}" if match is None else str(text)
        return versions

    def node_commands(self) -> NodeCommands:
        """Return the monitor, which is repeated, and the commands of discovery and software, which run once."""
        monitor, discovery, numbering = self.spec.monitor, self.spec.discovery, self.spec.numbering
        tools = {
            "discovery": discovery and discovery.tool, "monitor": monitor, "topology": self.spec.topology,
            "numbering": numbering and numbering.tool, **self.spec.software,
        }  # fmt: skip
        fact_commands = {
            name: NodeCommand(argv=tool.command, timeout_seconds=tool.timeout_seconds)
            for name, tool in tools.items()
            if tool
        }
        return NodeCommands((fact_commands["monitor"],) if monitor else (), fact_commands)

    def replayed(self, ask: Ask) -> Vendor | None:
        """Return this vendor over recorded answers; None for a subclass, whose own code may read this machine."""
        return DeclaredVendor(self.spec, ask, self._root) if type(self) is DeclaredVendor else None

    def _records(self, tool: Tool | None) -> ParsedOutput:
        if tool is None:
            return ParsedOutput({})
        answer = self._ask(tool.command, tool.timeout_seconds)
        if answer.text is not None:
            return parse_output(tool, answer.text)
        return ParsedOutput(
            {}, no_output_reason=answer.reason, no_device_reason=None if answer.absent else answer.reason
        )

    def _all_devices(self) -> DeviceList:
        """Return the devices that discovery lists. The monitor's record of the same index adds missing values."""
        discovery = self.spec.discovery
        listed = self._records(discovery.tool if discovery and discovery.tool else self.spec.monitor)
        if listed.no_device_reason and not (discovery and discovery.device_nodes):
            return DeviceList(problem=listed.no_device_reason)
        monitored = self._records(self.spec.monitor) if discovery and discovery.tool else listed
        indices = set(listed.records)
        if discovery and discovery.device_nodes:
            names = (path.name for path in self._root.glob(discovery.device_nodes.lstrip("/")))
            indices = {int(match[0]) for name in names if (match := re.search("[0-9]+$", name))}
        numbering = self._records(self.spec.numbering.tool) if self.spec.numbering and indices else ParsedOutput({})
        sources = [parsed.records for parsed in (listed, monitored, numbering)]
        records_by_index = {
            index: [source[index] for source in sources if index in source] for index in sorted(indices)
        }
        visible_values, devices = dict[int, str | None](), []
        fields: tuple[FieldName, ...] = ("visible", "name", "identity", "compute_units")
        for index, rows in records_by_index.items():  # each value comes from the first record that holds it
            words = (next(filter(None, (record.word(field) for record in rows)), None) for field in fields)
            visible_values[index], name, identity, units = words
            sizes = (read_value("memory_bytes", partial(record.quantity, "memory_total"), {}) for record in rows)
            memory = next((int(size) for size in sizes if size is not None), None)
            chip = chip_named(self.spec, name) if name else None
            count = int(units) if units and re.fullmatch("[0-9]{1,6}", units) else None
            description = name or f"{self.spec.name} device {index}"
            devices.append(Device(index, chip, description, memory, identity, compute_units=count))
        missing_reason = next(
            (numbering.missing_record_reason(index) for index in records_by_index if visible_values[index] is None),
            "two have one number",
        )
        devices = assign_visible_values(self.spec, devices, visible_values, missing_reason)
        unnumbered_reason = next((d.unnumbered_reason for d in devices if d.unnumbered_reason), None)
        problem = listed.no_device_reason or monitored.no_device_reason or unnumbered_reason or listed.incomplete_reason
        return DeviceList(devices, problem)


def _used_bytes(record: Record, device_bytes: int | None) -> float:
    """Return the memory in use. Raises ValueError for more than the device's, which has a wrong unit or column."""
    used = record.quantity("memory_used")
    if device_bytes is not None and used > device_bytes:
        raise ValueError(f"found {used:.0f} bytes in use, expected at most the device's {device_bytes}")
    return used
