"""Interleaved stages of torch: what they refuse, what they hold, and faults that only several chunks of a rank have."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from layouts import (
    MODELS,
    NOBODY_JOINS,
    SINGLE,
    Curve,
    Variant,
    compare,
    events,
    launch,
    launch_explained,
    planted,
    small_job,
    train,
)
from levelfield.catalog.registry import Registry
from levelfield.predict.activations import waiting_layers
from levelfield.predict.setup import training_setup
from levelfield.specs.layout import Layout
from levelfield.specs.recorded_runs import Difference
from levelfield.specs.tuning import Tuning
from levelfield.testing.framework_kit.small_jobs import zero_layout
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

INTERLEAVED = VARIANTS["PP2 interleaved"]
STEPS = 3


def test_seven_layers_in_four_chunks_with_one_of_each_computed_again(
    torch_of: Callable[[dict[str, Any]], Curve],
) -> None:
    """The first three parts of the model have two layers, the last one has one."""
    model = {**MODELS["gpt"], "layers": 7}
    variant = Variant("uneven", {"pipeline": 2}, 2, "full", virtual_pipeline=2, recompute_layers=1)
    found = compare(train(small_job(model, variant, STEPS)), torch_of(small_job(model, SINGLE, STEPS)))
    assert found.is_within_limits(), found


@pytest.mark.parametrize(
    "name", [pytest.param("PP2 interleaved", marks=pytest.mark.thorough), "ZeRO 1, DP2 x PP2 interleaved"]
)
def test_sixteen_bits_are_those_of_one_process(name: str, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    """Each chunk casts its parameters once a step, or FSDP2 does."""
    jobs = [small_job(MODELS["gpt"], each, STEPS, precision="bf16") for each in (VARIANTS[name], SINGLE)]
    found = compare(train(jobs[0]), torch_of(jobs[1]))
    assert found.loss is not None
    assert found.same_weights and found.loss < 1e-4, found


# ---- planted faults

SWAPPED = """
from parallelism import parallelize
right = parallelize.stage_of
def other(layers, stages, index):
    found = right(layers, stages, index)
    found.layers = right(layers, stages, (index + 2) % 4).layers
    return found
parallelize.stage_of = other
"""
LOST = """
from step import optimizer
right = optimizer.LocalAdamW.take_gradients
def take(self):
    for name, parameter in zip(self.names, self.parameters):
        if name.startswith("layers.2."):
            parameter.grad.zero_()
    right(self)
optimizer.LocalAdamW.take_gradients = take
"""
UNREDUCED = """
from parallelism import interleaving
right = interleaving.ChunkStage.backward_one_chunk
def never_last(self, micro, *arguments, last_backward=False, **options):
    right(self, micro, *arguments, last_backward=last_backward and self.stage_index >= 2, **options)
interleaving.ChunkStage.backward_one_chunk = never_last
"""
OVERWRITTEN = """
from parallelism import interleaving
right = interleaving.allocate
def same(messages):
    right(messages)
    for message in messages:
        message.buffer = memory.setdefault(message.input_name, message.buffer.detach())
memory = {}
interleaving.allocate = same
"""


@pytest.mark.parametrize(
    ("name", "fault"), [("PP2 interleaved", SWAPPED), ("PP2 interleaved", LOST), ("DP2 x PP2 interleaved", UNREDUCED)]
)
def test_swapped_chunks_and_lost_gradients_are_seen(
    name: str, fault: str, tmp_path: Path, differs: Callable[..., Difference]
) -> None:
    found = differs(tmp_path, "torch", None, fault, variant=VARIANTS[name], steps=STEPS)
    assert found.same_weights and not found.is_within_limits(), found


def test_messages_in_the_same_memory_are_seen(tmp_path: Path, differs: Callable[..., Difference]) -> None:
    """What is received would overwrite what waits for its backward pass. torch may see it, else the curve shows it."""
    try:
        found = differs(tmp_path, "torch", None, OVERWRITTEN, variant=INTERLEAVED, steps=STEPS)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "backward" in str(error)
    else:
        assert not found.is_within_limits(), found


# ---- memory

HELD = """
from parallelism import pipeline
made, step = pipeline.Pipeline.__init__, pipeline.Pipeline.step
def init(self, *arguments):
    made(self, *arguments)
    self.most = 0
    for stage in self.schedule._stages:
        count(self, stage)
def held(self):
    stages = self.schedule._stages
    messages = [each for stage in stages for part in (stage.args_recv_info, stage.grad_recv_info)
                for several in part.values() for each in several]
    sent = [work for stage in stages for work in (*stage.outputs_sent, *stage.gradient_sent)]
    return sum(each.buffer is not None for each in messages) + len(sent)
def count(self, stage):
    right = stage.forward_one_chunk
    def forward(*arguments, **options):
        found = right(*arguments, **options)
        self.most = max(self.most, held(self))
        return found
    stage.forward_one_chunk = forward
def stepped(self, *arguments):
    found = step(self, *arguments)
    assert held(self) == 0, "messages are held after the step"
    assert 0 < self.most <= MOST, f"{self.most} messages are held"
    return found
