"""The predicted time of a step: a roofline for compute, alpha and beta for communication, and the schedule.

Compute: FLOPs at the framework's share of the chip's rate, plus bytes at the memory's rate (Williams et al., 2009).
The two are added, because kernels of training seldom overlap them. Collectives: collectives.py. Pipeline: fill, drain
and the slowest stage, which sets the pace (Narayanan et al., 2021, section 2.2). Gradients: reduced once a step
(Rajbhandari et al., 2020, section 7). The framework's stated overlap hides a part of the communication between stages
and of gradients. Context ranks exchange keys and values: in a ring that attention hides as long as a part computes
longer than the next one travels (Liu et al., 2023, section 3), or by gathers without overlap (Llama team, 2024, section
3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from levelfield.measure.parameter_counts import parameters
from levelfield.predict.collectives import Link, all_reduce_seconds, gather_seconds, send_seconds
from levelfield.predict.operations import (
    BACKWARD,
    FUSED_ATTENTION_BACKWARD,
    SCORE_BLOCK,
    Cost,
    Slice,
    embedding_forward,
    head_forward,
    layer_forward,
)
from levelfield.predict.setup import FP16, FP32, TrainingSetup
from levelfield.specs.constants import AttentionKernel, Pace

# One update reads a gradient, a master weight and two moments in fp32, and writes the three and the 16-bit copy.
UPDATE_BYTES = 4 * FP32 + 3 * FP32 + FP16


@dataclass(frozen=True)
class Machine:
    """The rates of devices and links. Rates are per device: FLOP/s, bytes/s.

    matmul: the achievable rate if known, else the peak; fp8_matmul: the same in fp8, or None. node: the link between
    devices of one node; pair: the rate to a single other device, when only some links lead there. network: between
    nodes, bytes per second of one whole node. None: unknown. operation_seconds: the cost of a launch beside its work.
    gather, scatter: the measured link of gathers and reduce-scatters, when it differs from that of all-reduces.
    attention: FLOP/s of attention's core by kernel, forward and backward together; without an entry it has the rate of
    products.
    """

    matmul_flops_per_second: float
    fp8_matmul_flops_per_second: float | None
    memory_bytes_per_second: float
    node: Link | None
    network: Link | None
    devices_per_node: int
    pair_bytes_per_second: float | None = None
    operation_seconds: float = 0.0
    gather: Link | None = None
    scatter: Link | None = None
    attention: Mapping[AttentionKernel, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictedStep:
    """Seconds of one step, by part. compute: of an average stage; imbalance: the slowest stage minus the average;
    bubble: filling and draining the pipeline; tensor, context, pipeline, data: communication without overlap."""

    compute: float
    imbalance: float
    bubble: float
    tensor: float
    context: float
    pipeline: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        computing = self.compute + self.imbalance + self.bubble + self.optimizer
        return computing + self.tensor + self.context + self.pipeline + self.data

    def parts(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class UnknownLink(ValueError):
    """The layout needs a link whose rate is unknown. The message names the link."""


@dataclass(frozen=True)
class _Schedule:
    """A setup on a machine. part: one rank's share of a micro-batch."""

    setup: TrainingSetup
    machine: Machine
    pace: Pace
    part: Slice


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of one micro-batch in both directions: the computation of a layer, of the embedding and of the head, and
    the messages of a layer. They do not depend on stages, chunks and sharded states."""

    layer: float
    embedding: float
    head: float
    tensor: float
    context: float


def pass_seconds(setup: TrainingSetup, machine: Machine, pace: Pace) -> PassSeconds:
    """Return the parts of one micro-batch's time. Raises UnknownLink."""
    s = _Schedule(setup, machine, pace, slice_of(setup))
    return PassSeconds(
        layer=_seconds(s, _layer_cost(s)),
        embedding=_seconds(s, embedding_forward(setup.model, s.part) * (1 + BACKWARD)),
        head=_seconds(s, head_forward(setup.model, s.part) * (1 + BACKWARD)),
        tensor=_tensor_seconds(s),
        context=_context_seconds(s),
    )


