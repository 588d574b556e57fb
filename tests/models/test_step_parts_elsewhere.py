"""Slow things that are planted in the trainings of jax and paddle are told by part, place, rank and amount.

A plant notes how long it took, as in test_step_parts.py. XLA has one program for all layers, and runs it beside the
host: so a place is that of every layer, and a reader is told as far as nothing ran meanwhile.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.planted_steps import SMALL, at, explained, part_of, planted_ms
from faults.step_plants import IN_PADDLE, PRODUCT, READER, plants_of
from layouts import MODELS, ROOT, Variant, events, launch, launch_explained, script_of, shallow, small_job
from levelfield.explain.step_difference import step_difference
from levelfield.specs.step_parts import WAITING
from test_step_parts import assert_told
from test_step_profile import judged

pytestmark = [pytest.mark.torch, pytest.mark.layouts]

PLANTS = plants_of("jax")
PROGRAM = """
HloModule jit_step

%fused (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %dot.1 = f32[8]{0} dot(%a, %b), metadata={op_name="jit(step)/transpose(jvp(lf:mlp:layers.*.mlp))/dot_general"}
  ROOT %add.1 = f32[8]{0} add(%dot.1, %a), metadata={op_name="jit(step)/lf:elementwise:layers.*/add"}
}

%stacked (c: bf16[8]) -> bf16[8] {
  %exp.1 = bf16[8]{0} exponential(%c), metadata={op_name="lf:mlp:outer/rematted_computation/lf:attention core:own/exp"}
  ROOT %slice.1 = bf16[8]{0} dynamic-update-slice(%exp.1, %c), metadata={op_name="jit(step)/while/body"}
}

