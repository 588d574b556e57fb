"""The predicted time of a step: the passes of its micro-batches, the schedule of stages, and the exchange of gradients.

One micro-batch: pass_timing.py. Collectives: machines.py. Pipeline: fill, drain and the slowest stage, which sets
the pace (Narayanan et al., 2021, section 2.2). Gradients: reduced once a step (Rajbhandari et al., 2020, section 7).
The framework's stated overlap hides a part of the communication between stages and of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from levelfield.measure.parameter_counts import ParameterCount, count_parameters
from levelfield.predict.footprint import layer_parameters
from levelfield.predict.machines import MachineRates, all_reduce_seconds, gather_seconds, send_seconds
from levelfield.predict.pass_timing import PassSeconds, RankWork, pass_seconds, rank_work
from levelfield.predict.setup import FP16, FP32, TrainingSetup
from levelfield.specs.architecture import Model
from levelfield.specs.constants import Pace

# One update reads a gradient, a master weight and two moments in fp32, and writes the three and the 16-bit copy.
UPDATE_BYTES = 4 * FP32 + 3 * FP32 + FP16


class PredictedStep(NamedTuple):
    """Seconds of one step, by part. Communication is that without overlap."""

    compute: float  # of an average stage
    imbalance: float  # the slowest stage minus the average
    bubble: float  # filling and draining the pipeline
    tensor: float
    context: float
    pipeline: float
    data: float
    optimizer: float
    expert: float = 0.0  # the exchange of tokens between the ranks of experts

    @property
    def total(self) -> float:
        computing = self.compute + self.imbalance + self.bubble + self.optimizer
        return computing + self.tensor + self.context + self.pipeline + self.data + self.expert


def predicted_step(setup: TrainingSetup, machine: MachineRates, pace: Pace) -> PredictedStep:
    """Return the time of one step, by part. Raises UnknownLink."""
    rank, unrepeated = rank_work(setup, machine, pace), None
    if setup.tuning.recompute_layers:  # the layers beside the repeated ones keep everything
        keeps_all = setup.tuning.model_copy(update={"recompute": "none", "recompute_layers": None})
        unrepeated = pass_seconds(rank_work(replace(setup, tuning=keeps_all), machine, pace))
    return weight_exchange(rank).predict_step(
        step_passes(rank, pass_seconds(rank), unrepeated), setup.tuning.virtual_pipeline
    )


class StepPasses(NamedTuple):
    """The seconds of a step's passes, with one model chunk, without what depends on sharded states: exchange and update
    of weights."""

    compute: float
    imbalance: float
    filling: float  # the time in which 1F1B fills and drains
    tensor: float
    context: float
    pipeline: float
    expert: float
    micro_batch: float  # the computation of one of them on an average stage
    micro_batches: int  # how many a step has


def step_passes(rank: RankWork, parts: PassSeconds, unrepeated: PassSeconds | None = None) -> StepPasses:
    """Return the passes of a step, whatever its chunks where all layers are alike. parts: those of a micro-batch.
    unrepeated: the parts of layers that are not computed again, where only the first ones are. Raises UnknownLink."""
    setup, micro_batches, model = rank.setup, rank.setup.micro_batches, rank.setup.model
    stages = setup.layout.pipeline
    total, slowest = _total_and_slowest_seconds(setup, parts, unrepeated)
    average, pipeline = total / stages, 0.0
    if stages > 1:  # the output of a micro-batch forward to the next stage, its gradient back
        size = rank.share.width * rank.share.tokens * model.hidden_size / rank.share.split
        link = rank.link(2, setup.layout.tensor * setup.layout.gradient_ranks)
        pipeline = 2 * send_seconds(size, link) * (1 - rank.pace.overlap)
    # the messages of an average stage; without `unrepeated` every layer has those of `parts`
    repeated, mixtures_repeated = setup.total_repeated_layers if unrepeated else (model.layers, model.mixture_layers)
    others, other_mixtures = model.layers - repeated, model.mixture_layers - mixtures_repeated
    unrepeated = unrepeated or parts
    tensor = (parts.tensor * repeated + unrepeated.tensor * others) / stages
    context = (parts.context * repeated + unrepeated.context * others) / stages
    expert = (parts.expert * mixtures_repeated + unrepeated.expert * other_mixtures) / stages
    return StepPasses(
        compute=micro_batches * average,
        imbalance=micro_batches * (slowest - average),
        filling=total - slowest + (stages - 1) * (tensor + context + pipeline + expert),
        tensor=micro_batches * tensor,
        context=micro_batches * context,
        pipeline=micro_batches * pipeline,
        expert=micro_batches * expert,
        micro_batch=average,
        micro_batches=micro_batches,
    )


def _total_and_slowest_seconds(
    setup: TrainingSetup, parts: PassSeconds, unrepeated: PassSeconds | None
) -> tuple[float, float]:
    """Return the compute seconds of one micro-batch on all stages and on the slowest, forward and backward.

    The first stage has the embedding and the most layers, the last has the head. None between takes longer, unless
    only some layers are mixtures of experts.
    """
    stages, last = setup.critical_stages, setup.layout.pipeline - 1
    # layers and mixtures among them, of all stages and of each; and those of them that are computed again
    sizes = [(setup.model.layers, setup.model.mixture_layers)]
    sizes += [(setup.layers_of(n), setup.mixtures_of(n)) for n in stages]
    repeats = [setup.total_repeated_layers, *(setup.repeated_layers[n] for n in stages)] if unrepeated else sizes
    unrepeated = unrepeated or parts
    total, *stage_seconds = (
        parts.layers_seconds(repeated, mixtures_repeated)
        + unrepeated.layers_seconds(count - repeated, mixtures - mixtures_repeated)
        for (count, mixtures), (repeated, mixtures_repeated) in zip(sizes, repeats, strict=True)
    )
    total = total + parts.embedding + parts.head
    if last == 0:
        return total, total
    end_seconds = {0: parts.embedding, last: parts.head}
    return total, max(seconds + end_seconds.get(n, 0) for n, seconds in zip(stages, stage_seconds, strict=True))


@dataclass(frozen=True)
class WeightExchange:
    """The exchange of gradients and weights of a layout, and the update."""

    zero_stage: int
    width: int  # bytes of a compute value
    overlap: float  # the share of the messages that computation hides
    # Of all but the experts, and of these, the seconds of a gather of the weights, of a reduction of the gradients, and
    # of what follows once a step.
    messages: tuple[tuple[float, float, float], ...]
    copied_weights: float  # how many are copied between the exchange's buffers and the tensors
    copy_rate: float  # bytes a second of these copies
    update: float  # seconds

    def predict_step(self, passes: StepPasses, chunks: int) -> PredictedStep:
        """Return the step of so many model chunks, with the exchange and the update.

        ZeRO stages 2 and 3 keep only a rank's own gradients, so they reduce those of every micro-batch. Communication
        overlaps with the backward pass of the micro-batches that are exchanged: no more of it than these compute.
        """
        compute, imbalance, filling, tensor, context, pipeline, expert, micro_batch, micro_batches = passes
        reductions = micro_batches if self.zero_stage > 1 else 1
        gathers = 2 * micro_batches if self.zero_stage == 3 else 1  # for each forward and each backward pass
        sent_seconds = 0.0
        for gather, reduce, once in self.messages:
            sent_seconds += gathers * gather + reductions * reduce + once
        exposed_seconds = max(sent_seconds * (1 - self.overlap), sent_seconds - reductions * micro_batch)
        if self.copied_weights:
            exposed_seconds += (
                (gathers * 2 * self.width + reductions * (self.width + FP32)) * self.copied_weights / self.copy_rate
            )
        return PredictedStep(
            compute,
            imbalance,
            filling / chunks,
            tensor,
            context,
            pipeline * chunks,
            exposed_seconds,
            self.update,
            expert,
        )


def weight_exchange(rank: RankWork) -> WeightExchange:
    """Return the exchange of a layout, whatever its micro-batch, chunks and recomputation. Raises UnknownLink."""
    layout, messages = rank.setup.layout, []
    # the parameters on a rank of the largest stage, its layers with the embedding or the head, and of its experts
    count, expert_parameters = _parameter_counts(rank.setup.model, rank.share.sequence_length)
    outside = count.embedding + count.head if layout.pipeline == 1 else max(count.embedding, count.head)
    in_layers = (count.in_layers - expert_parameters) / layout.pipeline / layout.tensor
    plain, layer_width = in_layers + outside / layout.tensor, rank.setup.layer_weight_width
    routed = expert_parameters / layout.pipeline / layout.tensor / layout.expert
    if layout.gradient_ranks > 1:
        weights = layer_width * in_layers + rank.share.width * outside / layout.tensor
        ranks = layout.gradient_ranks, layout.sharding_degree
        messages.append(_exchange_seconds(rank, plain, weights, *ranks, layout.tensor))
        if routed:
            holders, shards = layout.gradient_ranks // layout.expert, rank.setup.expert_shards
            stride = layout.tensor * layout.expert
            messages.append(_exchange_seconds(rank, routed, layer_width * routed, holders, shards, stride))
    copied_weights = plain + (0.0 if rank.setup.has_whole_experts else routed)
    has_copies = rank.pace.exchange_copies and layout.sharding_stage and layout.gradient_ranks > 1
    rate = rank.machine.memory_bytes_per_second
    if layout.sharding_stage:
        plain, routed = plain / layout.sharding_degree, routed / rank.setup.expert_shards
    return WeightExchange(
        zero_stage=layout.sharding_stage,
        width=rank.share.width,
        overlap=rank.pace.overlap,
        messages=tuple(messages),
        copied_weights=copied_weights if has_copies else 0.0,
        copy_rate=rate * rank.pace.memory_efficiency,
        update=UPDATE_BYTES * (plain + routed) / rate,
    )


def _exchange_seconds(
    rank: RankWork, count: float, weights: float, holders: int, shards: int, stride: int
) -> tuple[float, float, float]:
    """Return the seconds of a gather of `count` parameters that `holders` ranks have in common, of a reduction of their
    gradients, and of what follows once a step.
    weights: their bytes as they are gathered; shards: the ranks over which their states are sharded; stride: the
    devices between two of them."""
    stage, width = rank.setup.layout.sharding_stage, rank.setup.state_widths[0]
    gradients = width * count
    messages = rank.setup.layers_of(0) if stage == 3 else 1  # of a layer with ZeRO stage 3, else of all in one
    if stage == 0 or shards == 1:
        return 0.0, _all_reduce_seconds(rank, gradients, messages, holders, stride), 0.0
    link = rank.link(shards, stride)
    gather = messages * gather_seconds(weights / messages, shards, rank.machine.gather or link)
    if rank.pace.reduces_whole and stage < 3:
        return gather, _all_reduce_seconds(rank, gradients, messages, holders, stride), 0.0
    reduce = messages * gather_seconds(gradients / messages, shards, rank.machine.scatter or link)
    return gather, reduce, _all_reduce_seconds(rank, gradients / shards, messages, holders // shards, stride * shards)


def _all_reduce_seconds(rank: RankWork, size: float, messages: int, ranks: int, stride: int) -> float:
    """Return the all-reduce of gradients over ranks that hold the same part of them, in so many messages."""
    return messages * all_reduce_seconds(size / messages, ranks, rank.link(ranks, stride)) if ranks > 1 else 0.0


@lru_cache(maxsize=256)
def _parameter_counts(model: Model, sequence_length: int) -> tuple[ParameterCount, int]:
    """Return all parameters, and those of the routed experts."""
    routed = model.mixture_layers * layer_parameters(model, 1, 1, is_mixture=True).routed if model.experts else 0
    return count_parameters(model, sequence_length), routed
