"""The raw files of a run, read into records: events of each rank, telemetry, and how each process ended.

A killed process may leave an incomplete last line, which is dropped. A broken line anywhere else means
that another process wrote into the file. It is reported, and makes the run invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.measure.platform_clock import Sighting, WindowSighting
from levelfield.measure.raw_facts import FinalSlice, GradientShare, HostReading, Reading, StepRecord, WeightSlice
from levelfield.rundir.event_lines import DAMAGED, Event, event_of, whole
from levelfield.rundir.system_facts import system_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import System


@dataclass(frozen=True)
class RawRecords:
    """All raw records of a run. `broken`: lines that are not events, as sentences.

    wall_clock: pairs of the monotonic clock and the time of day, in ns. seen: the windows by the platform's clock.
    """

    steps: tuple[StepRecord, ...] = ()
    weights: tuple[WeightSlice, ...] = ()
    gradients: tuple[GradientShare, ...] = ()
    final: tuple[FinalSlice, ...] = ()
    begins: dict[int, int] = field(default_factory=dict)
    errors: dict[int, Event] = field(default_factory=dict)
    frameworks: dict[int, Event] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    readings: tuple[Reading, ...] = ()
    host: tuple[HostReading, ...] = ()
    wall_clock: tuple[tuple[int, int], ...] = ()
    telemetry_reasons: dict[str, str] = field(default_factory=dict)
    seen: dict[int, WindowSighting] = field(default_factory=dict)
    outcome: Event = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    inherited: dict[str, str] = field(default_factory=dict)
    system: System | None = None
    provenance: Event = field(default_factory=dict)

    @property
    def oom_kills(self) -> int:
        """How many processes of the run the kernel killed for memory, as the launcher counted them."""
        count = str(self._extra.get("oom_kills", ""))
        return int(count) if count.isdecimal() else 0

    @property
    def oom_evidence(self) -> str | None:
        """How the kills for memory are known, in the launcher's words."""
        said = self._extra.get("oom_evidence")
        return str(said) if said else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences of the launcher for the result."""
        return tuple(str(self._extra.get("warnings", "")).splitlines())

    @property
    def _extra(self) -> Event:
        found = self.outcome.get("extra")
        return found if isinstance(found, dict) else {}

    @property
    def steps_done(self) -> int:
        """The number of steps that every rank finished, among ranks with any event."""
        ranks = {r.rank for r in self.steps} | set(self.frameworks)
        return min((max((r.step for r in self.steps if r.rank == rank), default=0) for rank in ranks), default=0)


def read_raw(paths: RunPaths) -> RawRecords:
    """Read a run directory. A missing file gives an empty part."""
    broken: list[str] = []
    pairs = [(rank, event) for rank, path in _event_files(paths, broken) for event in read_lines(path, broken)]
    telemetry = list(read_lines(paths.telemetry, broken))
    outcome, provenance = _outcome(paths.outcome), _json(paths.provenance)
    return RawRecords(
        steps=tuple(_records(pairs, "step", _step, broken)),
        weights=tuple(w for found in _records(pairs, "weights", _weights, broken) for w in found),
        gradients=tuple(g for found in _records(pairs, "gradients", _gradients, broken) for g in found),
        final=tuple(f for found in _records(pairs, "final_weights", _final, broken) for f in found),
        begins=dict(_records(pairs, "begin", lambda rank, e: (rank, whole(e["end_ns"])), broken)),
        errors={rank: e for rank, e in pairs if e.get("event") == "error"},
        frameworks={rank: e for rank, e in pairs if e.get("event") == "framework"},
        ended=frozenset(rank for rank, e in pairs if e.get("event") == "end"),
        readings=tuple(r for line in telemetry for r in _readings(line, broken)),
        host=tuple(r for line in telemetry for r in _host_reading(line, broken)),
        wall_clock=tuple(pair for line in telemetry for pair in _wall_clock(line, broken)),
        telemetry_reasons=_telemetry_reasons(telemetry),
        seen=dict(_sightings(outcome, broken)),
        outcome=outcome,
        broken=tuple(broken),
        inherited=_inherited(provenance),
        system=system_of(provenance),
        provenance=provenance,
    )


def _event_files(paths: RunPaths, broken: list[str]) -> list[tuple[int, Path]]:
    """Return each rank's file, by rank. Other files are added to `broken`."""
    found = []
    for path in sorted(paths.events.glob("*.jsonl")):
        rank = path.stem.removeprefix("rank")
        if rank.isdecimal():
            found.append((int(rank), path))
        else:
            broken.append(f"{path.name}: not the events of a rank")
    return sorted(found)