def step_time(setup: TrainingSetup, machine: Machine, pace: Pace, each: PassSeconds | None = None) -> PredictedStep:
    """Return the time of one step, by part. each: the parts of a micro-batch, if known. Raises UnknownLink."""
    s = _Schedule(setup, machine, pace, slice_of(setup))
    each = each or pass_seconds(setup, machine, pace)
    layout, tuning = setup.layout, setup.tuning
    whole, slowest = _whole_and_slowest(setup, each)
    average, layers = whole / layout.pipeline, setup.model.layers / layout.pipeline
    tensor, context, pipeline = each.tensor * layers, each.context * layers, _pipeline_seconds(s)
    filling = whole - slowest + (layout.pipeline - 1) * (tensor + context + pipeline)
    return PredictedStep(
        compute=s.setup.micro_batches * average,
        imbalance=s.setup.micro_batches * (slowest - average),
        bubble=filling / tuning.virtual_pipeline,
        tensor=s.setup.micro_batches * tensor,
        context=s.setup.micro_batches * context,
        pipeline=s.setup.micro_batches * pipeline * tuning.virtual_pipeline,
        data=_data_seconds(s, average),
        optimizer=_update_seconds(s),
    )


def slice_of(setup: TrainingSetup) -> Slice:
    """Return one rank's share of a micro-batch."""
    return Slice(
        tokens=setup.tokens,
        sequence_length=setup.sequence_length,
        tensor=setup.layout.tensor,
        sequence_parallel=setup.layout.sequence_parallel,
        width=setup.width,
        keeps_scores=setup.memory_model.score_bytes > 0,
        gathers_logits=setup.memory_model.gathered_logit_bytes > 0,
    )


def _whole_and_slowest(setup: TrainingSetup, each: PassSeconds) -> tuple[float, float]:
    """Return the compute seconds of one micro-batch on all stages and on the slowest, forward and backward.

    The first stage has the embedding and the most layers, the last has the head. None between takes longer.
    """
    whole = each.layer * setup.model.layers + each.embedding + each.head
    last = setup.layout.pipeline - 1
    if last == 0:
        return whole, whole
    first = each.layer * setup.layers_of(0) + each.embedding
    return whole, max(first, each.layer * setup.layers_of(last) + each.head)


def _layer_cost(s: _Schedule) -> Cost:
    """Return the cost of one layer in both directions, with what is computed again."""
    layer = layer_forward(s.setup.model, s.part)
    attention = Cost(attention_flops=layer.attention_flops)
    cost = layer * (1 + BACKWARD)
    if _fused_attention_rate(s):
        cost += attention * (FUSED_ATTENTION_BACKWARD - BACKWARD)
    if s.setup.tuning.recompute == "full":
        cost += layer
    return cost + attention if s.setup.tuning.recompute == "selective" else cost


def _fused_attention_rate(s: _Schedule) -> float | None:
    """Return the FLOP/s of attention's core in a fused kernel; None where it runs as products."""
    return None if s.part.keeps_scores else s.machine.attention.get(s.pace.attention)


def _seconds(s: _Schedule, cost: Cost) -> float:
    pace, rate = s.pace, s.machine.matmul_flops_per_second * s.pace.matmul_efficiency
    weights_rate = rate
    if s.setup.training.precision == "fp8" and s.machine.fp8_matmul_flops_per_second:
        weights_rate = s.machine.fp8_matmul_flops_per_second * (pace.fp8_efficiency or pace.matmul_efficiency)
    computed = cost.matmul_flops / weights_rate + cost.core_flops / rate + _attention_seconds(s, cost, rate)
    moving = traffic_bytes(cost, pace) / s.machine.memory_bytes_per_second / pace.memory_efficiency
    return computed + moving + cost.operations * s.machine.operation_seconds


def traffic_bytes(cost: Cost, pace: Pace) -> float:
    """Return the bytes that cross the memory's bus, as often as the program moves them."""
    return cost.product_bytes * pace.product_traffic + cost.logit_bytes + cost.moved_bytes * pace.elementwise_traffic


def _attention_seconds(s: _Schedule, cost: Cost, product_rate: float) -> float:
    """Return the time of attention's core. A fused kernel computes the blocks on the diagonal whole."""
    fused = _fused_attention_rate(s)
    if fused is None:
        return cost.attention_flops / product_rate
    return cost.attention_flops * (1 + SCORE_BLOCK / s.setup.sequence_length) / fused


