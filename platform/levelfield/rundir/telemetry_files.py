"""Reads what the samplers of a run wrote: telemetry.jsonl, or telemetry/node<k>.jsonl for each node.

All times of one file are on the clock of one machine. Nothing compares the times of two files, with one exception: no
two machines read at the same nanosecond again and again, so a file that does is a copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from levelfield.measure.raw_facts import HostReading, PowerReading, Reading
from levelfield.node.regular_files import read_regular
from levelfield.rundir.event_lines import DAMAGE_ERRORS, JsonObject, mapping, parse_object, sequence, truncated_number
from levelfield.specs.paths import RunPaths

T = TypeVar("T")
_NODE_FILE = re.compile(r"node(0|[1-9][0-9]{0,5})\.jsonl", re.ASCII)
_RAW_SUFFIX = ".raw.jsonl"  # what the tools printed on a node; the other file is made from it
_COPIED_SHARE = 0.5  # of a file's times: with as many of another node's, it is a copy
_MAX_FIGURE = 1e100


@dataclass(frozen=True)
class NodeTelemetry:
    """What one machine's sampler read, on that machine's clock. wall_clock: pairs with the time of day, in ns.

    node: None for the platform's own machine. reasons: the last one of the vendor's tool, by figure.
    """

    node: int | None = None
    readings: tuple[Reading, ...] = ()
    host: tuple[HostReading, ...] = ()
    wall_clock: tuple[tuple[int, int], ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


def read_telemetry(paths: RunPaths, damage_sentences: list[str]) -> tuple[NodeTelemetry, ...]:
    """Return the telemetry by machine; nothing for a machine without a file.

    Each damaged line gets a sentence in `damage_sentences`.
    """
    files = []
    for path in sorted(paths.telemetry_folder.glob("*")):
        if match := _NODE_FILE.fullmatch(path.name):
            files.append((int(match[1]), path))
        elif not path.name.endswith(_RAW_SUFFIX):
            damage_sentences.append(f"telemetry/{path.name}: not the telemetry of a node")
    if not files:
        return (_read_node_telemetry(None, paths.telemetry, damage_sentences),) if paths.telemetry.exists() else ()
    if paths.telemetry.exists():
        damage_sentences.append("telemetry.jsonl: found beside telemetry/; a run has one of the two")
    telemetry = tuple(_read_node_telemetry(node, path, damage_sentences) for node, path in sorted(files))
    first_nodes: dict[int, int] = {}  # by time, the first node with a reading of it
    for node_telemetry in telemetry:
        times = {time for time, _ in node_telemetry.wall_clock} or {
            reading.time_ns for reading in node_telemetry.readings
        }
        earlier_nodes = [first_nodes[time] for time in times if time in first_nodes]
        if earlier_nodes and len(earlier_nodes) >= _COPIED_SHARE * len(times):
            damage_sentences.append(
                f"telemetry/node{node_telemetry.node}.jsonl: its readings have the times of node{earlier_nodes[0]}'s: "
                "it is a copy"
            )
        first_nodes |= {time: node_telemetry.node or 0 for time in times if time not in first_nodes}
    return telemetry


@dataclass(frozen=True)
class NodePowerTrace:
    """What was read of a node's power, on the platform's clock. source: what was read. error: what went wrong last."""

    readings: tuple[PowerReading, ...] = ()
    source: str | None = None
    error: str | None = None


def read_node_power(paths: RunPaths, damage_sentences: list[str]) -> dict[int, NodePowerTrace]:
    """Return what was read of the nodes' power, by node. Each damaged line gets a sentence in `damage_sentences`."""
    name, lines, traces = paths.node_power.name, dict[int, list[JsonObject]](), {}
    for line in read_lines(paths.node_power, damage_sentences):
        with _report_damage(f"{name}: an answer", damage_sentences):
            lines.setdefault(truncated_number(line["node"]), []).append(line)
    for node, answers in sorted(lines.items()):
        readings: list[PowerReading] = []
        for line in (answer for answer in answers if "watts" in answer):
            with _report_damage(f"{name}: an answer", damage_sentences):
                stamp, period = line.get("stamp"), optional(number, line.get("period_seconds"))
                times = truncated_number(line["time_ns"]), truncated_number(line["wall_ns"])
                text = None if stamp is None else str(stamp)
                readings.append(PowerReading(*times, number(line["watts"]), text, period))
        texts = {key: str(line[key]) for line in answers for key in ("source", "error") if key in line}
        traces[node] = NodePowerTrace(tuple(readings), texts.get("source"), texts.get("error"))
    return traces