def read_lines(path: Path, broken: list[str]) -> Iterator[Event]:
    """Return the JSON objects of a file, one per line. Other lines go to `broken`; an incomplete last line does not."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    for number, line in enumerate(lines[:-1], start=1):  # after the last newline: nothing, or an incomplete line
        try:
            event = event_of(line)
        except ValueError:
            broken.append(f"{path.name} line {number}: not an event: {line[:60]!r}")
            continue
        yield event


def _records(pairs: list[tuple[int, Event]], kind: str, build: Any, broken: list[str]) -> Iterator[Any]:
    for rank, event in pairs:
        if event.get("event") != kind:
            continue
        try:
            yield build(rank, event)
        except DAMAGED as error:
            broken.append(f"rank{rank}.jsonl: a {kind} event is damaged: {type(error).__name__} {error}")


def _step(rank: int, event: Event) -> StepRecord:
    return StepRecord(
        rank=rank,
        step=whole(event["step"]),
        end_ns=whole(event["end_ns"]),
        loss=_number(event["loss"]),
        grad_norm=_number(event["grad_norm"]),
        tokens=whole(event["tokens"]),
        tokens_checksum=_whole(event.get("tokens_checksum")),
        learning_rate=_number(event.get("learning_rate")),
        loss_scale=_number(event.get("loss_scale")),
        skipped=bool(event.get("skipped")),
        memory={kind: _whole(size) for kind, size in dict(event.get("memory") or {}).items()},
    )


def _weights(rank: int, event: Event) -> list[WeightSlice]:
    return [
        WeightSlice(
            rank,
            name.strip(),
            tuple(map(whole, shape)),
            tuple((whole(a), whole(b)) for a, b in slices),
            int(checksum, 16),
        )
        for name, shape, slices, checksum in event["parameters"]
    ]


def _final(rank: int, event: Event) -> list[FinalSlice]:
    return [
        FinalSlice(
            rank,
            name.strip(),
            tuple(map(whole, shape)),
            tuple((whole(a), whole(b)) for a, b in slices),
            (float(square), *map(float, projections)),
        )
        for name, shape, slices, (square, *projections) in event["parameters"]
    ]


def _gradients(rank: int, event: Event) -> list[GradientShare]:
    return [GradientShare(rank, whole(event["step"]), name, float(square)) for name, square in event["squares"].items()]


def _number(value: Any) -> float | None:
    """Return a number. Events hold values that JSON lacks as words: "nan", "inf", "-inf"."""
    return None if value is None else float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else whole(value)


def _readings(line: Event, broken: list[str]) -> list[Reading]:
    try:
        is_before = bool(line.get("before"))
        return [_reading(whole(line["time_ns"]), sample, is_before) for sample in line["samples"]]
    except DAMAGED as error:
        broken.append(f"telemetry.jsonl: a reading is damaged: {type(error).__name__} {error}")
        return []


def _host_reading(line: Event, broken: list[str]) -> list[HostReading]:
    if line.get("host") is None:
        return []
    try:
        host = line["host"]
        own, is_before = _number(host["own_seconds"]), bool(line.get("before"))
        return [HostReading(whole(host["time_ns"]), float(host["busy_seconds"]), own, whole(host["cores"]), is_before)]
    except DAMAGED as error:
        broken.append(f"telemetry.jsonl: a reading of the host is damaged: {type(error).__name__} {error}")
        return []


def _wall_clock(line: Event, broken: list[str]) -> list[tuple[int, int]]:
    if line.get("wall_ns") is None:
        return []
    try:
        return [(whole(line["time_ns"]), whole(line["wall_ns"]))]
    except DAMAGED as error:
        broken.append(f"telemetry.jsonl: a time of day is damaged: {type(error).__name__} {error}")
        return []


def _sightings(outcome: Event, broken: list[str]) -> Iterator[tuple[int, WindowSighting]]:
    """Return the window as the platform saw it, by rank; without ranks whose window it did not see whole."""
    try:
        for rank, ends in dict(outcome.get("seen") or {}).items():
            if {"begin", "end"} <= ends.keys():
                begin, end = (Sighting(*map(whole, ends[name])) for name in ("begin", "end"))
                yield int(rank), WindowSighting(begin, end)
    except DAMAGED as error:
        broken.append(f"outcome.json: key 'seen' is damaged: {type(error).__name__} {error}")


def _reading(time_ns: int, sample: Event, is_before: bool) -> Reading:
    return Reading(
        device=str(sample["index"]),
        time_ns=time_ns,
        power_watts=_number(sample.get("power_watts")),
        energy_joules=_number(sample.get("energy_joules")),
        memory_used_bytes=_whole(sample.get("memory_used_bytes")),
        utilisation=_number(sample.get("utilisation")),
        temperature_celsius=_number(sample.get("temperature_celsius")),
        before=is_before,
        reasons={str(name): str(why) for name, why in dict(sample.get("reasons") or {}).items()},
    )


def _telemetry_reasons(telemetry: list[Event]) -> dict[str, str]:
    """Return the last reason of the vendor's tool for each figure that it could not read."""
    found: dict[str, str] = {}
    for line in telemetry:
        samples = line.get("samples")
        for sample in samples if isinstance(samples, list) else ():
            reasons = sample.get("reasons") if isinstance(sample, dict) else None
            found.update({str(k): str(v) for k, v in reasons.items()} if isinstance(reasons, dict) else {})
        if "error" in line:
            found["tool"] = str(line["error"])
    return found


def _outcome(path: Path) -> Event:
    """Return how the run ended; nothing for a damaged file. Of the ends, those of a rank by numbers are kept."""
    content = _json(path)
    if not isinstance(content.get("cause"), str):
        return {}
    ends = content.get("ends")
    evidence = content.get("evidence")
    return {
        **content,
        "ends": [end for end in ends if _is_end(end)] if isinstance(ends, list) else [],
        "evidence": None if evidence is None else str(evidence),
    }


def _is_end(end: Any) -> bool:
    if not isinstance(end, dict) or not isinstance(end.get("rank"), int):
        return False
    return all(isinstance(end.get(name), (int, type(None))) for name in ("exit_code", "signal", "process"))


def _inherited(provenance: Event) -> dict[str, str]:
    """Return the variables that the training took from the user's shell, as the provenance has them."""
    found = provenance.get("inherited")
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def _json(path: Path) -> Event:
    try:
        return event_of(path.read_text())
    except (OSError, ValueError):
        return {}
