"""The raw files of a run, read into records: events of each rank, telemetry, and how each process ended.

A killed process may leave an incomplete last line, which is dropped. A broken line anywhere else means
that another process wrote into the file. It is reported, and makes the run invalid.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelfield.measure.clocks import Sighting, WindowSighting
from levelfield.measure.raw_facts import (
    ChosenExperts,
    ComparedChoices,
    ExpertShare,
    FinalSlice,
    GradientShare,
    StepRecord,
    WeightSlice,
)
from levelfield.measure.sampled_operations import KINDS, SampledOperation, SampledStep, TokenChecksums
from levelfield.rundir.event_lines import (
    DAMAGE_ERRORS,
    JsonObject,
    mapping,
    sequence,
    strict_whole_number,
    truncated_number,
)
from levelfield.rundir.seal import read_document
from levelfield.rundir.telemetry_files import (
    NodePowerTrace,
    NodeTelemetry,
    number,
    optional,
    read_lines,
    read_node_power,
    read_telemetry,
)
from levelfield.specs.base import sha256_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Origin, System
from levelfield.worker.spot_check import unpack_array

Slices = tuple[tuple[int, int], ...]
_MAX_NODE_DIGITS = 6  # of a node's number
MAX_TEXT = 200  # characters of a text about a machine
_FILE_KINDS = ("", ".choices", ".spot_check")  # of a rank's events
_MAX_SAMPLED_NUMBERS = 2**22  # of an array that was sampled


@dataclass(frozen=True)
class RawRecords:
    """All raw records of a run."""

    steps: tuple[StepRecord, ...] = ()
    weights: tuple[WeightSlice, ...] = ()
    gradients: tuple[GradientShare, ...] = ()
    final: tuple[FinalSlice, ...] = ()
    experts: tuple[ExpertShare, ...] = ()
    # Of a model with experts, by rank, the digest of the reference's choices that it follows; None: it follows none.
    choices_digests: dict[int, str | None] = field(default_factory=dict)
    # How a rank's own choices differ from those that it follows.
    compared_choices: tuple[ComparedChoices, ...] = ()
    chosen: tuple[ChosenExperts, ...] = ()  # the choices of a run that follows none
    sampled: tuple[SampledStep, ...] = ()  # what the platform computes again, by rank
    # By rank, when its first step started, by its monotonic clock.
    first_step_start_ns: dict[int, int] = field(default_factory=dict)
    errors: dict[int, JsonObject] = field(default_factory=dict)
    framework_events: dict[int, JsonObject] = field(default_factory=dict)
    # The chip that a stand-in for a device's libraries pretended to be; the stand-in writes this event itself.
    pretended: dict[int, str] = field(default_factory=dict)
    ranks_with_end_event: frozenset[int] = frozenset()
    telemetry: tuple[NodeTelemetry, ...] = ()  # by machine
    node_power: dict[int, NodePowerTrace] = field(default_factory=dict)  # by node, what was read of its power
    node_facts: dict[int, JsonObject] = field(default_factory=dict)  # what each node is, and has
    node_software: dict[int, JsonObject] = field(default_factory=dict)
    node_ends: dict[int, JsonObject] = field(default_factory=dict)  # how each node's part ended
    seen: dict[int, WindowSighting] = field(default_factory=dict)  # the windows by the platform's clock
    outcome: JsonObject = field(default_factory=dict)
    damage_sentences: tuple[str, ...] = ()  # what is unreadable, or not expected, in the raw files
    # What the training's processes inherited from the user's environment.
    inherited_variables: dict[str, str] = field(default_factory=dict)
    system: System | None = None
    provenance: JsonObject = field(default_factory=dict)

    @property
    def oom_kills(self) -> tuple[int, str | None]:
        """How many processes of the run the kernel killed for memory, and how that is known, by the launcher."""
        extra = mapping(self.outcome.get("extra"))
        kills, evidence = str(extra.get("oom_kills", "")), extra.get("oom_evidence")
        return int(kills) if kills.isdecimal() else 0, str(evidence) if evidence else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences of the launcher for the result."""
        return tuple(str(mapping(self.outcome.get("extra")).get("warnings", "")).splitlines())

    @property
    def steps_done(self) -> int:
        """The number of steps that every rank finished, among ranks with a framework event or a step record."""
        done = dict.fromkeys(self.framework_events, 0)
        for record in self.steps:
            done[record.rank] = max(done.get(record.rank, 0), record.step)
        return min(done.values(), default=0)


