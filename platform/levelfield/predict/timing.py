"""The predicted time of a step: a roofline for compute, alpha and beta for communication, and the schedule.

Compute: FLOPs at the framework's share of the chip's rate, plus bytes at the memory's rate (Williams et al., 2009).
The two are added, because kernels of training seldom overlap them. Collectives: collectives.py. Pipeline: fill, drain
and the slowest stage, which sets the pace (Narayanan et al., 2021, section 2.2). Gradients: reduced once a step
(Rajbhandari et al., 2020, section 7). The framework's stated overlap hides a part of the communication between stages
and of gradients. Tensor parallelism has no overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from levelfield.measure.parameter_counts import parameters
from levelfield.predict.collectives import Link, all_reduce_seconds, gather_seconds, send_seconds
from levelfield.predict.operations import BACKWARD, Cost, Slice, embedding_forward, head_forward, layer_forward
from levelfield.predict.setup import FP16, FP32, TrainingSetup
from levelfield.specs.constants import Pace

# One update reads a gradient, a master weight and two moments in fp32, and writes the three and the 16-bit copy.
UPDATE_BYTES = 4 * FP32 + 3 * FP32 + FP16


@dataclass(frozen=True)
class Machine:
    """The rates of devices and links. Rates are per device: FLOP/s, bytes/s.

    matmul: the achievable rate if known, else the peak; fp8_matmul: the same in fp8, or None. node: the link between
    devices of one node; pair: the rate to a single other device, when only some links lead there. network: between
    nodes, bytes per second of one whole node. None: unknown. operation_seconds: the cost of a launch beside its work.
    gather, scatter: the measured link of gathers and reduce-scatters, when it differs from that of all-reduces.
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


@dataclass(frozen=True)
class PredictedStep:
    """Seconds of one step, by part. compute: of an average stage; imbalance: the slowest stage minus the average;
    bubble: filling and draining the pipeline; tensor, pipeline, data: communication without overlap."""

    compute: float
    imbalance: float
    bubble: float
    tensor: float
    pipeline: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self.parts().values())

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


def step_time(setup: TrainingSetup, machine: Machine, pace: Pace) -> PredictedStep:
    """Return the time of one step, by part. Raises UnknownLink."""
    s = _Schedule(setup, machine, pace, slice_of(setup))
    layout, tuning = setup.layout, setup.tuning
    computes = _computes(s)
    average, slowest = sum(computes) / len(computes), max(computes)
    tensor, pipeline = _tensor_seconds(s), _pipeline_seconds(s)
    filling = sum(computes) - slowest + (layout.pipeline - 1) * (tensor + pipeline)
    return PredictedStep(
        compute=s.setup.micro_batches * average,
        imbalance=s.setup.micro_batches * (slowest - average),
        bubble=filling / tuning.virtual_pipeline,
        tensor=s.setup.micro_batches * tensor,
        pipeline=s.setup.micro_batches * pipeline * tuning.virtual_pipeline,
        data=_data_seconds(s),
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
    )


def _computes(s: _Schedule) -> list[float]:
    """Return the compute seconds of one micro-batch on each stage, forward and backward, with embedding and head."""
    layers = layer_forward(s.setup.model, s.part) * (s.setup.model.layers / s.setup.layout.pipeline)
    again = 1.0 if s.setup.tuning.recompute == "full" else 0.0
    cost = layers * (1 + BACKWARD + again)
    if s.setup.tuning.recompute == "selective":
        cost += Cost(core_flops=layers.core_flops)
    stages = [_seconds(s, cost)] * s.setup.layout.pipeline
    stages[0] += _seconds(s, embedding_forward(s.setup.model, s.part) * (1 + BACKWARD))
    stages[-1] += _seconds(s, head_forward(s.setup.model, s.part) * (1 + BACKWARD))
    return stages


