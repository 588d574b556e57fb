"""Slow things that are planted in torch's training are told by part, place, rank and amount.

A plant notes how long it really took, since a busy machine makes it longer. A tenth of that may be told elsewhere, and
what the place takes by itself comes on top.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faults.planted_steps import at, explained, part_of, planted_ms
from faults.step_plants import GARBAGE, LATE, MATH, plants_of
from layouts import MODELS, Variant
from levelfield.explain.step_difference import step_difference
from levelfield.specs.step_parts import BUBBLE, WAITING, Place

pytestmark = [pytest.mark.torch, pytest.mark.layouts]

TOLERANCE = 0.1
OWN_MS = 40.0  # what a place takes by itself, on a busy machine
PLANTS = plants_of("torch")


def assert_told(told: float | None, took: float) -> None:
    assert told is not None and (1 - TOLERANCE) * took <= told <= (1 + TOLERANCE) * took + OWN_MS, (told, took)


def test_what_is_planted_is_told_by_part_place_and_amount(tmp_path: Path) -> None:
    before = explained(tmp_path / "before")
    after = explained(tmp_path / "after", "\n".join(plant.code for plant in PLANTS.values()))
    took = planted_ms(tmp_path / "after")
    for name, plant in PLANTS.items():
        assert_told(at(after, plant.part, plant.where), took[name])
    difference = step_difference(before, after)
    total_ms = sum(change.ms for change in difference.changes)
    assert total_ms == pytest.approx(difference.whole.ms, abs=0.02 * difference.whole.after_ms)
    # A busy machine may make a part without a plant longer than the least of the plants.
    assert {plant.part for plant in PLANTS.values()} <= {change.part for change in difference.changes[:8]}
    assert part_of(after, "unexplained") < 0.02 * after.step.mean


@pytest.mark.thorough  # test_alone.py records two ranks, too, tests/core/explain has what makes one late
def test_a_late_rank_is_told_with_its_place_and_what_the_other_waits(tmp_path: Path) -> None:
    late = PLANTS["a sleep"]
    found = explained(tmp_path / "late", late.code_for_rank(1), Variant("DP2", {"data": 2}, micro_batch=1))
    took = planted_ms(tmp_path / "late", rank=1)["a sleep"]
    assert found.late[0].rank == 1
    assert (found.late[0].part, found.late[0].where) == (late.part, late.where)
    assert_told(found.late[0].longer_ms, took)
    waited = [part_of(found, WAITING, rank) for rank in (0, 1)]
    assert waited[0] > 0.4 * took > 4 * waited[1], "a busy machine makes rank 0 slow as well, which then waits less"
    assert part_of(found, BUBBLE) == 0


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
    assert_told(at(found, "host", "garbage collection"), planted_ms(tmp_path / "garbage")["garbage"])


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


@pytest.mark.thorough
def test_only_the_first_layers_repeat_where_the_tuning_says_so(tmp_path: Path) -> None:
    variant = Variant("first", recompute="full", recompute_layers=1)
    found = explained(tmp_path / "first", variant=variant, sequence_length=128, steps=6)
    again = {place.where.split(".")[1] for place in found.ranks[0].places if is_of_a_layer(place, "recompute")}
    forward = {place.where.split(".")[1] for place in found.ranks[0].places if is_of_a_layer(place, "forward")}
    assert (again, forward) == ({"0"}, {"0", "1"})


def is_of_a_layer(place: Place, phase: str) -> bool:
    return place.phase == phase and place.where.startswith("layers.") and place.ms > 0


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
    assert 0.95 < share / (3 / (micro_batches + 3)) < 1.2, bubbles
    assert max(part_of(found, WAITING, rank) for rank in range(4)) < 0.02 * found.step.mean


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_plants_are_told_in_other_frameworks_on_torch(
    framework: str, tmp_path: Path, interpreter_of: Callable[[str], Path]
) -> None:
    plants = plants_of(framework)
    code, python = "\n".join(plant.code for plant in plants.values()), interpreter_of(framework)
    found = explained(tmp_path / framework, code, framework=framework, python=python)
    took = planted_ms(tmp_path / framework)
    for name, plant in plants.items():
        assert_told(at(found, plant.part, plant.where), took[name])
    assert part_of(found, "unexplained") < 0.05 * found.step.mean
