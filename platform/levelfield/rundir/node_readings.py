"""Makes telemetry/node<k>.jsonl: the vendor's adapter reads what its tools printed on a node.

Each line keeps its times, which are of the node's clock, and the load of the node's processors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from levelfield.contracts.readings import plausible_samples, visible_value_tool
from levelfield.contracts.tool_records import parse_output
from levelfield.contracts.vendor import NOT_REPLAYABLE, Device, ReplayableVendor, Vendor, replaying_ask
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import write_atomically, write_json
from levelfield.rundir.event_lines import mapping, object_or_none, sequence
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

_COPIED_KEYS = ("time_ns", "wall_ns", "before", "host")


def write_node_readings(paths: RunPaths, plan: Plan, vendor: Vendor) -> None:
    """Write the readings of each node that left what its tools printed. Raises OSError for a full disk."""
    tool = visible_value_tool(vendor.spec)
    for node in range(plan.hardware.nodes):
        try:
            recorded = read_regular(paths.node_raw_telemetry(node), "telemetry")
        except FileNotFoundError:
            continue
        except OSError as error:
            recorded = f"{error.filename}: {error.strerror}\n".encode()  # no reading: the run is invalid by it
        # by the index of a device in the runtime, as plans have it: its index in the tool, where they differ
        tool_indices: dict[int, int] = {}
        facts = None
        with suppress(OSError):
            facts = object_or_none(read_regular(paths.node_facts(node), "facts"))
        if tool and facts is not None:
            text = replaying_ask(mapping(facts.get("tools")).values())(tool.command, tool.timeout_seconds).text
            visible = {
                index: record.word("visible") for index, record in parse_output(tool, text or "").records.items()
            }
            tool_indices = {int(word): index for index, word in visible.items() if word and word.isdecimal()}
            tool_indices = tool_indices if len(tool_indices) == len(visible) else {}
        write_atomically(paths.node_telemetry(node), "".join(_telemetry_lines(recorded, plan, vendor, tool_indices)))


def write_node_software(paths: RunPaths, plan: Plan, vendor: Vendor) -> None:
    """Write the versions that each node's facts show. Raises OSError for a full disk."""
    for node in range(plan.hardware.nodes):
        try:
            facts = object_or_none(read_regular(paths.node_facts(node), "facts"))
        except OSError:
            continue  # raw_files finds no facts of this node either
        answers = replaying_ask(mapping(mapping(facts).get("tools")).values())
        adapter = vendor.replayed(answers) if isinstance(vendor, ReplayableVendor) else None
        if adapter is None:
            continue
        try:  # without the kernel, which is that of the machine where the adapter runs
            versions = {name: text for name, text in adapter.software().items() if name != "kernel"}
        except Exception as error:  # an adapter may raise anything
            versions = {"error": f"{type(error).__name__}: {error}"}
        write_json(paths.node_software(node), versions)


def _telemetry_lines(recorded: bytes, plan: Plan, vendor: Vendor, tool_indices: Mapping[int, int]) -> Iterator[str]:
    """Yield a line of telemetry for each whole recorded line. A line that is no object stays: its reader reports it."""
    answers, hardware = replaying_ask(()), plan.hardware
    memory, indices = hardware.memory_bytes_per_device, hardware.device_indices
    if hardware.is_host and not indices:  # a host that is divided into shares is one device with the node's memory
        memory, indices = None, (0,)
    devices = {
        index: Device(tool_indices.get(index, index), hardware.chip.name, hardware.description, memory)
        for index in indices or range(hardware.devices_per_node)
    }
    plan_numbers = {device.index: number for number, device in devices.items()}
    # The adapter lives through all lines of a node: it has counters. The answers are those of one line at a time.
    adapter = None
    if isinstance(vendor, ReplayableVendor):
        adapter = vendor.replayed(lambda argv, timeout_seconds: answers(argv, timeout_seconds))
    for line in recorded.split(b"\n")[:-1]:
        event = object_or_none(line)
        if event is None:
            yield line.decode("utf-8", "replace") + "\n"
            continue
        answers = replaying_ask(sequence(event.get("outputs")))
        readings: dict[str, object] = {"samples": []}  # of a line without outputs, written before a tool was run
        if adapter is None:
            readings["error"] = NOT_REPLAYABLE
        elif event.get("outputs"):
            readings = plausible_samples(adapter, list(devices.values()))
            samples = sequence(readings["samples"])
            readings["samples"] = [{**s, "index": plan_numbers.get(s["index"], s["index"])} for s in samples]
        times = {name: event[name] for name in _COPIED_KEYS if event.get(name) is not None}
        yield json.dumps({**times, **readings}) + "\n"
