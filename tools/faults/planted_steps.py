"""Small trainings with planted slow things, whose steps are recorded and divided into parts.

Where plants take turns, each recorded step has one of them or none. So steps with a plant and without it come from one
process, at one time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from faults.step_plants import help_of
from layouts import MODELS, SINGLE, Variant, events, launch_explained, planted, shallow, small_job
from levelfield.explain.explanation import RecordedRun, parts_from_records, rank_layout
from levelfield.specs.layout import Layout
from levelfield.specs.step_parts import StepParts

SMALL = shallow(MODELS["llama"])
WITHOUT = ""  # the turn of no plant


def explained(folder: Path, *run: Any, **options: Any) -> StepParts:
    """The parts of a step of a small training, as `recorded` has it."""
    return parts_in(folder, folder, recorded(folder, *run, **options))


def recorded(
    folder: Path,
    code: str = "",
    variant: Variant = SINGLE,
    model: dict[str, Any] = SMALL,
    steps: int = 3,
    framework: str = "torch",
    python: Path | None = None,
    **changes: Any,
) -> RecordedRun:
    """Train, with `code` run before, and record steps. changes: of the job's training."""
    folder.mkdir()
    job = small_job(model, variant, 1, **changes)
    script = planted(folder, framework, help_of(framework) + code)
    ends = launch_explained(job, folder, steps, script=script, python=python)
    assert [end.returncode for end in ends] == [0] * variant.ranks, ends[0].output[-2000:]
    layout = rank_layout(Layout.model_validate(job["layout"]))
    return RecordedRun(folder.name, framework, variant.ranks, layout)


def parts_in(folder: Path, events_folder: Path, run: RecordedRun) -> StepParts:
    """The parts of a step. events_folder: has the events of the steps that are to be read."""
    parts = parts_from_records(run, events_folder, folder / "profile")
    assert not parts.missing, parts.missing
    for rank in parts.ranks:
        for whole in (sum(part.time.mean for part in rank.parts), sum(place.ms for place in rank.places)):
            assert math.isclose(whole, rank.step.mean, rel_tol=0.02), (whole, rank.step.mean)
    return parts


def train_in_turns(folder: Path, code: str, order: Sequence[str], rounds: int, **run: Any) -> dict[str, Turn]:
    """Train with plants that take turns in `order`, and record each `rounds` times. Return the steps of each."""
    run_of_all_turns = recorded(folder, f"{code}\ntake_turns({list(order)!r})", steps=rounds * len(order), **run)
    return {name: _turn(folder, run_of_all_turns, name, order) for name in order}


@dataclass(frozen=True)
class Turn:
    """The recorded steps that had one plant, or none. took: by rank, what each clock counted in one of them.

    clocked_ms: by rank, the mean step by the worker's own clock. intervals: by rank, those of the plants' clocks."""

    parts: StepParts
    took: tuple[dict[str, float], ...]
    clocked_ms: tuple[float, ...]
    intervals: tuple[list[Interval], ...]


def _turn(folder: Path, run: RecordedRun, name: str, order: Sequence[str]) -> Turn:
    turn_folder = folder / f"turn {list(order).index(name)}"
    turn_folder.mkdir()
    steps = []
    for rank in range(run.ranks):
        measured = [event for event in events(folder, rank) if event["event"] == "measured"]
        for event in measured:
            event["values"] = _values_in_turn(event["values"], lambda number: order[number % len(order)] == name)
        measured = [event for event in measured if event["values"]]
        (turn_folder / f"rank{rank}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in measured))
        steps.append(_counted_steps(measured))
    intervals = [
        [interval for interval in intervals_of(folder, rank) if interval.within(steps[rank])]
        for rank in range(run.ranks)
    ]
    took = [_took(rank_intervals, len(rank_steps)) for rank_intervals, rank_steps in zip(intervals, steps, strict=True)]
    clocked = [sum(end - begin for begin, end in rank_steps) / 1e6 / len(rank_steps) for rank_steps in steps]
    return Turn(parts_in(folder, turn_folder, run), tuple(took), tuple(clocked), tuple(intervals))


def _values_in_turn(values: dict[str, Any], is_of: Callable[[int], bool]) -> dict[str, Any]:
    """An event's values without the steps of other turns; nothing of an event that has none of this turn."""
    if "files" in values:
        files = {name: digest for name, digest in values["files"].items() if is_of(int(name.split(".")[1][4:]))}
        return {**values, "files": files}
    return values if is_of(values["number"]) else {}


def at(parts: StepParts, part: str, where: str, rank: int = 0) -> float:
    """The milliseconds of a place, in all phases."""
    return sum(place.ms for place in parts.ranks[rank].places if (place.part, place.where) == (part, where))


def part_of(parts: StepParts, part: str, rank: int = 0) -> float:
    return sum(time_part.time.mean for time_part in parts.ranks[rank].parts if time_part.part == part)


class Interval(NamedTuple):
    """What a plant's clock counted once, in nanoseconds."""

    begin: int
    end: int
    name: str

    def within(self, steps: Sequence[tuple[int, int]]) -> bool:
        return any(begin <= self.begin and self.end <= end for begin, end in steps)


def intervals_of(folder: Path, rank: int) -> list[Interval]:
    path = folder / f"planted{rank}"
    lines = [line.split("|") for line in path.read_text().splitlines()] if path.exists() else []
    return [Interval(int(begin), int(end), name) for begin, end, name in lines]


def planted_ms(folder: Path, rank: int = 0) -> dict[str, float]:
    """The mean of what each plant took in the recorded steps that count, by the rank's own clock."""
    return _took(*counted_intervals(folder, rank))


def counted_intervals(folder: Path, rank: int) -> tuple[list[Interval], int]:
    """Return what the plants' clocks counted in the recorded steps that count, and how many these are."""
    steps = _counted_steps([event for event in events(folder, rank) if event["event"] == "measured"])
    return [interval for interval in intervals_of(folder, rank) if interval.within(steps)], len(steps)


def _counted_steps(measured: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    profiled = [event["values"] for event in measured if event["name"] == "profiled_step"]
    return [(step["begin_ns"], step["end_ns"]) for step in profiled if step["recorded"] and step["counted"]]


def _took(intervals: Sequence[Interval], steps: int) -> dict[str, float]:
    took: dict[str, float] = defaultdict(float)
    for interval in intervals:
        took[interval.name] += (interval.end - interval.begin) / 1e6 / steps
    return took
