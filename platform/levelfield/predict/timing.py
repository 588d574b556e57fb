"""The predicted time of a step: the passes of its micro-batches, the schedule of stages, and the exchange of gradients.

One micro-batch: pass_timing.py. Collectives: collectives.py. Pipeline: fill, drain and the slowest stage, which sets
the pace (Narayanan et al., 2021, section 2.2). Gradients: reduced once a step (Rajbhandari et al., 2020, section 7).
The framework's stated overlap hides a part of the communication between stages and of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

from levelfield.measure.parameter_counts import ParameterCount, parameters
from levelfield.predict.footprint import mixture_parameters
from levelfield.predict.machines import MachineRates, all_reduce_seconds, send_seconds
from levelfield.predict.pass_timing import (
    PassSeconds,
    RankWork,
    pass_seconds,
    rank_gather_seconds,
    rank_scatter_seconds,
    slice_of,
)
from levelfield.predict.setup import FP16, FP32, TrainingSetup
from levelfield.specs.architecture import Model
from levelfield.specs.constants import Pace

# One update reads a gradient, a master weight and two moments in fp32, and writes the three and the 16-bit copy.
UPDATE_BYTES = 4 * FP32 + 3 * FP32 + FP16


@dataclass(frozen=True)
class PredictedStep:
    """Seconds of one step, by part. compute: of an average stage; imbalance: the slowest stage minus the average;
    bubble: filling and draining the pipeline; tensor, context, pipeline, data: communication without overlap, as is
    expert, the exchange of tokens between the ranks of experts."""

    compute: float
    imbalance: float
    bubble: float
    tensor: float
    context: float
    pipeline: float
    data: float
    optimizer: float
    expert: float = 0.0

    @property
    def total(self) -> float:
        computing = self.compute + self.imbalance + self.bubble + self.optimizer
        return computing + self.tensor + self.context + self.pipeline + self.data + self.expert

    def parts(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def step_time(
    setup: TrainingSetup, machine: MachineRates, pace: Pace, each: PassSeconds | None = None
) -> PredictedStep:
    """Return the time of one step, by part. each: the parts of a micro-batch, if known. Raises UnknownLink."""
    s = RankWork(setup, machine, pace, slice_of(setup, pace.unfused))
    each = each or pass_seconds(setup, machine, pace)
    layout, tuning = setup.layout, setup.tuning
    whole, slowest = _whole_and_slowest(setup, each)
    average, layers = whole / layout.pipeline, setup.model.layers / layout.pipeline
    tensor, context, pipeline = each.tensor * layers, each.context * layers, _pipeline_seconds(s)
    expert = each.expert * setup.model.mixture_layers / layout.pipeline if each.expert else 0.0
    filling = whole - slowest + (layout.pipeline - 1) * (tensor + context + pipeline + expert)
    return PredictedStep(
        compute=s.setup.micro_batches * average,
        imbalance=s.setup.micro_batches * (slowest - average),
        bubble=filling / tuning.virtual_pipeline * pace.bubble_share,
        tensor=s.setup.micro_batches * tensor,
        context=s.setup.micro_batches * context,
        pipeline=s.setup.micro_batches * pipeline * tuning.virtual_pipeline,
        data=_data_seconds(s, average),
        optimizer=_update_seconds(s),
        expert=s.setup.micro_batches * expert,
    )


def _whole_and_slowest(setup: TrainingSetup, each: PassSeconds) -> tuple[float, float]:
    """Return the compute seconds of one micro-batch on all stages and on the slowest, forward and backward.

    The first stage has the embedding and the most layers, the last has the head. None between takes longer, unless
    only some layers are mixtures of experts.
    """
    mixtures = setup.model.mixture_layers if setup.model.experts else 0
    whole = each.of_layers(setup.model.layers, mixtures) + each.embedding + each.head
    last = setup.layout.pipeline - 1
    if last == 0:
        return whole, whole
    ends = {0: each.embedding, last: each.head}
    stages = (each.of_layers(setup.layers_of(n), setup.mixtures_of(n)) + ends.get(n, 0) for n in setup.end_stages)
    return whole, max(stages)


def _pipeline_seconds(s: RankWork) -> float:
    """Return the communication of one micro-batch between two stages: the output forward, its gradient back."""
    if s.setup.layout.pipeline == 1:
        return 0.0
    size = s.part.width * s.part.tokens * s.setup.model.hidden_size / s.part.split
    link = s.link(2, s.setup.layout.tensor * s.setup.layout.gradient_ranks)
    return 2 * send_seconds(size, link) * (1 - s.pace.overlap)


def _data_seconds(s: RankWork, compute: float) -> float:
    """Return the exchange of gradients in a step and, with sharded states, the gather of updated weights.

    ZeRO stages 2 and 3 keep only a rank's own gradients, so they reduce those of every micro-batch. compute: of one
    micro-batch; communication overlaps with the backward pass of the micro-batches that are exchanged.
    """
    layout, batches = s.setup.layout, s.setup.micro_batches
    if layout.gradient_ranks == 1:
        return 0.0
    plain, routed = _stage_parameters(s)
    exchanged = batches if layout.sharding_stage > 1 else 1
    seconds = _exchange_seconds(s, plain, layout.gradient_ranks, layout.sharding_degree, layout.tensor)
    if routed:
        alike, shards = layout.gradient_ranks // layout.expert, s.setup.expert_shards
        seconds += _exchange_seconds(s, routed, alike, shards, layout.tensor * layout.expert)
    return _exposed(s, seconds, exchanged * compute) + _copy_seconds(s, plain, routed)


def _copy_seconds(s: RankWork, plain: float, routed: float) -> float:
    """Return the copies of gathered weights out of the exchange's buffer, and of gradients into it in 32 bits."""
    stage, batches = s.setup.layout.sharding_stage, s.setup.micro_batches
    if not (s.pace.exchange_copies and stage):
        return 0.0
    count = plain + (0.0 if s.setup.has_whole_experts else routed)
    gathered = 2 * batches if stage == 3 else 1
    copied = gathered * 2 * s.part.width + (batches if stage > 1 else 1) * (s.part.width + FP32)
    return copied * count / (s.machine.memory_bytes_per_second * s.pace.memory_efficiency)