def _tensor_seconds(s: _Schedule) -> float:
    """Return the tensor-parallel communication of one micro-batch in one layer.

    Each layer has two all-reduces forward and two backward; recomputing a layer adds two. Sequence parallelism
    replaces each by a gather and a scatter of the same bytes, and adds two gathers to the backward pass
    (Korthikanti et al., 2022, section 4.2.2).
    """
    ranks = s.setup.layout.tensor
    if ranks == 1:
        return 0.0
    link = _link(s, ranks, 1)
    size = s.part.width * s.part.tokens * s.setup.model.hidden_size
    calls = 6 if s.setup.tuning.recompute == "full" else 4
    if s.setup.layout.sequence_parallel:
        layer = (calls + 2) * _gather_seconds(s, size, ranks, link) + calls * _scatter_seconds(s, size, ranks, link)
    else:
        layer = calls * all_reduce_seconds(size, ranks, link)
    return layer * (1 - s.pace.tensor_overlap)


def _gather_seconds(s: _Schedule, size: float, ranks: int, link: Link) -> float:
    return gather_seconds(size, ranks, s.machine.gather or link)


def _scatter_seconds(s: _Schedule, size: float, ranks: int, link: Link) -> float:
    return gather_seconds(size, ranks, s.machine.scatter or link)


def _context_seconds(s: _Schedule) -> float:
    """Return the exchange of keys and values of one micro-batch in one layer that no computation hides.

    The forward pass moves keys and values; the backward pass moves them again, and their gradients. Recomputation
    repeats the forward pass.
    """
    ranks = s.setup.layout.context
    if ranks == 1:
        return 0.0
    exchange = _gathered_context if s.setup.memory_model.gathers_keys_values else _ring_context
    forward, backward = exchange(s, _link(s, ranks, s.setup.layout.tensor))
    passes = 1 if s.setup.tuning.recompute == "none" else 2
    return passes * forward + backward


def _gathered_context(s: _Schedule, link: Link) -> tuple[float, float]:
    """Return the gathers of a layer forward and backward: attention waits for all keys and values."""
    ranks = s.setup.layout.context
    gathered = gather_seconds(ranks * s.setup.key_value_bytes, ranks, link)
    return gathered, 2 * gathered


def _ring_context(s: _Schedule, link: Link) -> tuple[float, float]:
    """Return what a layer waits for in a ring, forward and backward. In each round a part of the keys and values comes
    while attention computes with the one before; the backward pass sends the gradients with them."""
    rounds, size = s.setup.layout.context - 1, s.setup.key_value_bytes
    fused = _fused_attention_rate(s)
    core = Cost(attention_flops=layer_forward(s.setup.model, s.part).attention_flops)
    attention = _attention_seconds(s, core, s.machine.matmul_flops_per_second * s.pace.matmul_efficiency)
    attention /= s.setup.layout.context
    back = (FUSED_ATTENTION_BACKWARD if fused else BACKWARD) * attention
    forward = max(0.0, send_seconds(size, link) - attention)
    return rounds * forward, rounds * max(0.0, send_seconds(2 * size, link) - back)


def _pipeline_seconds(s: _Schedule) -> float:
    """Return the communication of one micro-batch between two stages: the output forward, its gradient back."""
    if s.setup.layout.pipeline == 1:
        return 0.0
    size = s.part.width * s.part.tokens * s.setup.model.hidden_size / s.part.split
    link = _link(s, 2, s.setup.layout.tensor * s.setup.layout.gradient_ranks)
    return 2 * send_seconds(size, link) * (1 - s.pace.overlap)


