"""The recorded run as if each of its two ranks had been on a node of its own, with a clock of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from recorded_runs import BEGIN_NS, SECOND_NS, USED_BYTES, WATTS, Event, seal_again

HOUR_NS = 3600 * SECOND_NS
WALL_NS = 1_767_323_050 * SECOND_NS  # the time of day at which the training begins
CORES = 4
NODES = 2


def spread(run: RunPaths, ahead_ns: int = HOUR_NS, rate: float = 1.0, wall_ahead_ns: int = 0) -> RunPaths:
    """Put rank 1 on a node whose clock is `ahead_ns` ahead and runs at `rate`; node1 uses twice node0's power."""
    plan = read_plan(run)
    hardware = {"nodes": NODES, "devices_per_node": 1, "device_indices": (0,)}
    plan = plan.model_copy(update={"hardware": plan.hardware.model_copy(update=hardware)})
    run.plan.write_text(dump(plan))
    lines = [json.loads(line) for line in run.telemetry.read_text().splitlines()]
    run.telemetry.unlink()
    run.telemetry_folder.mkdir()
    run.nodes.mkdir(exist_ok=True)
    for node, (ahead, speed) in enumerate(((0, 1.0), (ahead_ns, rate))):
        _retime(run.events / f"rank{node}.jsonl", ahead, speed)
        events = [_of_node(line, node, ahead, speed, wall_ahead_ns * node) for line in lines]
        write_lines(run.node_telemetry(node), events)
        run.node_facts(node).write_text(json.dumps(_facts(node, ahead, wall_ahead_ns * node)))
    seal_again(run)
    return run


def write_lines(path: Path, lines: list[Event]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lines_of(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def moved(time_ns: int, ahead_ns: int, rate: float) -> int:
    return BEGIN_NS + round((time_ns - BEGIN_NS) * rate) + ahead_ns


def _retime(path: Path, ahead_ns: int, rate: float) -> None:
    events = lines_of(path)
    for event in events:
        if "end_ns" in event:
            event["end_ns"] = moved(event["end_ns"], ahead_ns, rate)
    write_lines(path, events)


def _of_node(line: Event, node: int, ahead_ns: int, rate: float, wall_ahead_ns: int) -> Event:
    """One reading of a node: its device 0, and its host, of whose cores other programs use none."""
    sample = {**line["samples"][0], "power_watts": WATTS * (node + 1), "memory_used_bytes": USED_BYTES + node}
    time_ns = moved(line["time_ns"] - (node + 1) * 1000, ahead_ns, rate)
    seconds = (time_ns - BEGIN_NS - ahead_ns) / SECOND_NS
    host: dict[str, Any] = {"busy_seconds": seconds, "own_seconds": seconds, "cores": CORES, "time_ns": time_ns}
    wall_ns = WALL_NS + time_ns - BEGIN_NS - ahead_ns + wall_ahead_ns
    return {"time_ns": time_ns, "wall_ns": wall_ns, "samples": [{**sample, "utilisation": 0.5}], "host": host}


def _facts(node: int, ahead_ns: int, wall_ahead_ns: int) -> Event:
    return {
        "schema": "levelfield.node-facts/1",
        "node_rank": node,
        "hostname": f"rack-{node}",
        "addresses": [f"10.0.0.{node + 1}"],
        "kernel": "6.1.0",
        "python": "3.11.2",
        "cores": CORES,
        "usable_cores": CORES,
        "memory_bytes": 2**34,
        "boot_id": f"{node:08d}-0000-0000-0000-000000000000",
        "monotonic_ns": BEGIN_NS + ahead_ns,
        "wall_ns": WALL_NS + wall_ahead_ns,
        "interfaces": {
            "eth0": {"addresses": [f"10.0.0.{node + 1}"], "address": f"02:42:0a:00:00:0{node + 1}", "speed": 25000}
        },
        "tools": {"driver": {"argv": ["chip-smi"], "text": "535.1"}},
    }
