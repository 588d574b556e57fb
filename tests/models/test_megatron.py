"""Megatron-Core trains what torch trains, in one process and in each layout; minutes, in many processes over gloo."""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import (
    MODELS,
    SINGLE,
    Curve,
    Variant,
    compare,
    events,
    first_steps,
    launch,
    planted,
    script_of,
    small_job,
    train,
)
from levelfield.measure.flops import repeated_layers
from levelfield.specs.recorded_runs import Difference
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("megatron")


FRAMEWORK = "megatron"


@pytest.mark.parametrize(
    ("precision", "layout"),
    [
        ("bf16", "ZeRO 1, DP2"),
        pytest.param("bf16", "TP2 x PP2", marks=pytest.mark.thorough),
        pytest.param("fp16", SINGLE.name, marks=pytest.mark.thorough),  # the overflow below trains in it too
    ],
)
def test_sixteen_bits_stay_near_fp32_and_start_from_the_same_weights(
    precision: str, layout: str, reference: Callable[[str], Curve], python: Path
) -> None:
    scale = {"loss_scale": {"initial": 256.0, "growth_interval": 1000}} if precision == "fp16" else {}
    steps = 5 if precision == "bf16" else 20
    job = small_job(MODELS["gpt"], VARIANTS[layout], steps, precision=precision, **scale)
    found = compare(train(job, TRAIN, python), first_steps(reference("gpt"), steps))
    assert found.same_weights and found.same_tokens
    assert found.loss is not None
    assert 0 < found.loss < 5e-3
    assert found.grad_norm is not None
    assert 0 < found.grad_norm < 0.1


def test_an_overflow_in_fp16_skips_the_step_and_training_goes_on(tmp_path: Path, python: Path) -> None:
    scale = {"loss_scale": {"initial": 2.0**26, "growth_interval": 4}}
    job = small_job(MODELS["gpt"], VARIANTS["ZeRO 1, DP2"], 14, precision="fp16", **scale)
    assert [end.returncode for end in launch(job, tmp_path, TRAIN, python)] == [0, 0]
    steps = [event for event in events(tmp_path, 0) if event["event"] == "step"]
    skipped = [event["skipped"] for event in steps]
    assert skipped[0] and not skipped[-1]
    assert steps[0]["grad_norm"] is None
    for before, after in itertools.pairwise(steps):
        assert after["loss_scale"] / before["loss_scale"] in ((0.5,) if before["skipped"] else (1.0, 2.0))
    assert steps[-1]["loss"] < steps[0]["loss"]


# ---- planted faults


@pytest.mark.thorough  # test_tensors.py saves the weights of such layers
def test_gate_and_up_exchanged_are_seen(tmp_path: Path, python: Path, differs: Callable[..., Difference]) -> None:
    fault = """
import canonical
canonical.MODULES["mlp.linear_fc1"] = (("mlp.up", "mlp.gate"), 0)
canonical.Correspondence.present = lambda self, names: ("head",) if names == ("head",) else names
"""
    found = differs(tmp_path, "megatron", python, fault, family="llama")
    assert found.same_weights
    assert not found.is_within_limits()


def test_what_interleaved_stages_pass_in_one_batch_is_seen(
    tmp_path: Path, python: Path, differs: Callable[..., Difference]
) -> None:
    """Megatron's default, which it does not refuse: activations and gradients between two stages change places."""
    fault = """
import model
messages = model.messages
model.messages = lambda job: {**messages(job), "overlap_p2p_comm": False, "batch_p2p_comm": True}
"""
    found = differs(tmp_path, "megatron", python, fault, variant=VARIANTS["PP2 interleaved"])
    assert found.same_weights
    assert found.loss is not None
    assert found.loss > 1e-3
    assert not found.is_within_limits()


def test_what_is_freed_while_it_is_sent_is_seen(
    tmp_path: Path, python: Path, differs: Callable[..., Difference]
) -> None:
    """Memory that nothing holds any more has ones written to it as it is freed: otherwise it may hold anything."""
    overwriting = """
import torch
from megatron.core.pipeline_parallel import schedules
right = schedules.deallocate_output_tensor
def overwritten(out, *more):
    if out is not None and torch._C._storage_Use_Count(out.untyped_storage()._cdata) == HOLDERS:
        out.data.fill_(1.0)
    right(out, *more)
HOLDERS = 2  # the tensor, and this look at its memory
schedules.deallocate_output_tensor = overwritten
"""
    fault = "import sending\nsending._alias = lambda tensor: tensor\n" + overwriting
    assert differs(tmp_path, "megatron", python, overwriting, variant=VARIANTS["PP2 interleaved"]).is_within_limits()
    try:
        found = differs(tmp_path, "megatron", python, fault, variant=VARIANTS["PP2 interleaved"])
    except RuntimeError as ended:  # something else took the memory before it was sent: the worker stops at its NaN
        assert "NonFinite: step" in str(ended)
    else:
        assert found.same_weights
        assert not found.is_within_limits()


def test_chunks_of_a_stage_that_are_exchanged_are_seen(
    tmp_path: Path, python: Path, differs: Callable[..., Difference]
) -> None:
    """Each chunk with the other one's layers: all weights are there, and in the wrong order."""
    fault = """
import canonical
made = canonical.Correspondence.__init__
def exchanged(self, model, shapes, ranks, rank, first_layer, first_expert):
    made(self, model, shapes, ranks, rank, (first_layer + 2) % 4, first_expert)
canonical.Correspondence.__init__ = exchanged
"""
    found = differs(tmp_path, "megatron", python, fault, variant=VARIANTS["PP2 interleaved"])
    assert found.same_weights
    assert found.parameter_norm is not None
    assert found.parameter_norm > 1e-2
    assert not found.is_within_limits()


# How often each layer, from 0, runs forward, written by each rank.
COUNTED = """
import collections, json, os
from megatron.core.transformer.transformer_layer import TransformerLayer
path = os.path.join(os.path.dirname(os.environ["LEVELFIELD_JOB"]), "runs" + os.environ["RANK"])
forward, runs = TransformerLayer.forward, collections.Counter()
def counting(self, *args, **options):
    runs[self.layer_number - 1] += 1
    with open(path, "w") as file:
        json.dump(runs, file)
    return forward(self, *args, **options)
TransformerLayer.forward = counting
"""


@pytest.mark.parametrize(
    ("stages", "chunks", "first"),
    [(2, 2, 1), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, 1, 3), (2, 1, None)))],
)
def test_the_first_layers_of_each_chunk_are_computed_again_as_hfu_counts(
    stages: int, chunks: int, first: int | None, tmp_path: Path, python: Path
) -> None:
    """Once more than the others: a chunk has two layers of eight, or all."""
    variant = Variant("", {"pipeline": stages}, 2, "full", virtual_pipeline=chunks, recompute_layers=first)
    job = small_job({**MODELS["gpt"], "layers": 8}, variant, 2)
    assert [end.returncode for end in launch(job, tmp_path, planted(tmp_path, "megatron", COUNTED), python)] == [
        0
    ] * stages
    found = collections.Counter[int]()
    for rank in range(stages):
        found.update({int(layer): runs for layer, runs in json.loads((tmp_path / f"runs{rank}").read_text()).items()})
    passes, again = 2 * job["accumulation"], repeated_layers(8, stages, chunks, first or 8)
    assert found == {layer: passes * (2 if layer in again else 1) for layer in range(8)}
