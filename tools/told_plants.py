"""How well `report explain` tells planted slow things, by part, place, rank and amount, on a busy processor.

    .venvs/dev/bin/python tools/told_plants.py [--frameworks torch jax] [--seeds 10] [--docs]

trains small models with every plant of step_plants.py, once with each seed, while a process of its own keeps one core
busy. A plant is told if the first sentence of the difference names its part and its place, and a late rank by its
number, and if the amount is within a tenth of what the plant's own clock counted. `--docs` writes each into
docs/data/told_plants.json, in place of those of the same frameworks, and a summary of all into docs/explain.md. It
takes about half an hour of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from faults.planted_steps import WITHOUT, Interval, Turn, at, counted_intervals, explained, part_of, train_in_turns
from faults.slow_links import PLANT, transfer_ms, two_hosts
from faults.step_plants import AGAIN as REPEATED
from faults.step_plants import GARBAGE, LATE, MATH, Plant, plants_of
from layouts import MODELS, ROOT, Variant
from levelfield.explain.step_difference import RECOMPUTATION, StepDifference, step_difference
from levelfield.specs.step_parts import BUBBLE, COMMUNICATION, WAITING
from power import documented_between, write_data
from trainings.interpreters import interpreters

PAGE = ROOT / "docs" / "explain.md"
DATA = ROOT / "docs" / "data" / "told_plants.json"
BEGIN = "<!-- written by tools/told_plants.py: begin -->"
FRAMEWORKS = ("torch", "deepspeed", "megatron", "jax", "paddle")
TRAININGS = ("each", "late", "long", "bubble 4", "bubble 16", "slow links")
TOLERANCE, ROUNDS = 0.1, 3
TWO = Variant("DP2", {"data": 2}, micro_batch=1)
STAGES = 4
Row = dict[str, Any]
Data = dict[str, list[Row]]
Told = tuple[str, bool, float, float]  # the fault, whether its names are right, planted and told milliseconds or shares


def order_of(names: Sequence[str], seed: int) -> list[str]:
    """Return the turns: each plant and one without any, in an order of the seed's."""
    turns = [*names, WITHOUT]
    random.Random(seed).shuffle(turns)
    return turns


def names_plant(difference: StepDifference, part: str, where: str | None) -> bool:
    """Return whether the first sentence names the part and the place. Input has no place but itself."""
    first = difference.changes[0]
    sentence = difference.sentences[0]
    return first.part == part and part in sentence and (where in (None, part) or where in sentence)


def explain_plants(folder: Path, plants: dict[str, Plant], seed: int, **run: Any) -> tuple[dict[str, Turn], list[Told]]:
    """Return the turns of a run of one process, and how each of its plants is told."""
    code = "\n".join(plant.code for plant in plants.values())
    turns = train_in_turns(folder, code, order_of(list(plants), seed), ROUNDS, seed=seed, **run)
    before, plants_told = turns[WITHOUT], []
    for name, plant in plants.items():
        after = turns[name]
        change = step_difference(before.parts, after.parts)
        if plant.part == RECOMPUTATION:
            amount = next(changed.ms for changed in change.changes if changed.part == RECOMPUTATION)
        elif plant.where:
            amount = at(after.parts, plant.part, plant.where) - at(before.parts, plant.part, plant.where)
        else:
            amount = part_of(after.parts, plant.part) - part_of(before.parts, plant.part)
        took = after.took[0].get(name, 0.0) - before.took[0].get(name, 0.0)
        plants_told.append((name, names_plant(change, plant.part, plant.where or None), took, amount))
    return turns, plants_told


def late_rank(folder: Path, framework: str, seed: int, **run: Any) -> tuple[dict[str, Turn], list[Told]]:
    """Return how rank 1 of two is told that is late, and that rank 0 waits for it."""
    plants = plants_of(framework)
    name = "an mlp" if framework == "jax" else "a sleep"
    plant = plants[name]
    order = order_of([name], seed)
    common = {"variant": TWO, "framework": framework, "seed": seed, **run}
    turns = train_in_turns(folder, plant.code_for_rank(1), order, ROUNDS, **common)
    before, after = turns[WITHOUT], turns[name]
    took = after.took[1][name]
    first = after.parts.late[0] if after.parts.late else None
    is_named = first is not None and (first.rank, first.part, first.where) == (1, plant.part, plant.where)
    # the callback by which jax sleeps takes time without a sleep as well
    without = at(before.parts, plant.part, plant.where, 1) - at(before.parts, plant.part, plant.where, 0)
    longer = (first.longer_ms or 0.0) - without if first else 0.0
    change = step_difference(before.parts, after.parts)
    waits = any(changed.part == WAITING and "rank 1" in changed.places[0].where for changed in change.changes[:2])
    return turns, [("a late rank", is_named and waits, took, longer)]