def _exchange_seconds(s: RankWork, count: float, alike: int, shards: int, stride: int) -> float:
    """Return the exchange of gradients and updated weights of `count` parameters that `alike` ranks have in common.
    shards: the ranks over which their states are sharded; stride: the devices between two of them."""
    stage, batches = s.setup.layout.sharding_stage, s.setup.micro_batches
    gradients, weights = s.setup.gradient_width * count, s.part.width * count
    if stage == 0 or shards == 1:
        return (batches if stage > 1 else 1) * _reduced_seconds(s, gradients, alike, stride)
    link = s.link(shards, stride)
    exchanged = batches if stage > 1 else 1
    gathered = 2 * batches if stage == 3 else 1  # for each forward and each backward pass
    seconds = gathered * _in_messages(s, weights, lambda size: rank_gather_seconds(s, size, shards, link))
    if s.pace.reduces_whole and stage < 3:
        return seconds + exchanged * _reduced_seconds(s, gradients, alike, stride)
    seconds += exchanged * _in_messages(s, gradients, lambda size: rank_scatter_seconds(s, size, shards, link))
    return seconds + _reduced_seconds(s, gradients / shards, alike // shards, stride * shards)


def _reduced_seconds(s: RankWork, size: float, ranks: int, stride: int) -> float:
    """Return the all-reduce of gradients over ranks that hold the same part of them."""
    if ranks == 1:
        return 0.0
    link = s.link(ranks, stride)
    return _in_messages(s, size, lambda part: all_reduce_seconds(part, ranks, link))


def _in_messages(s: RankWork, size: float, seconds: Callable[[float], float]) -> float:
    """Return the time of an exchange in messages: of a layer with ZeRO stage 3, else of all in one."""
    count = s.setup.layers_per_stage if s.setup.layout.sharding_stage == 3 else 1
    return count * seconds(size / count)


def _exposed(s: RankWork, communication: float, compute: float) -> float:
    """Return the communication that does not overlap: no more of it does than there is computation."""
    return max(communication * (1 - s.pace.overlap), communication - compute)


def _update_seconds(s: RankWork) -> float:
    plain, routed = _stage_parameters(s)
    if s.setup.layout.sharding_stage:
        plain, routed = plain / s.setup.layout.sharding_degree, routed / s.setup.expert_shards
    return UPDATE_BYTES * (plain + routed) / s.machine.memory_bytes_per_second


def _stage_parameters(s: RankWork) -> tuple[float, float]:
    """Return the parameters on a rank of the largest stage, its layers with the embedding or the head, and those of its
    experts."""
    layout = s.setup.layout
    count, of_experts = _counted(s.setup.model, s.part.sequence_length)
    outside = count.embedding + count.head if layout.pipeline == 1 else max(count.embedding, count.head)
    plain = ((count.in_layers - of_experts) / layout.pipeline + outside) / layout.tensor
    return plain, of_experts / layout.pipeline / layout.tensor / layout.expert


@lru_cache(maxsize=16)
def _counted(model: Model, sequence_length: int) -> tuple[ParameterCount, int]:
    """Return all parameters, and those of the routed experts."""
    routed = model.mixture_layers * mixture_parameters(model, 1, 1).routed if model.experts else 0
    return parameters(model, sequence_length), routed
