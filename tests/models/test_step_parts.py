"""Slow things that are planted in torch's training are told by part, place, rank and amount.

A plant notes how long it really took, since a busy machine makes it longer. A tenth of that may be told elsewhere, and
what the place takes by itself comes on top.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Variant, events, job_of, launch_explained, planted, shallow
from levelfield.compare.step_difference import step_difference
from levelfield.judge.explanation import RecordedRun, layout_of, parts_of
from levelfield.specs.layout import Layout
from levelfield.specs.step_parts import BUBBLE, WAITING, StepParts

pytestmark = [pytest.mark.torch, pytest.mark.layouts]

SMALL = shallow(MODELS["llama"])
EACH_MS, ONCE_MS = 50.0, 200.0  # one planted delay of a module, in each of four micro-batches; one of a step
TOLERANCE = 0.1
OWN_MS = 40.0  # what a place takes by itself, on a busy machine
HELP = f"""
import gc, os, time, torch
from levelfield.worker import Batches, interface
large = torch.rand(1024, 1024)  # an operation of some ms: a busy machine seldom interrupts between two
own_steps, plants = interface.train_steps, []
def train_steps(job, recorder, trainer):
    for plant in plants:
        plant(trainer)
    own_steps(job, recorder, trainer)
interface.train_steps = train_steps  # before a training imports it
def noted(plant, what):
    begin = time.monotonic_ns()
    what()
    with open(os.path.join(job.events_dir, "planted"), "a") as file:
        print(begin, time.monotonic_ns(), plant, sep="|", file=file)
def in_module(plant, end, what):
    def put(trainer):
        model = trainer.chunks[0] if hasattr(trainer, "chunks") else trainer.model
        module, = [module for name, module in model.named_modules() if ("." + name).endswith("." + end)]
        module.register_forward_pre_hook(lambda *_: noted(plant, what))
    plants.append(put)
def in_method(plant, owner, method, what):
    def put(trainer):
        found = owner if isinstance(owner, type) else getattr(trainer, owner)
        own = getattr(found, method)
        def call(*arguments, **named):
            noted(plant, what)
            return own(*arguments, **named)
        setattr(found, method, call)
    plants.append(put)
def busy(work, ms):
    until = time.monotonic() + ms / 1e3
    with torch.no_grad():
        while time.monotonic() < until:
            work()
nap = lambda: time.sleep({EACH_MS / 1e3})
"""


@dataclass(frozen=True)
class Plant:
    """code: what makes the training slow, after HELP. part, where: what is to be told."""

    code: str
    part: str
    where: str


def plants_of(framework: str) -> dict[str, Plant]:
    attention, norm = "layers.1.attention", "layers.0.mlp_norm"
    owner = "engine" if framework == "deepspeed" else "optimizer"
    if framework == "megatron":
        attention, norm = "layers.1.self_attention", "layers.0.pre_mlp_layernorm"
    return {
        "a sleep": Plant(f'in_module("a sleep", "{attention}", nap)', "host", "layers.1.attention"),
        "a norm": Plant(
            f'in_module("a norm", "{norm}", lambda: busy(lambda: large.sin(), {EACH_MS}))', "elementwise", norm
        ),
        "a product": Plant(
            f'in_module("a product", "layers.0.mlp", lambda: busy(lambda: large @ large, {EACH_MS}))',
            "mlp", "layers.0.mlp",
        ),
        "an optimizer": Plant(
            f'in_method("an optimizer", "{owner}", "step", lambda: busy(lambda: large.exp(), {ONCE_MS}))',
            "optimizer", f"{owner}.step",
        ),
        "a reader": Plant(
            f'in_method("a reader", Batches, "batch", lambda: time.sleep({ONCE_MS / 1e3}))', "input", "input"
        ),
    }  # fmt: skip


PLANTS = plants_of("torch")


def explained(
    folder: Path,
    code: str = "",
    variant: Variant = SINGLE,
    model: dict[str, Any] = SMALL,
    steps: int = 3,
    framework: str = "torch",
    python: Path | None = None,
    help_code: str = HELP,
    **changes: Any,
) -> StepParts:
    """The parts of a step of a small training with `code` run before it. changes: of the job's training."""
    folder.mkdir()
    job = job_of(model, variant, 1, **changes)
    ends = launch_explained(job, folder, steps, script=planted(folder, framework, help_code + code), python=python)
    assert [end.returncode for end in ends] == [0] * variant.ranks, ends[0].output[-2000:]
    layout = layout_of(Layout.model_validate(job["layout"]))
    found = parts_of(RecordedRun(folder.name, framework, variant.ranks, layout), folder, folder / "profile")
    assert not found.missing
    for rank in found.ranks:
        assert sum(part.time.mean for part in rank.parts) == pytest.approx(rank.step.mean, rel=0.02)
        assert sum(place.ms for place in rank.places) == pytest.approx(rank.step.mean, rel=0.02)
    return found