pipeline.Pipeline.__init__, pipeline.Pipeline.step = init, stepped
"""
MICRO_BATCHES = 8
# On the first rank the outputs of five passes wait; beside them a gradient of each chunk, and what came for the next
# passes.
MOST = 5 + 2 + 4
KEEPS_ALL = """
from parallelism.interleaving import ChunkStage
del ChunkStage.forward_one_chunk, ChunkStage.backward_one_chunk
"""
KEEPS_LAST = """
from parallelism import interleaving
def kept(self, micro):
    interleaving._wait_batch_p2p(self.gradient_sent)
    self.gradient_sent = interleaving._batch_p2p(super(interleaving.ChunkStage, self).get_bwd_send_ops(micro))
    return []
interleaving.ChunkStage.get_bwd_send_ops = kept
"""


@pytest.mark.parametrize("fault", ["", KEEPS_ALL, KEEPS_LAST])
def test_a_rank_holds_the_messages_in_flight_alone(fault: str, tmp_path: Path) -> None:
    """And none beyond the step: a profiler that ends between them has torch write to memory that is freed."""
    variant = Variant("many micro-batches", {"pipeline": 2}, micro_batch=1, virtual_pipeline=2)
    job = small_job(MODELS["gpt"], variant, 2)
    assert job["accumulation"] == MICRO_BATCHES
    script = planted(tmp_path, "torch", fault + HELD.replace("MOST", str(MOST)))
    if fault:
        with pytest.raises(RuntimeError, match="messages are held"):
            train(job, script)
    else:
        train(job, script)


@pytest.mark.parametrize(("layers", "ranks", "chunks"), [(32, 4, 2), (36, 8, 2), (36, 8, 3), (7, 2, 3), (40, 4, 3)])
def test_the_planner_counts_what_waits_in_torchs_schedule(layers: int, ranks: int, chunks: int) -> None:
    """Where chunks differ by a layer, which of them wait changes from one pass to the next."""
    from model.decoder import stage_of
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    case = Registry().case("llama3_8b").work("full")
    work = case.model_copy(update={"model": case.model.model_copy(update={"layers": layers})})
    tuning = Tuning(layout=Layout(pipeline=ranks), virtual_pipeline=chunks)
    setup = training_setup(work, tuning, on_host=False)
    fields = {"n_local_stages": chunks, "pp_group_size": ranks, "microbatches_per_round": ranks}
    schedule: Any = SimpleNamespace(**fields, _n_microbatches=setup.micro_batches)
    sizes = [len(stage_of(layers, ranks * chunks, part).layers) for part in range(ranks * chunks)]
    for rank in range(ranks):
        waiting = most = 0
        for action in filter(None, ScheduleInterleaved1F1B._calculate_single_rank_operations(schedule, rank)):
            waiting += sizes[action.stage_index] * (1 if action.computation_type.name == "FORWARD" else -1)
            most = max(most, waiting)
        assert waiting_layers(setup, rank) == most, rank


class Action(NamedTuple):
    stage_index: int
    computation_type: SimpleNamespace


def actions(*words: str) -> list[Action]:
    return [Action(int(word[0]), SimpleNamespace(name=word[1:])) for word in words]


def test_each_chunk_is_gathered_once_a_step() -> None:
    from parallelism.interleaving import gather_once

    found: Any = actions(
        "0UNSHARD", "0FORWARD", "0RESHARD", "2UNSHARD", "0UNSHARD", "0FULL_BACKWARD", "0RESHARD", "2RESHARD"
    )
    gather_once(found)
    kept = [f"{each.stage_index}{each.computation_type.name}" for each in found]
    assert kept == ["0UNSHARD", "0FORWARD", "2UNSHARD", "0FULL_BACKWARD", "0RESHARD", "2RESHARD"]


# ---- what is refused


@pytest.mark.parametrize(
    ("family", "layout", "batch", "chunks", "says"),
    [
        ("gpt", {}, 8, 2, "a pipeline of 1, expected 2 or more"),
        ("gpt", {"pipeline": 2}, 8, 3, "4 layers, expected at least 2 x 3"),
        ("gpt", {"pipeline": 2}, 6, 2, "3 micro-batches, expected a multiple of pipeline 2"),
        ("gpt", zero_layout(2, pipeline=2), 8, 2, "ZeRO 2, expected at most 1"),
        ("mixture", {"pipeline": 2}, 8, 2, "experts, which is not written"),
    ],
)
def test_what_cannot_be_interleaved_is_refused(
    family: str, layout: dict[str, Any], batch: int, chunks: int, says: str, tmp_path: Path
) -> None:
    job = small_job(MODELS[family], Variant("", layout, virtual_pipeline=chunks), 2, global_batch=batch)
    script = planted(tmp_path, "torch", NOBODY_JOINS)
    assert all(end.returncode for end in launch(job, tmp_path, script))
    assert says in next(event for event in events(tmp_path, 0) if event["event"] == "error")["message"]


@pytest.mark.thorough
def test_the_first_chunk_has_the_embedding_and_the_last_one_the_head_in_an_explained_step(tmp_path: Path) -> None:
    assert [end.returncode for end in launch_explained(small_job(MODELS["gpt"], INTERLEAVED, STEPS), tmp_path, 1)] == [
        0,
        0,
    ]
    records = sorted((tmp_path / "profile").glob("*.json.gz"))
    parts = [set(re.findall(r"lf/([a-z ]+)/model", gzip.decompress(path.read_bytes()).decode())) for path in records]
    assert parts == [{"embedding"}] * 2 + [{"head and loss"}] * 2