def read_raw(paths: RunPaths) -> RawRecords:
    """Read a run directory. A missing file gives an empty part."""
    damage_sentences: list[str] = []
    pairs = [
        (rank, event)
        for rank, path in _event_files(paths, damage_sentences)
        for event in read_lines(path, damage_sentences)
    ]
    choices = [
        (rank, e)
        for rank, path in _event_files(paths, damage_sentences, ".choices")
        for e in read_lines(path, damage_sentences)
    ]
    digests = {rank: e.get("follows") for rank, e in choices if e.get("event") == "choices"}
    choices_digests = {rank: None if digest is None else str(digest) for rank, digest in digests.items()}
    telemetry, node_power = read_telemetry(paths, damage_sentences), read_node_power(paths, damage_sentences)
    (outcome, seen, damage), provenance = _read_outcome(paths.outcome), read_document(paths.provenance) or {}
    nodes: dict[str, dict[int, JsonObject]] = {"facts": {}, "software": {}}
    for kind, documents in nodes.items():
        for path in sorted(paths.nodes.glob(f"node*.{kind}.json")):
            node = path.name.removeprefix("node").removesuffix(f".{kind}.json")
            if node.isdecimal() and node.isascii() and len(node) <= _MAX_NODE_DIGITS:
                documents[int(node)] = read_document(path) or {}
    # of two ends of one node the first one counts
    node_ends = [end for end in sequence(outcome.get("nodes")) if type(mapping(end).get("node_rank")) is int]
    return RawRecords(
        steps=tuple(_records(pairs, "step", damage_sentences)),
        weights=tuple(_records(pairs, "weights", damage_sentences)),
        gradients=tuple(_records(pairs, "gradients", damage_sentences)),
        final=tuple(_records(pairs, "final_weights", damage_sentences)),
        experts=tuple(_records(pairs, "experts", damage_sentences)),
        choices_digests=choices_digests,
        compared_choices=tuple(_records(choices, "compared", damage_sentences, ".choices")),
        chosen=tuple(_records(choices, "chosen", damage_sentences, ".choices")),
        sampled=tuple(_sampled_steps(paths, damage_sentences)),
        first_step_start_ns=dict(_records(pairs, "begin", damage_sentences)),
        errors={rank: e for rank, e in pairs if e.get("event") == "error"},
        framework_events={rank: e for rank, e in pairs if e.get("event") == "framework"},
        pretended={rank: str(e.get("chip")) for rank, e in pairs if e.get("event") == "pretended"},
        ranks_with_end_event=frozenset(rank for rank, e in pairs if e.get("event") == "end"),
        telemetry=telemetry,
        node_power=node_power,
        node_facts=nodes["facts"],
        node_software=nodes["software"],
        node_ends={end["node_rank"]: end for end in reversed(node_ends)},
        seen=seen,
        outcome=outcome,
        damage_sentences=(*damage_sentences, *damage),
        inherited_variables={str(name): str(text) for name, text in mapping(provenance.get("inherited")).items()},
        system=system_of(provenance),
        provenance=provenance,
    )


def _event_files(paths: RunPaths, damage_sentences: list[str], kind: str = "") -> list[tuple[int, Path]]:
    """Return each rank's file of a kind, by rank. kind: one of _FILE_KINDS.

    Each other file gets a sentence in `damage_sentences`, for kind "" alone.
    """
    files = []
    for path in sorted(paths.events.glob("*.jsonl")):
        rank, dot, suffix = path.stem.removeprefix("rank").partition(".")
        if rank.isdecimal() and dot + suffix in _FILE_KINDS:
            files += [(int(rank), path)] if dot + suffix == kind else []
        elif not kind:
            damage_sentences.append(f"{path.name}: not the events of a rank")
    return sorted(files)


def _sampled_steps(paths: RunPaths, damage_sentences: list[str]) -> Iterator[SampledStep]:
    """Return what each rank sampled of its steps. A damaged file gives none, and a sentence in `damage_sentences`."""
    for rank, path in _event_files(paths, damage_sentences, ".spot_check"):
        try:
            yield from [_sampled_step(rank, lines) for lines in _lines_by_step(read_lines(path, damage_sentences))]
        except DAMAGE_ERRORS as error:
            damage_sentences.append(f"{path.name}: what was sampled is damaged: {type(error).__name__} {error}")