ENTRY %main (x: f32[8]) -> (f32[8], /*index=1*/s32[]) {
  %mixed = f32[8]{0} fusion(%x, %x), kind=kLoop, calls=%fused, metadata={op_name="lf:elementwise:layers.*/add"}
  %rows.2 = bf16[8]{0} fusion(%x), kind=kLoop, calls=%stacked, metadata={op_name="jit(step)/while/body"}
  %clip.7 = f32[8]{0} add(%x, %x), metadata={op_name="jit(step)/lf:gradient clipping:clip/mul" stack_frame_id=7}
  %copy.3 = f32[8]{0} copy(%x)
  %loop = (f32[8]{0}, /*index=1*/s32[]) while(%x), condition=%a, body=%b
  %sum.1 = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %own.1 = (f32[8]{0}, f32[8]{0}) all-gather(%x, %x), channel_id=2, replica_groups=[2,2]<=[4], dimensions={0}
  ROOT %far.1 = f32[8]{0} reduce-scatter(%x), channel_id=3, replica_groups=[2,2]<=[2,2]T(1,0), to_apply=%add
}
"""


def answered(framework: str, python: Path, code: str, said: str) -> Any:
    """What some Python prints as JSON, run beside the framework's step_profile with `said` as its input."""
    environment = {**os.environ, "PYTHONPATH": f"{script_of(framework).parent}:{ROOT / 'platform'}"}
    ran = subprocess.run([python, "-c", code], input=said, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_compiled_program_tells_the_part_of_each_operation(python: Path) -> None:
    code = (
        "import sys, json, step_profile\n"
        "found = step_profile.read_operations(sys.stdin.read(), 3)\n"
        "print(json.dumps(found))"
    )
    found = answered("jax", python, code, PROGRAM)
    told = {name: tuple(found[name].get(key) for key in ("part", "where", "phase", "dtype")) for name in found}
    assert told["mixed"] == ("mlp", "layers.*.mlp", "backward", "float"), "its product weighs more than its root"
    assert told["rows.2"] == ("attention core", "own", "recompute", "c10::BFloat16")
    assert told["clip.7"] == ("gradient clipping", "clip", "forward", "float")
    assert told["copy.3"] == (None,) * 4 and "loop" not in found
    assert found["mixed"]["name"] == "mixed: product" and found["rows.2"]["name"] == "rows: softmax's exp"
    messages = {name: (each["Collective name"], each["Process Group Ranks"]) for name, each in found.items()
                if "message" in each}  # fmt: skip
    assert messages == {
        "sum.1": ("all_reduce", "[2, 3]"), "own.1": ("all_gather", "[2, 3]"), "far.1": ("reduce_scatter", "[1, 3]"),
    }  # fmt: skip


FRAMEWORK = "jax"


@pytest.fixture(scope="module")
def paddle(interpreter_of: Callable[[str], Path]) -> Path:
    return interpreter_of("paddle")


def test_what_is_planted_in_jax_is_told_by_part_place_and_amount(tmp_path: Path, python: Path) -> None:
    code = "\n".join(plant.code for plant in PLANTS.values())
    found = explained(tmp_path / "after", code, steps=2, framework="jax", python=python)
    took = planted_ms(tmp_path / "after")
    for name, plant in PLANTS.items():
        assert_told(at(found, plant.part, plant.where), took[name])
    assert part_of(found, "unexplained") < 0.02 * found.step.mean
    assert [said for said in found.warnings if said.startswith("attention by math: ")]


RECORD = [
    ("Operator", "Global_AddGradNode", 0, 10), ("OperatorInner", "Local_AddGradNode", 1, 9),
    ("DygraphKernelLaunch", "scale kernel launch", 2, 3),  # no exchange: the node sums no gradient
    ("Operator", "Global_GradNodeAccumulation", 10, 30), ("DygraphKernelLaunch", "scale kernel launch", 12, 13),
    ("Operator", "Global_MatmulGradNode", 30, 40), ("Operator", "Global_SiluGradNode", 40, 44),
    ("Operator", "matmul dygraph", 50, 60),
]  # fmt: skip


def test_nodes_of_another_order_than_expected_belong_to_nobody(paddle: Path) -> None:
    mlp = "mlp/layers.0.mlp"
    order = [("AddGradNode", mlp), ("GradNodeAccumulation", None), ("MatmulGradNode", mlp), ("SiluGradNode", mlp)]
    another = [order[0], order[2], order[1], order[3]]
    events = [
        {"ph": "X", "cat": cat, "name": f"{name}[1 us]", "tid": "7(C++)", "ts": 5000 + begin, "dur": end - begin,
         "args": {"start_time": f"{begin}.000 us", "end_time": f"{end}.000 us"}}
        for cat, name, begin, end in [("PythonUserDefined", "backward/0", 0, 45), *RECORD]
    ]  # fmt: skip
    code = (
        "import sys, json, step_profile\n"
        "events, *orders = json.load(sys.stdin)\n"
        "print(json.dumps([step_profile.make_trace(events, [order], True) for order in orders]))"
    )  # fmt: skip
    own = {"part": "mlp", "where": "layers.0.mlp"}
    kinds = ("GradNodeAccumulation", "MatmulGradNode", "SiluGradNode")
    of_nobody = [{"part": "unexplained", "where": kind} for kind in kinds]
    traces = answered("paddle", paddle, code, json.dumps([events, order, another]))
    for trace, others in zip(traces, ([{}, own, own], of_nobody), strict=True):
        nodes = [each["args"] for each in trace["traceEvents"] if each["name"].startswith("autograd::")]
        assert nodes == [own, *others]
        (exchange,) = [each for each in trace["traceEvents"] if each["name"] == "gloo:all_reduce"]
        assert (exchange["ts"], exchange["dur"]) == (10, 20) and trace["baseTimeNanoseconds"] == 5_000_000
        named = [each["name"] for each in trace["traceEvents"] if each["name"].startswith("paddle::")]
        assert named == ["paddle::AddGradNode", "paddle::scale", "paddle::scale", "paddle::matmul"]


@pytest.mark.thorough  # the nodes above are read from its record
def test_what_is_planted_in_paddle_is_told_by_part_place_and_amount(tmp_path: Path, paddle: Path) -> None:
    code = "\n".join(plant.code for plant in IN_PADDLE.values())
    found = explained(tmp_path / "after", code, steps=2, framework="paddle", python=paddle)
    took = planted_ms(tmp_path / "after")
    for name, plant in IN_PADDLE.items():
        assert_told(at(found, plant.part, plant.where), took[name])
    assert part_of(found, "unexplained") < 0.02 * found.step.mean


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("gpt", Variant("TP2", {"tensor": 2})),
        ("gpt", Variant("PP2", {"pipeline": 2}, micro_batch=1)),
        ("llama", Variant("full", recompute="full")),
    ],
    ids=["TP2", "PP2", "full"],
)
def test_the_backward_pass_of_paddle_belongs_to_its_layers(
    family: str, variant: Variant, tmp_path: Path, paddle: Path
) -> None:
    model = shallow(MODELS[family])
    found = explained(tmp_path / "run", "", variant, model, framework="paddle", python=paddle)
    for rank in range(variant.ranks):
        assert part_of(found, "unexplained", rank) < 0.03 * found.step.mean
        places = [each for each in found.ranks[rank].places if each.phase == "backward"]
        assert [each for each in places if each.part == "attention core"], "no node was named"
    again = sum(part.recompute_ms for part in found.parts)
    assert (again > 0) == (variant.name == "full")


