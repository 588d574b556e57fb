"""What the samplers of a run wrote: telemetry.jsonl, or telemetry/node<k>.jsonl for each node.

All times of one file are on the clock of one machine. Nothing compares the times of two files, with one exception: no
two machines read at the same nanosecond again and again, so a file that does is a copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from levelfield.measure.raw_facts import HostReading, PowerReading, Reading
from levelfield.node.regular_files import read_regular
from levelfield.rundir.event_lines import DAMAGED, Event, event_of, mapping, sequence, whole
from levelfield.specs.paths import RunPaths

T = TypeVar("T")
_NODE_FILE = re.compile(r"node(0|[1-9][0-9]{0,5})\.jsonl", re.ASCII)
_RAW = ".raw.jsonl"  # what the tools printed on a node; the other file is made from it
_COPIED = 0.5  # of the lines of a file
_LARGEST = 1e100


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


def read_telemetry(paths: RunPaths, broken: list[str]) -> tuple[NodeTelemetry, ...]:
    """Return the telemetry by machine; nothing for a machine without a file. Damaged lines are added to `broken`."""
    files = _node_files(paths, broken)
    if not files:
        return (_telemetry(None, paths.telemetry, broken),) if paths.telemetry.exists() else ()
    if paths.telemetry.exists():
        broken.append("telemetry.jsonl: found beside telemetry/; a run has one of the two")
    telemetry = tuple(_telemetry(node, path, broken) for node, path in files)
    broken += _copies(telemetry)
    return telemetry


@dataclass(frozen=True)
class NodePowerTrace:
    """What was read of a node's power, on the platform's clock. source: what was read. error: what went wrong last."""

    readings: tuple[PowerReading, ...] = ()
    source: str | None = None
    error: str | None = None


def read_node_power(paths: RunPaths, broken: list[str]) -> dict[int, NodePowerTrace]:
    """Return what was read of the nodes' power, by node. Damaged lines are added to `broken`."""
    name, lines, traces = paths.node_power.name, dict[int, list[Event]](), {}
    for line in read_lines(paths.node_power, broken):
        for node in _built(lambda answer: [whole(answer["node"])], "an answer", line, broken, name):
            lines.setdefault(node, []).append(line)
    for node, answers in sorted(lines.items()):
        readings = tuple(reading for line in answers for reading in _built(_power, "an answer", line, broken, name))
        texts = {key: str(line[key]) for line in answers for key in ("source", "error") if key in line}
        traces[node] = NodePowerTrace(readings, texts.get("source"), texts.get("error"))
    return traces


def _power(line: Event) -> list[PowerReading]:
    if "watts" not in line:
        return []
    stamp, period = line.get("stamp"), number_or_none(line.get("period_seconds"))
    times = whole(line["time_ns"]), whole(line["wall_ns"])
    return [PowerReading(*times, number(line["watts"]), None if stamp is None else str(stamp), period)]


def _node_files(paths: RunPaths, broken: list[str]) -> list[tuple[int, Path]]:
    files = []
    for path in sorted(paths.telemetry_folder.glob("*")):
        if match := _NODE_FILE.fullmatch(path.name):
            files.append((int(match[1]), path))
        elif not path.name.endswith(_RAW):
            broken.append(f"telemetry/{path.name}: not the telemetry of a node")
    return sorted(files)


def _telemetry(node: int | None, path: Path, broken: list[str]) -> NodeTelemetry:
    name = path.name if node is None else f"{path.parent.name}/{path.name}"
    lines = list(read_lines(path, broken, name))
    return NodeTelemetry(
        node,
        tuple(r for line in lines for r in _built(_readings, "a reading", line, broken, name)),
        tuple(r for line in lines for r in _built(_host_reading, "a reading of the host", line, broken, name)),
        tuple(pair for line in lines for pair in _built(_wall_clock, "a time of day", line, broken, name)),
        _reasons(lines),
    )


def _copies(telemetry: Iterable[NodeTelemetry]) -> Iterator[str]:
    """Return a sentence for each node whose readings are those of another node."""
    first: dict[int, int] = {}
    for node in telemetry:
        times = {time for time, _ in node.wall_clock} or {reading.time_ns for reading in node.readings}
        owners = [first[time] for time in times if time in first]
        if owners and len(owners) >= _COPIED * len(times):
            yield f"telemetry/node{node.node}.jsonl: its readings have the times of node{owners[0]}'s: it is a copy"
        first |= {time: node.node or 0 for time in times if time not in first}


def read_lines(path: Path, broken: list[str], name: str | None = None) -> Iterator[Event]:
    """Return the JSON objects of a file, one per line. Other lines go to `broken`; an incomplete last line does not."""
    try:
        lines = read_regular(path).split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        broken.append(f"{name or path.name}: {error.strerror}")
        return
    for number, line in enumerate(lines[:-1], start=1):  # after the last newline: nothing, or an incomplete line
        try:
            event = event_of(line)
        except ValueError:
            broken.append(f"{name or path.name} line {number}: not an event: {line[:60]!r}")
            continue
        yield event


def _built(build: Callable[[Event], Sequence[T]], what: str, line: Event, broken: list[str], name: str) -> Sequence[T]:
    """Return what is built from a line; nothing, and a sentence in `broken`, for a damaged one."""
    try:
        return build(line)
    except DAMAGED as error:
        broken.append(f"{name}: {what} is damaged: {type(error).__name__} {error}")
        return ()


def _readings(line: Event) -> list[Reading]:
    is_before = bool(line.get("before"))
    return [
        Reading(
            time_ns=whole(line["time_ns"]),
            device=str(sample["index"]),
            power_watts=number_or_none(sample.get("power_watts")),
            energy_joules=number_or_none(sample.get("energy_joules")),
            memory_used_bytes=whole_or_none(sample.get("memory_used_bytes")),
            utilisation=number_or_none(sample.get("utilisation")),
            temperature_celsius=number_or_none(sample.get("temperature_celsius")),
            before=is_before,
            reasons={str(name): str(reason) for name, reason in dict(sample.get("reasons") or {}).items()},
        )
        for sample in line["samples"]
    ]


def _host_reading(line: Event) -> list[HostReading]:
    if (host := line.get("host")) is None:
        return []
    own_seconds, is_before = number_or_none(host["own_seconds"]), bool(line.get("before"))
    times = whole(host["time_ns"]), number(host["busy_seconds"]), own_seconds
    return [HostReading(*times, whole(host["cores"]), is_before)]


def _wall_clock(line: Event) -> list[tuple[int, int]]:
    return [] if line.get("wall_ns") is None else [(whole(line["time_ns"]), whole(line["wall_ns"]))]


def number_or_none(value: Any) -> float | None:
    """Return a number. Events hold values that JSON lacks as words: "nan", "inf", "-inf"."""
    return None if value is None else number(value)


def number(value: Any) -> float:
    """Return a number; infinite beyond _LARGEST: no figure of a training is so large, and sums of such overflow."""
    figure = float(value)
    return math.copysign(math.inf, figure) if abs(figure) > _LARGEST else figure


def whole_or_none(value: Any) -> int | None:
    return None if value is None else whole(value)


def _reasons(lines: list[Event]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for line in lines:
        for sample in sequence(line.get("samples")):
            reasons |= {str(name): str(text) for name, text in mapping(mapping(sample).get("reasons")).items()}
        if "error" in line:
            reasons["tool"] = str(line["error"])
    return reasons