def bubble(folder: Path, micro_batches: int, seed: int) -> Told:
    """Return the share of a bubble: as 1F1B has it with the times that the blocks took, and as it is told."""
    variant = Variant("PP4", {"pipeline": STAGES}, micro_batch=1)
    parts = explained(folder, LATE, variant, MODELS["llama"], 1, global_batch=micro_batches, seed=seed)
    share = sum(part_of(parts, BUBBLE, rank) for rank in range(STAGES)) / sum(rank.step.mean for rank in parts.ranks)
    largest = max((part for part in parts.parts if part.part != "host"), key=lambda part: part.time.mean)
    clocks = [counted_intervals(folder, rank)[0] for rank in range(STAGES)]
    passes = [{kind: lengths(intervals, kind) for kind in ("forward", "backward")} for intervals in clocks]
    name = f"bubble of {STAGES} stages, {micro_batches} micro-batches"
    return name, largest.part == BUBBLE, bubble_of(passes), share


def bubble_alone(micro_batches: int, seed: int, folder: Path) -> tuple[dict[str, Turn], list[Told]]:
    """Return a bubble as the other trainings return theirs: it has no turns."""
    return {}, [bubble(folder, micro_batches, seed)]


def lengths(intervals: Sequence[Interval], kind: str) -> list[float]:
    return [(interval.end - interval.begin) / 1e6 for interval in sorted(intervals) if interval.name == kind]


def bubble_of(passes: Sequence[dict[str, list[float]]]) -> float:
    """Return the share of the step in which 1F1B leaves the stages without work; (p - 1) / (m + p - 1) where all p
    stages take equal times.

    passes: of each stage, how long the forward and the backward pass of each of the m micro-batches took.
    """
    count = len(passes[0]["forward"])
    ends: dict[tuple[str, int, int], float] = {}
    free = [0.0] * len(passes)
    waiting = [one_forward_one_backward(len(passes) - stage, count) for stage in range(len(passes))]
    while any(waiting):
        for stage, left in enumerate(waiting):
            while left:
                kind, micro = left[0]
                source = stage - 1 if kind == "forward" else stage + 1
                if 0 <= source < len(passes) and (kind, source, micro) not in ends:
                    break
                begin = max(free[stage], ends.get((kind, source, micro), 0.0))
                free[stage] = ends[kind, stage, micro] = begin + passes[stage][kind][micro]
                left.pop(0)
    work = [sum(stage_passes["forward"]) + sum(stage_passes["backward"]) for stage_passes in passes]
    return 1 - fmean(work) / max(free)


def one_forward_one_backward(ahead: int, count: int) -> list[tuple[str, int]]:
    """Return the order of a stage's passes. ahead: how many stages follow, with itself."""
    first = min(ahead, count)
    order = [("forward", micro) for micro in range(first)]
    for micro in range(count):
        order.append(("backward", micro))
        order += [("forward", first + micro)] if first + micro < count else []
    return order


def slow_links(folder: Path, seed: int) -> tuple[dict[str, Turn], list[Told]]:
    """Return how it is told that the link between two hosts is slow."""
    with two_hosts() as code:
        turns = train_in_turns(folder, code, order_of([PLANT], seed), ROUNDS, variant=TWO, seed=seed)
    before, after = turns[WITHOUT], turns[PLANT]
    took = transfer_ms(after.intervals, ROUNDS) - transfer_ms(before.intervals, ROUNDS)
    change = step_difference(before.parts, after.parts)
    amount = sum(changed.ms for changed in change.changes if changed.part in COMMUNICATION)
    return turns, [(PLANT, names_plant(change, "all-reduce", None), took, amount)]


OF_TORCH = {
    **plants_of("torch"),
    "garbage": Plant(GARBAGE, "host", "garbage collection"),
}
OF_LONG = {"math": Plant(MATH, "attention core", ""), "recomputation": Plant(REPEATED, RECOMPUTATION, "")}
LONG = 1024  # tokens of a sequence: attention's core has most of the work


def trainings(framework: str, seed: int, python: Path) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    """Give each training of a framework by a name: what runs it in a folder and returns its turns and what it tells."""
    common = {"framework": framework, "python": python}
    plants = OF_TORCH if framework == "torch" else plants_of(framework)
    yield "each", lambda folder: explain_plants(folder, plants, seed, **common)
    yield "late", lambda folder: late_rank(folder, framework, seed, python=python)
    if framework == "torch":
        yield "long", lambda folder: explain_plants(folder, OF_LONG, seed, sequence_length=LONG)
        yield PLANT, lambda folder: slow_links(folder, seed)
        for count in (4, 16):
            yield f"bubble {count}", partial(bubble_alone, count, seed)