def at(found: StepParts, part: str, where: str, rank: int = 0) -> float:
    """The milliseconds of a place, in all phases."""
    return sum(place.ms for place in found.ranks[rank].places if (place.part, place.where) == (part, where))


def part_of(found: StepParts, part: str, rank: int = 0) -> float:
    return sum(each.time.mean for each in found.ranks[rank].parts if each.part == part)


def planted_ms(folder: Path, rank: int = 0) -> dict[str, float]:
    """The mean of what each plant took in the recorded steps that count, by the rank's own clock."""
    measured = [event["values"] for event in events(folder, rank) if event.get("name") == "profiled_step"]
    steps = [(step["begin_ns"], step["end_ns"]) for step in measured if step["recorded"] and step["counted"]]
    found: dict[str, float] = defaultdict(float)
    for line in (folder / "planted").read_text().splitlines():
        begin, end, name = line.split("|")
        if any(first <= int(begin) and int(end) <= last for first, last in steps):
            found[name] += (int(end) - int(begin)) / 1e6 / len(steps)
    return found


def assert_told(told: float | None, took: float) -> None:
    assert told is not None and (1 - TOLERANCE) * took <= told <= (1 + TOLERANCE) * took + OWN_MS, (told, took)


def test_what_is_planted_is_told_by_part_place_and_amount(tmp_path: Path) -> None:
    before = explained(tmp_path / "before")
    after = explained(tmp_path / "after", "\n".join(plant.code for plant in PLANTS.values()))
    took = planted_ms(tmp_path / "after")
    for name, plant in PLANTS.items():
        assert_told(at(after, plant.part, plant.where), took[name])
    found = step_difference(before, after)
    assert sum(each.ms for each in found.changes) == pytest.approx(found.whole.ms, abs=0.02 * found.whole.after)
    assert {each.part for each in found.changes[:5]} == {plant.part for plant in PLANTS.values()}
    assert part_of(after, "unexplained") < 0.02 * after.step.mean


def test_a_late_rank_is_told_with_its_place_and_what_the_other_waits(tmp_path: Path) -> None:
    late = PLANTS["a sleep"]
    code = 'if os.environ["RANK"] == "1":\n' + textwrap.indent(late.code, "    ")
    found = explained(tmp_path / "late", code, Variant("DP2", {"data": 2}, micro_batch=1))
    took = planted_ms(tmp_path / "late", rank=1)["a sleep"]
    assert found.late[0].rank == 1
    assert (found.late[0].part, found.late[0].where) == (late.part, late.where)
    assert_told(found.late[0].longer_ms, took)
    waited = [part_of(found, WAITING, rank) for rank in (0, 1)]
    assert waited[0] > 0.4 * took > 4 * waited[1], "a busy machine makes rank 0 slow as well, which then waits less"
    assert part_of(found, BUBBLE) == 0


MATH = """
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel
fused = functional.scaled_dot_product_attention
def by_math(*arguments, **named):
    with sdpa_kernel(SDPBackend.MATH):
        return fused(*arguments, **named)
functional.scaled_dot_product_attention = by_math
"""
GARBAGE = """
class Node: pass
def litter():
    nodes = [Node() for _ in range(200_000)]
    for node in nodes: node.other = node
    del nodes
    gc.collect()
def put(trainer):
    own = trainer.finish
    def finish(batch):
        noted("garbage", litter)
        return own(batch)
    trainer.finish = finish
plants.append(put)
"""