def _lines_by_step(lines: Iterable[JsonObject]) -> list[list[JsonObject]]:
    """Return the lines of each step: its first one says which. Raises ValueError without a step."""
    steps: list[list[JsonObject]] = []
    for line in lines:
        if line.get("event") == "sampled":
            steps.append([])
        if not steps:
            break
        steps[-1].append(line)
    if not steps:
        raise ValueError("no step")
    return steps


def _sampled_step(rank: int, lines: Sequence[JsonObject]) -> SampledStep:
    """Return what the lines of one step have. Raises one of DAMAGE_ERRORS."""
    first, *others = lines
    operations = tuple(_sampled_operation(line) for line in others if line["event"] not in ("tokens", "losses"))
    tokens = tuple(
        TokenChecksums(str(line["name"]), *(tuple(map(strict_whole_number, line[key])) for key in ("read", "expected")))
        for line in others
        if line["event"] == "tokens"
    )
    losses, factors = (
        tuple(float(number) for line in others if line["event"] == "losses" for number in sequence(line[key]))
        for key in ("losses", "factors")
    )
    step = strict_whole_number(first["step"])
    return SampledStep(rank, step, first["told"] is True, operations, tokens, losses, factors)


def _sampled_operation(event: JsonObject) -> SampledOperation:
    """Return the operation of an event. Raises one of DAMAGE_ERRORS."""
    kind = str(event["event"])
    required, optional_names = KINDS[kind]
    packed = {name: event[name] for name in required} | {
        name: event[name] for name in optional_names if event.get(name) is not None
    }
    arrays = {name: unpack_array(array, _MAX_SAMPLED_NUMBERS) for name, array in packed.items()}
    places = tuple(map(strict_whole_number, event.get("places", ())))
    operation = SampledOperation(
        kind, str(event["name"]), arrays, places, strict_whole_number(event.get("dimensions", 0))
    )
    operation.check_shapes()
    return operation


def _records(
    pairs: list[tuple[int, JsonObject]], kind: str, damage_sentences: list[str], file_suffix: str = ""
) -> Iterator[Any]:
    """Return the records of all events of a kind. A damaged event gives none, and a sentence in `damage_sentences`."""
    for rank, event in pairs:
        if event.get("event") != kind:
            continue
        try:
            yield from _event_records(rank, event)
        except DAMAGE_ERRORS as error:
            an = "an" if kind == "experts" else "a"
            damage_sentences.append(
                f"rank{rank}{file_suffix}.jsonl: {an} {kind} event is damaged: {type(error).__name__} {error}"
            )


def _event_records(rank: int, event: JsonObject) -> list[Any]:
    """Return the records of an event. Raises one of DAMAGE_ERRORS."""
    match event["event"]:
        case "step":
            return [
                StepRecord(
                    rank=rank,
                    step=truncated_number(event["step"]),
                    end_ns=truncated_number(event["end_ns"]),
                    loss=optional(number, event["loss"]),
                    grad_norm=optional(number, event["grad_norm"]),
                    tokens=truncated_number(event["tokens"]),
                    tokens_checksum=optional(truncated_number, event.get("tokens_checksum")),
                    learning_rate=optional(number, event.get("learning_rate")),
                    loss_scale=optional(number, event.get("loss_scale")),
                    skipped=bool(event.get("skipped")),
                    memory={
                        name: optional(truncated_number, size) for name, size in dict(event.get("memory") or {}).items()
                    },
                    before_exchange_seconds=optional(number, event.get("before_exchange_seconds")),
                    auxiliary_loss=optional(number, event.get("auxiliary_loss")),
                    compile_seconds=optional(number, event.get("compile_seconds")),
                )
            ]
        case "begin":
            return [(rank, truncated_number(event["end_ns"]))]
        case "weights":
            return [WeightSlice(*_slice(rank, *where), int(checksum, 16)) for *where, checksum in event["parameters"]]
        case "final_weights":
            return [
                FinalSlice(*_slice(rank, *where), (number(square), *map(number, projections)))
                for *where, (square, *projections) in event["parameters"]
            ]
        case "gradients":
            return [
                GradientShare(rank, truncated_number(event["step"]), name, number(square))
                for name, square in event["squares"].items()
            ]
        case "experts":
            return [
                ExpertShare(
                    rank, strict_whole_number(event["step"]), _layer(layer), tuple(map(strict_whole_number, tokens))
                )
                for layer, tokens in event["tokens"].items()
            ]
        case "compared":
            step, layer, choices, changed = (
                strict_whole_number(event[name]) for name in ("step", "layer", "choices", "changed")
            )
            margin_and_gates = number(event["margin"]), number(event["gates"])
            return [ComparedChoices(rank, step, layer, choices, changed, *margin_and_gates)]
        case "chosen":
            return [
                ChosenExperts(
                    rank, strict_whole_number(event["step"]), strict_whole_number(event["layer"]), str(event["experts"])
                )
            ]
    return []


