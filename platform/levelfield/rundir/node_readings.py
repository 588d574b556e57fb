"""Makes telemetry/node<k>.jsonl: what the vendor's adapter reads in what the tools printed on a node.

Each line keeps its times, which are of the node's clock, and the load of the node's processors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from levelfield.contracts.command import CommandOutput
from levelfield.contracts.readings import plausible_samples
from levelfield.contracts.vendor import NOT_REPLAYABLE, Device, Vendor, answers_of, replayed
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import write_atomically, write_json
from levelfield.rundir.event_lines import Event, event_or_none, listed, mapping
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

_KEPT = ("time_ns", "wall_ns", "before", "host")


def read_nodes(paths: RunPaths, plan: Plan, vendor: Vendor) -> None:
    """Write the readings of each node that left what its tools printed. Raises OSError for a full disk."""
    for node in range(plan.hardware.nodes):
        try:
            recorded = read_regular(paths.node_raw_telemetry(node))
        except FileNotFoundError:
            continue
        except OSError as error:
            recorded = f"{error.filename}: {error.strerror}\n".encode()  # no reading: the run is invalid by it
        write_atomically(paths.node_telemetry(node), "".join(_lines(recorded, plan, vendor)))


def read_software(paths: RunPaths, plan: Plan, vendor: Vendor) -> None:
    """Write the versions that each node's facts show. Raises OSError for a full disk."""
    for node in range(plan.hardware.nodes):
        try:
            facts = event_or_none(read_regular(paths.node_facts(node)))
        except OSError:
            continue  # raw_files finds no facts of this node either
        adapter = replayed(vendor, answers_of(mapping(mapping(facts).get("tools")).values()))
        if adapter is not None:
            write_json(paths.node_software(node), _versions(adapter))


def _versions(adapter: Vendor) -> dict[str, str]:
    """Return the versions without the kernel, which is that of the machine where the adapter runs."""
    try:
        return {name: text for name, text in adapter.software().items() if name != "kernel"}
    except Exception as error:  # an adapter may raise anything
        return {"error": f"{type(error).__name__}: {error}"}


def _lines(recorded: bytes, plan: Plan, vendor: Vendor) -> Iterator[str]:
    """Return a line for each whole one. What is no object stays as it is: whoever reads the file reports it."""
    answers, devices = answers_of(()), _devices(plan)

    def ask(argv: Sequence[str], timeout_seconds: float) -> CommandOutput:
        return answers(argv, timeout_seconds)  # of one line at a time

    adapter = replayed(vendor, ask)  # lives through all lines of a node: it has counters
    for line in recorded.split(b"\n")[:-1]:
        found = event_or_none(line)
        if found is None:
            yield line.decode("utf-8", "replace") + "\n"
            continue
        answers = answers_of(listed(found.get("outputs")))
        kept = {name: found[name] for name in _KEPT if found.get(name) is not None}
        yield json.dumps({**kept, **_samples(adapter, devices, found)}) + "\n"


def _samples(adapter: Vendor | None, devices: Sequence[Device], line: Event) -> dict[str, object]:
    """Return the samples; none for a line without outputs, which the node wrote before it ran a tool."""
    if adapter is None:
        return {"samples": [], "error": NOT_REPLAYABLE}
    return plausible_samples(adapter, devices) if line.get("outputs") else {"samples": []}


def _devices(plan: Plan) -> list[Device]:
    """Return the devices of a node. A host that is divided into shares is one, and its memory is the node's own."""
    hardware = plan.hardware
    if hardware.is_host and not hardware.device_indices:
        return [Device(0, hardware.chip.name, hardware.description, None)]
    indices = hardware.device_indices or range(hardware.devices_per_node)
    return [Device(i, hardware.chip.name, hardware.description, hardware.memory_bytes_per_device) for i in indices]