def rows_of(framework: str, seed: int, python: Path, names: Collection[str]) -> Iterator[tuple[str, Row]]:
    """Give the rows of `plants`, and of `sums`: by how much parts and the worker's clock differ from the step."""
    for name, train in trainings(framework, seed, python):
        if name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            turns, plants_told = train(Path(folder) / "run")
        for fault, is_named, planted, amount in plants_told:
            row = {"framework": framework, "fault": fault, "seed": seed, "named": is_named}
            yield "plants", {**row, "planted": round(planted, 4), "told": round(amount, 4)}
        for at_turn, turn in turns.items():
            for rank, clocked in zip(turn.parts.ranks, turn.clocked_ms, strict=True):
                parts = sum(part.time.mean for part in rank.parts)
                row = {"framework": framework, "training": name, "turn": at_turn, "seed": seed, "rank": rank.rank}
                yield "sums", {**row, "parts_ms": round(parts, 3), "clocked_ms": round(clocked, 3)}


def error_of(row: Row) -> float:
    return abs(row["told"] / row["planted"] - 1)


def is_told(row: Row) -> bool:
    return row["named"] and error_of(row) <= TOLERANCE


TITLES = {
    "a sleep": "sleep in one layer's attention", "a norm": "slow norm", "a product": "additional matmuls",
    "an mlp": "slow mlp", "a core": "slow attention core", "an optimizer": "slow optimizer", "a reader": "slow reader",
    "garbage": "garbage collection", "a late rank": "late rank of two", "math": "attention by math",
    "recomputation": "full recomputation", "slow links": "slow link between two hosts",
    "bubble of 4 stages, 4 micro-batches": "bubble of PP4, 4 micro-batches",
    "bubble of 4 stages, 16 micro-batches": "bubble of PP4, 16 micro-batches",
}  # fmt: skip


def section(data: Data) -> str:
    """Return what stands between the marks of docs/explain.md: the data, counted."""
    lines = ["| planted | frameworks | named; error |", "|---|---|---|"]
    for fault, title in TITLES.items():
        rows = [row for row in data["plants"] if row["fault"] == fault]
        lines.append(f"| {title} | {len({row['framework'] for row in rows})} | {cell(rows)} |")
    if not data["sums"]:
        return "\n".join(lines)
    apart = [abs(row["parts_ms"] / row["clocked_ms"] - 1) for row in data["sums"]]
    means = f"In {len(apart)} means of recorded steps, by rank"
    agreement = (
        f"the sum of the parts differs from the worker's own clock by {fmean(apart):.2%}, at most {max(apart):.2%}"
    )
    return "\n".join([*lines, "", f"{means}, {agreement}."])


def cell(rows: Sequence[Row]) -> str:
    if not rows:
        return "-"
    errors = [error_of(row) for row in rows]
    return f"{sum(map(is_told, rows))} of {len(rows)}; {median(errors):.1%}, {max(errors):.1%}"


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """While the context lasts, a process computes without a pause."""
    code = "import os\nown = os.getppid()\nwhile os.getppid() == own: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def joined(old: Data, new: Data) -> Data:
    """Return both, with `new` in place of older rows of the same framework, plant or training, and seed."""
    keys = ("framework", "fault", "training", "seed", "rank", "turn")
    rows = {
        kind: {tuple(row.get(key) for key in keys): row for row in (*old.get(kind, ()), *new[kind])} for kind in new
    }
    return {
        kind: sorted(by_key.values(), key=lambda row: (FRAMEWORKS.index(row["framework"]), row["seed"]))
        for kind, by_key in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant slow things, and see whether `report explain` tells them")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--trainings", nargs="+", choices=TRAININGS, default=TRAININGS)
    parser.add_argument("--seeds", type=int, default=10, help="each seed trains once")
    parser.add_argument("--docs", action="store_true", help="write docs/data/told_plants.json and its summary")
    options = parser.parse_args()
    results: Data = {"plants": [], "sums": []}
    with interpreters() as interpreter_of, busy_core():
        for framework in options.frameworks:
            for seed in range(options.seeds):
                for kind, row in rows_of(framework, seed, interpreter_of(framework), options.trainings):
                    results[kind].append(row)
                    if kind == "plants":
                        word = "told" if is_told(row) else "NOT TOLD"
                        print(json.dumps(row), word, f"{error_of(row):.1%}", flush=True)
                if options.docs:
                    data = joined(json.loads(DATA.read_text()) if DATA.exists() else {}, results)
                    write_data(DATA.with_suffix(".part"), data)
                    DATA.with_suffix(".part").rename(DATA)  # another process may read it now
                    PAGE.write_text(documented_between(BEGIN, PAGE.read_text(), section(data)))
    print(section(results))


if __name__ == "__main__":
    main()