def _slice(rank: int, name: str, shape: Any, slices: Any) -> tuple[int, str, tuple[int, ...], Slices]:
    return (
        rank,
        name.strip(),
        tuple(map(truncated_number, shape)),
        tuple((truncated_number(start), truncated_number(end)) for start, end in slices),
    )


def _layer(text: str) -> int:
    """Return a layer's number. Two texts are never one layer: `01` is damaged."""
    if str(int(text)) != text:
        raise ValueError(f"found layer {text!r}, expected a whole number")
    return truncated_number(int(text))


def _read_outcome(path: Path) -> tuple[JsonObject, dict[int, WindowSighting], list[str]]:
    """Return how the run ended, the window as the platform saw it by rank, and what of these windows is damaged.

    Nothing for a damaged file. An end of a process is left out where its rank is no number, or its exit code, signal or
    process is neither a number nor null. A rank whose window the platform did not see whole has none.
    """
    content = read_document(path) or {}
    if not isinstance(content.get("cause"), str):
        return {}, {}, []
    seen, damage = dict[int, WindowSighting](), list[str]()
    try:
        for rank, sightings in dict(content.get("seen") or {}).items():
            if {"begin", "end"} <= sightings.keys():
                begin, end = (Sighting(*map(truncated_number, sightings[name])) for name in ("begin", "end"))
                seen[int(rank)] = WindowSighting(begin, end)
    except DAMAGE_ERRORS as error:
        damage.append(f"outcome.json: key 'seen' is damaged: {type(error).__name__} {error}")
    ends = [
        end
        for end in sequence(content.get("ends"))
        if isinstance(mapping(end).get("rank"), int)
        and all(isinstance(end.get(name), (int, type(None))) for name in ("exit_code", "signal", "process"))
    ]
    evidence = content.get("evidence")
    return {**content, "ends": ends, "evidence": None if evidence is None else str(evidence)}, seen, damage


def system_of(provenance: JsonObject) -> System | None:
    """Return the machine as reports list it; None where the provenance is missing or of an earlier version."""
    machine = provenance.get("machine")
    if not isinstance(machine, dict) or "os" not in machine:
        return None
    version = clipped_text(mapping(provenance.get("engine")).get("Version"))
    return System(
        os=clipped_text(machine.get("os")),
        kernel=clipped_text(machine.get("kernel")),
        processor=clipped_text(machine.get("processor")),
        model=clipped_text(machine.get("model")),
        network=tuple(filter(None, map(clipped_text, sequence(machine.get("network"))))),
        software=clipped_texts(provenance.get("vendor_software")),
        engine=f"docker {version}" if version else None,
    )


def origin_of(provenance: JsonObject, implementation: str | None) -> Origin:
    """Return what the run was made with. implementation: the digest of its code, by the plan."""
    packages = provenance.get("environment_packages")
    text = json.dumps(packages, sort_keys=True).encode()
    return Origin(
        implementation=implementation,
        packages=sha256_of(text) if isinstance(packages, dict) else None,
        image=clipped_text(mapping(provenance.get("image")).get("id")),
        machine=clipped_text(mapping(provenance.get("machine")).get("identity")),
    )


def clipped_text(value: Any) -> str | None:
    """Return a text of a bounded length; None for anything else."""
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def clipped_texts(values: Any) -> dict[str, str]:
    """Return the texts of a mapping, by name."""
    return {str(name)[:MAX_TEXT]: text for name, value in mapping(values).items() if (text := clipped_text(value))}