@pytest.mark.thorough
def test_a_late_rank_of_paddle_is_told_with_its_place(tmp_path: Path, paddle: Path) -> None:
    late = IN_PADDLE["a sleep"]
    variant = Variant("DP2", {"data": 2}, micro_batch=1)
    found = explained(tmp_path / "late", late.code_for_rank(1), variant, framework="paddle", python=paddle)
    took = planted_ms(tmp_path / "late", rank=1)["a sleep"]
    assert (found.late[0].rank, found.late[0].part, found.late[0].where) == (1, late.part, late.where)
    assert_told(found.late[0].longer_ms, took)
    assert part_of(found, WAITING, 0) > 0.4 * took > 4 * part_of(found, WAITING, 1)


@pytest.mark.thorough
def test_a_late_rank_of_jax_is_told_with_its_place(tmp_path: Path, python: Path) -> None:
    late = PLANTS["an mlp"]
    variant = Variant("DP2", {"data": 2}, micro_batch=1)
    found = explained(tmp_path / "late", late.code_for_rank(1), variant, framework="jax", python=python)
    took = planted_ms(tmp_path / "late", rank=1)["an mlp"]
    assert (found.late[0].rank, found.late[0].part, found.late[0].where) == (1, late.part, late.where)
    assert_told(found.late[0].longer_ms, took)
    waited = [part_of(found, WAITING, rank) for rank in (0, 1)]
    assert waited[0] > 0.4 * took > 4 * waited[1]


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_reader_and_products_of_jax_are_told(precision: str, tmp_path: Path, python: Path) -> None:
    before, read, more = (
        explained(tmp_path / name, code, framework="jax", python=python, precision=precision)
        for name, code in (("before", ""), ("read", READER), ("more", PRODUCT))
    )
    took = planted_ms(tmp_path / "read")["a reader"]
    assert 0.9 * took - before.step.mean < part_of(read, "input") < 1.1 * took
    found = step_difference(before, more)
    assert found.changes[0].part == "mlp" and found.changes[0].places[0].where == "layers.*.mlp"
    assert {each.kind for each in more.kernels if each.part == "mlp"} >= {"product"}


@pytest.mark.thorough
@pytest.mark.parametrize("variant", [Variant("one"), Variant("DP2", {"data": 2}, micro_batch=1)], ids=["one", "DP2"])
@pytest.mark.parametrize("framework", ["jax", "paddle"])
def test_the_further_steps_change_nothing_that_was_recorded(
    framework: str, variant: Variant, tmp_path: Path, interpreter_of: Callable[[str], Path]
) -> None:
    job, script = small_job(SMALL, variant, 3), script_of(framework)
    found: list[list[list[dict[str, Any]]]] = []
    for train in (launch, functools.partial(launch_explained, steps=1)):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        ends = train(job, folder, script=script, python=interpreter_of(framework))
        assert [end.returncode for end in ends] == [0] * variant.ranks
        found.append([judged(events(folder, rank)) for rank in range(variant.ranks)])
    assert found[0] == found[1]
    names = [event["name"] for event in events(folder, 0) if event["event"] == "measured"]
    assert names == ["profiled_step"] * 4 + ["step_profile"]