def _read_node_telemetry(node: int | None, path: Path, damage_sentences: list[str]) -> NodeTelemetry:
    name = path.name if node is None else f"{path.parent.name}/{path.name}"
    lines = list(read_lines(path, damage_sentences, name))
    readings: list[Reading] = []
    for line in lines:
        with _report_damage(f"{name}: a reading", damage_sentences):
            devices = [str(sample["index"]) for sample in line["samples"]]
            if len({*devices}) < len(devices):
                raise ValueError("found several samples of one device, expected one")
            readings += [
                Reading(
                    time_ns=truncated_number(line["time_ns"]),
                    device=str(sample["index"]),
                    power_watts=optional(number, sample.get("power_watts")),
                    energy_joules=optional(number, sample.get("energy_joules")),
                    memory_used_bytes=optional(truncated_number, sample.get("memory_used_bytes")),
                    utilisation=optional(number, sample.get("utilisation")),
                    temperature_celsius=optional(number, sample.get("temperature_celsius")),
                    before=bool(line.get("before")),
                    reasons={str(name): str(reason) for name, reason in dict(sample.get("reasons") or {}).items()},
                )
                for sample in line["samples"]
            ]
    host_readings: list[HostReading] = []
    for line in lines:
        with _report_damage(f"{name}: a reading of the host", damage_sentences):
            if (host := line.get("host")) is not None:
                own_seconds, is_before = optional(number, host["own_seconds"]), bool(line.get("before"))
                times = truncated_number(host["time_ns"]), number(host["busy_seconds"]), own_seconds
                rank_bytes = optional(truncated_number, host.get("rank_bytes"))
                host_readings.append(HostReading(*times, truncated_number(host["cores"]), is_before, rank_bytes))
    wall_clock: list[tuple[int, int]] = []
    for line in lines:
        with _report_damage(f"{name}: a time of day", damage_sentences):
            if line.get("wall_ns") is not None:
                wall_clock.append((truncated_number(line["time_ns"]), truncated_number(line["wall_ns"])))
    reasons: dict[str, str] = {}
    for line in lines:
        for sample in sequence(line.get("samples")):
            reasons |= {str(name): str(text) for name, text in mapping(mapping(sample).get("reasons")).items()}
        if "error" in line:
            reasons["tool"] = str(line["error"])
    return NodeTelemetry(node, tuple(readings), tuple(host_readings), tuple(wall_clock), reasons)


def read_lines(path: Path, damage_sentences: list[str], name: str | None = None) -> Iterator[JsonObject]:
    """Return the JSON objects of a file, one per line.

    Each other line gets a sentence in `damage_sentences`, but for an incomplete last one.
    """
    try:
        lines = read_regular(path, "telemetry").split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        damage_sentences.append(f"{name or path.name}: {error.strerror}")
        return
    for number, line in enumerate(lines[:-1], start=1):  # after the last newline: nothing, or an incomplete line
        try:
            event = parse_object(line)
        except ValueError:
            damage_sentences.append(f"{name or path.name} line {number}: not an event: {line[:60]!r}")
            continue
        yield event


@contextmanager
def _report_damage(part_name: str, damage_sentences: list[str]) -> Iterator[None]:
    """End the block where a part of a line is damaged, and add a sentence to `damage_sentences`."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        damage_sentences.append(f"{part_name} is damaged: {type(error).__name__} {error}")


def optional(read: Callable[[Any], T], value: Any) -> T | None:
    """Return what `read` makes of a value; None for None."""
    return None if value is None else read(value)


def number(value: Any) -> float:
    """Return a number; infinite beyond _MAX_FIGURE: no figure of a training is so large, and their sums overflow.

    Events hold values that JSON lacks as words: "nan", "inf", "-inf".
    """
    figure = float(value)
    return math.copysign(math.inf, figure) if abs(figure) > _MAX_FIGURE else figure