@pytest.mark.thorough
def test_attention_by_math_gets_a_warning(tmp_path: Path) -> None:
    fused, by_math = (
        explained(tmp_path / name, code, sequence_length=256) for name, code in (("fused", ""), ("math", MATH))
    )
    assert not [said for said in fused.warnings if "math" in said]
    assert [said for said in by_math.warnings if said.startswith("attention by math: ")]
    kinds = [{each.kind for each in found.kernels if each.part == "attention core"} for found in (fused, by_math)]
    assert "flash" in kinds[0] and "math" not in kinds[0] and "math" in kinds[1] and "flash" not in kinds[1]
    assert step_difference(fused, by_math).changes[0].part == "attention core"


@pytest.mark.thorough
def test_garbage_collection_is_told(tmp_path: Path) -> None:
    found = explained(tmp_path / "garbage", GARBAGE)
    took = planted_ms(tmp_path / "garbage")["garbage"]
    told = at(found, "host", "garbage collection")
    assert 0.3 * took < told < took, "it is a part of what was planted: the objects are made before"


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_what_recomputation_repeats_has_a_column_of_its_own(mode: str, tmp_path: Path) -> None:
    """A full recomputation takes what the blocks' forward passes take; a selective one leaves out products."""
    found = explained(tmp_path / mode, variant=Variant(mode, recompute=mode), sequence_length=128, steps=6)
    again, forward = (
        sum(place.ms for place in found.ranks[0].places if place.phase == phase and place.where.startswith("layers."))
        for phase in ("recompute", "forward")
    )
    if mode == "full":
        assert again == pytest.approx(forward, rel=0.25)
    core = [
        sum(place.ms for place in found.ranks[0].places if (place.part, place.phase) == ("attention core", phase))
        for phase in ("recompute", "forward")
    ]
    assert (core[0] > 0.5 * core[1]) == (mode == "full"), "its kernel runs once"


LATE = """
from model import decoder
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.08)
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.16)
        return gradient
block = decoder.Block.forward
decoder.Block.forward = lambda self, x, rotary=None: Late.apply(block(self, x, rotary))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("micro_batches", [4, 16])
def test_a_pipeline_bubble_is_as_the_formula_says(micro_batches: int, tmp_path: Path) -> None:
    """Of p stages and m micro-batches 1F1B leaves (p - 1) / (m + p - 1) of the step without work.

    On a busy machine the stages take unequal times as well, and wait for each other more.
    """
    variant = Variant("PP4", {"pipeline": 4}, micro_batch=1)
    found = explained(tmp_path / "late", LATE, variant, MODELS["llama"], 2, global_batch=micro_batches)
    bubbles = [part_of(found, BUBBLE, rank) for rank in range(4)]
    share = sum(bubbles) / sum(rank.step.mean for rank in found.ranks)
    assert 0.95 < share / (3 / (micro_batches + 3)) < 1.6, bubbles
    assert max(part_of(found, WAITING, rank) for rank in range(4)) < 0.02 * found.step.mean


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("seed", range(10))
def test_each_plant_is_told_alone_and_first(name: str, seed: int, tmp_path: Path) -> None:
    plant = PLANTS[name]
    before, after = (explained(tmp_path / word, code, seed=seed) for word, code in (("a", ""), ("b", plant.code)))
    assert_told(at(after, plant.part, plant.where), planted_ms(tmp_path / "b")[name])
    found = step_difference(before, after)
    assert found.changes[0].part == plant.part and found.changes[0].places[0].where == plant.where
    assert plant.where in found.sentences[0] or plant.where == plant.part


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_plants_are_told_in_other_frameworks_on_torch(framework: str, tmp_path: Path, interpreter_of) -> None:
    plants = plants_of(framework)
    code, python = "\n".join(plant.code for plant in plants.values()), interpreter_of(framework)
    found = explained(tmp_path / framework, code, framework=framework, python=python)
    took = planted_ms(tmp_path / framework)
    for name, plant in plants.items():
        assert_told(at(found, plant.part, plant.where), took[name])
    assert part_of(found, "unexplained") < 0.05 * found.step.mean