def _data_seconds(s: _Schedule, compute: float) -> float:
    """Return the exchange of gradients in a step and, with sharded states, the gather of updated weights.

    ZeRO stages 2 and 3 keep only a rank's own gradients, so they reduce those of every micro-batch. compute: of one
    micro-batch; communication overlaps with the backward pass of the micro-batches that are exchanged.
    """
    layout, batches = s.setup.layout, s.setup.micro_batches
    if layout.gradient_ranks == 1:
        return 0.0
    count = _stage_parameters(s)
    gradients, weights = s.setup.gradient_width * count, s.part.width * count
    if layout.sharding_stage == 0:
        return _exposed(s, _reduced_seconds(s, gradients, layout.gradient_ranks, layout.tensor), compute)
    ranks, link = layout.sharding_degree, _link(s, layout.sharding_degree, layout.tensor)
    exchanged = batches if layout.sharding_stage > 1 else 1
    gathered = 2 * batches if layout.sharding_stage == 3 else 1  # for each forward and each backward pass
    seconds = exchanged * _in_messages(s, gradients, lambda size: _scatter_seconds(s, size, ranks, link))
    seconds += gathered * _in_messages(s, weights, lambda size: _gather_seconds(s, size, ranks, link))
    replicas = layout.gradient_ranks // ranks
    seconds += _reduced_seconds(s, gradients / ranks, replicas, layout.tensor * ranks)
    return _exposed(s, seconds, exchanged * compute)


def _reduced_seconds(s: _Schedule, size: float, ranks: int, stride: int) -> float:
    """Return the all-reduce of gradients over ranks that hold the same part of them."""
    if ranks == 1:
        return 0.0
    link = _link(s, ranks, stride)
    return _in_messages(s, size, lambda part: all_reduce_seconds(part, ranks, link))


def _in_messages(s: _Schedule, size: float, seconds: Callable[[float], float]) -> float:
    """Return the time of an exchange in messages: of a layer with ZeRO stage 3, else of the program's buckets."""
    count = 1.0
    if s.setup.layout.sharding_stage == 3:
        count = s.setup.layers_per_stage
    elif s.pace.bucket_bytes:
        count = max(1.0, size / s.pace.bucket_bytes)
    return count * seconds(size / count)


def _exposed(s: _Schedule, communication: float, compute: float) -> float:
    """Return the communication that does not overlap: no more of it does than there is computation."""
    return max(communication * (1 - s.pace.overlap), communication - compute)


def _update_seconds(s: _Schedule) -> float:
    states = s.setup.layout.sharding_degree if s.setup.layout.sharding_stage else 1
    return UPDATE_BYTES * _stage_parameters(s) / states / s.machine.memory_bytes_per_second


def _stage_parameters(s: _Schedule) -> float:
    """Return the parameters on a rank of the largest stage: its layers, and the embedding or the head."""
    count = _counted(s.setup.model, s.part.sequence_length)
    outside = count.embedding + count.head if s.setup.layout.pipeline == 1 else max(count.embedding, count.head)
    return (count.per_layer * count.layers / s.setup.layout.pipeline + outside) / s.setup.layout.tensor


_counted = lru_cache(maxsize=16)(parameters)


def _link(s: _Schedule, ranks: int, stride: int) -> Link:
    """Return the link of a group of `ranks` whose neighbours are `stride` devices apart.

    Tensor ranks are closest, then context, data and pipeline. Between nodes, all groups of a node share its network.
    """
    machine, share = s.machine, s.pace.communication_efficiency
    between = s.pace.network_efficiency or share
    inside = ranks * stride <= machine.devices_per_node
    if machine.node is None or not (inside or machine.network):
        raise UnknownLink(
            f"{s.setup.layout}: found no rate of the link between {'devices of a node' if inside else 'nodes'}"
        )
    if inside or machine.network is None:
        return Link(machine.node.hop_seconds, share * _node_rate(machine.node, machine.pair_bytes_per_second, ranks))
    through = machine.network.bytes_per_second / min(stride, machine.devices_per_node)
    return Link(_hop_seconds(machine, stride), min(between * through, share * machine.node.bytes_per_second))


def _hop_seconds(machine: Machine, stride: int) -> float:
    """Return the mean latency of a ring's hop: one of the hops in each node goes over the network."""
    assert machine.network is not None and machine.node is not None
    inside = max(1, machine.devices_per_node // stride)
    return (machine.network.hop_seconds + (inside - 1) * machine.node.hop_seconds) / inside


def _node_rate(node: Link, pair: float | None, ranks: int) -> float:
    """Return the rate of a group in a node. In a mesh without a switch, a small group uses only a few links."""
    return node.bytes_per_second if pair is None else min(node.bytes_per_second, pair * (ranks - 1))