def _seconds(s: _Schedule, cost: Cost) -> float:
    rate = s.machine.matmul_flops_per_second
    weights_rate = (s.machine.fp8_matmul_flops_per_second or rate) if s.setup.training.precision == "fp8" else rate
    computed = (cost.matmul_flops / weights_rate + cost.core_flops / rate) / s.pace.matmul_efficiency
    moved = cost.moved_bytes / s.machine.memory_bytes_per_second / s.pace.memory_efficiency
    return computed + moved + cost.operations * s.machine.operation_seconds


def _tensor_seconds(s: _Schedule) -> float:
    """Return the tensor-parallel communication of one micro-batch on a stage.

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
    return layer * s.setup.model.layers / s.setup.layout.pipeline


def _gather_seconds(s: _Schedule, size: float, ranks: int, link: Link) -> float:
    return gather_seconds(size, ranks, s.machine.gather or link)


def _scatter_seconds(s: _Schedule, size: float, ranks: int, link: Link) -> float:
    return gather_seconds(size, ranks, s.machine.scatter or link)


def _pipeline_seconds(s: _Schedule) -> float:
    """Return the communication of one micro-batch between two stages: the output forward, its gradient back."""
    if s.setup.layout.pipeline == 1:
        return 0.0
    size = s.part.width * s.part.tokens * s.setup.model.hidden_size / s.part.split
    return 2 * send_seconds(size, _link(s, 2, s.setup.layout.tensor * s.setup.layout.data)) * (1 - s.pace.overlap)


def _data_seconds(s: _Schedule) -> float:
    """Return the exchange of gradients in a step and, with sharded states, the gather of updated weights."""
    ranks = s.setup.layout.data
    if ranks == 1:
        return 0.0
    link = _link(s, ranks, s.setup.layout.tensor)
    count = _stage_parameters(s)
    gradients, weights = s.setup.gradient_width * count, s.part.width * count
    if s.setup.layout.sharding_stage == 0:
        seconds = all_reduce_seconds(gradients, ranks, link)
    elif s.setup.layout.sharding_stage < 3:
        seconds = _scatter_seconds(s, gradients, ranks, link) + _gather_seconds(s, weights, ranks, link)
    else:  # gathered for each forward and each backward pass
        passes = 2 * s.setup.micro_batches
        seconds = _scatter_seconds(s, gradients, ranks, link) + passes * _gather_seconds(s, weights, ranks, link)
    return seconds * (1 - s.pace.overlap)


def _update_seconds(s: _Schedule) -> float:
    states = s.setup.layout.sharding_degree if s.setup.layout.sharding_stage else 1
    return UPDATE_BYTES * _stage_parameters(s) / states / s.machine.memory_bytes_per_second


def _stage_parameters(s: _Schedule) -> float:
    """Return the parameters on a rank of the largest stage: its layers, and the embedding or the head."""
    count = parameters(s.setup.model, s.part.sequence_length)
    outside = count.embedding + count.head if s.setup.layout.pipeline == 1 else max(count.embedding, count.head)
    return (count.per_layer * count.layers / s.setup.layout.pipeline + outside) / s.setup.layout.tensor


def _link(s: _Schedule, ranks: int, stride: int) -> Link:
    """Return the link of a group of `ranks` whose neighbours are `stride` devices apart.

    Tensor ranks are closest, then data, then pipeline. Between nodes, all groups of a node share its network.
    """
    machine, share = s.machine, s.pace.communication_efficiency
    inside = ranks * stride <= machine.devices_per_node
    if machine.node is None or not (inside or machine.network):
        raise UnknownLink(
            f"{s.setup.layout}: found no rate of the link between {'devices of a node' if inside else 'nodes'}"
        )
    if inside or machine.network is None:
        return Link(machine.node.hop_seconds, share * _node_rate(machine.node, machine.pair_bytes_per_second, ranks))
    through = machine.network.bytes_per_second / min(stride, machine.devices_per_node)
    return Link(machine.network.hop_seconds, share * min(through, machine.node.bytes_per_second))


def _node_rate(node: Link, pair: float | None, ranks: int) -> float:
    """Return the rate of a group in a node. In a mesh without a switch, a small group uses only a few links."""
    return node.bytes_per_second if pair is None else min(node.bytes_per_second, pair * (ranks - 1))
