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
    s, unrepeated = rank_work(setup, machine, pace), None
    if setup.tuning.recompute_layers:  # the layers beside the repeated ones keep everything
        keeps_all = setup.tuning.model_copy(update={"recompute": "none", "recompute_layers": None})
        unrepeated = pass_seconds(rank_work(replace(setup, tuning=keeps_all), machine, pace))
    return weight_exchange(s).step_with(step_passes(s, pass_seconds(s), unrepeated), setup.tuning.virtual_pipeline)


class StepPasses(NamedTuple):
    """The seconds of a step's passes, with one model chunk, without what depends on sharded states: exchange and update
    of weights. filling: the time in which 1F1B fills and drains. micro_batch: the computation of one of them on an
    average stage."""

    compute: float
    imbalance: float
    filling: float
    tensor: float
    context: float
    pipeline: float
    expert: float
    micro_batch: float
    micro_batches: int


def step_passes(s: RankWork, parts: PassSeconds, unrepeated: PassSeconds | None = None) -> StepPasses:
    """Return the passes of a step, whatever its chunks where all layers are alike. parts: those of a micro-batch.
    unrepeated: the parts of layers that are not computed again, where only the first ones are. Raises UnknownLink."""
    setup, micro_batches, model = s.setup, s.setup.micro_batches, s.setup.model
    stages = setup.layout.pipeline
    total, slowest = _total_and_slowest_seconds(setup, parts, unrepeated)
    average, pipeline = total / stages, 0.0
    if stages > 1:  # the output of a micro-batch forward to the next stage, its gradient back
        size = s.part.width * s.part.tokens * model.hidden_size / s.part.split
        link = s.link(2, setup.layout.tensor * setup.layout.gradient_ranks)
        pipeline = 2 * send_seconds(size, link) * (1 - s.pace.overlap)
    # the messages of an average stage; without `plain` every layer has those of `parts`
    repeated, mixtures_repeated = setup.total_repeated if unrepeated else (model.layers, model.mixture_layers)
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
    repeats = [setup.total_repeated, *(setup.repeated[n] for n in stages)] if unrepeated else sizes
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

    stage: int
    width: int
    overlap: float
    # Of all but the experts, and of these, the seconds of a gather of the weights, of a reduction of the gradients, and
    # of what follows once a step.
    messages: tuple[tuple[float, float, float], ...]
    copied: float  # weights that are copied between the exchange's buffers and the tensors
    copy_rate: float  # bytes a second of these copies
    update: float

    def step_with(self, passes: StepPasses, chunks: int) -> PredictedStep:
        """Return the step of so many model chunks, with the exchange and the update.

        ZeRO stages 2 and 3 keep only a rank's own gradients, so they reduce those of every micro-batch. Communication
        overlaps with the backward pass of the micro-batches that are exchanged: no more of it than these compute.
        """
        compute, imbalance, filling, tensor, context, pipeline, expert, micro_batch, micro_batches = passes
        reductions = micro_batches if self.stage > 1 else 1
        gathers = 2 * micro_batches if self.stage == 3 else 1  # for each forward and each backward pass
        sent_seconds = 0.0
        for gather, reduce, once in self.messages:
            sent_seconds += gathers * gather + reductions * reduce + once
        exposed_seconds = max(sent_seconds * (1 - self.overlap), sent_seconds - reductions * micro_batch)
        if self.copied:
            exposed_seconds += (
                (gathers * 2 * self.width + reductions * (self.width + FP32)) * self.copied / self.copy_rate
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


def weight_exchange(s: RankWork) -> WeightExchange:
    """Return the exchange of a layout, whatever its micro-batch, chunks and recomputation. Raises UnknownLink."""
    layout, messages = s.setup.layout, []
    # the parameters on a rank of the largest stage, its layers with the embedding or the head, and of its experts
    count, in_experts = _parameter_counts(s.setup.model, s.part.sequence_length)
    outside = count.embedding + count.head if layout.pipeline == 1 else max(count.embedding, count.head)
    plain = ((count.in_layers - in_experts) / layout.pipeline + outside) / layout.tensor
    routed = in_experts / layout.pipeline / layout.tensor / layout.expert
    if layout.gradient_ranks > 1:
        messages.append(_exchange_seconds(s, plain, layout.gradient_ranks, layout.sharding_degree, layout.tensor))
        if routed:
            holders, shards = layout.gradient_ranks // layout.expert, s.setup.expert_shards
            messages.append(_exchange_seconds(s, routed, holders, shards, layout.tensor * layout.expert))
    copied = plain + (0.0 if s.setup.has_whole_experts else routed)
    copies = s.pace.exchange_copies and layout.sharding_stage and layout.gradient_ranks > 1
    rate = s.machine.memory_bytes_per_second
    if layout.sharding_stage:
        plain, routed = plain / layout.sharding_degree, routed / s.setup.expert_shards
    return WeightExchange(
        stage=layout.sharding_stage,
        width=s.part.width,
        overlap=s.pace.overlap,
        messages=tuple(messages),
        copied=copied if copies else 0.0,
        copy_rate=rate * s.pace.memory_efficiency,
        update=UPDATE_BYTES * (plain + routed) / rate,
    )


def _exchange_seconds(s: RankWork, count: float, holders: int, shards: int, stride: int) -> tuple[float, float, float]:
    """Return the seconds of a gather of `count` parameters that `holders` ranks have in common, of a reduction of their
    gradients, and of what follows once a step.
    shards: the ranks over which their states are sharded; stride: the devices between two of them."""
    stage, width = s.setup.layout.sharding_stage, s.setup.state_widths[0]
    gradients, weights = width * count, s.part.width * count
    messages = s.setup.layers_of(0) if stage == 3 else 1  # of a layer with ZeRO stage 3, else of all in one
    if stage == 0 or shards == 1:
        return 0.0, _all_reduce_seconds(s, gradients, messages, holders, stride), 0.0
    link = s.link(shards, stride)
    gather = messages * gather_seconds(weights / messages, shards, s.machine.gather or link)
    if s.pace.reduces_whole and stage < 3:
        return gather, _all_reduce_seconds(s, gradients, messages, holders, stride), 0.0
    reduce = messages * gather_seconds(gradients / messages, shards, s.machine.scatter or link)
    return gather, reduce, _all_reduce_seconds(s, gradients / shards, messages, holders // shards, stride * shards)


def _all_reduce_seconds(s: RankWork, size: float, messages: int, ranks: int, stride: int) -> float:
    """Return the all-reduce of gradients over ranks that hold the same part of them, in so many messages."""
    return messages * all_reduce_seconds(size / messages, ranks, s.link(ranks, stride)) if ranks > 1 else 0.0


@lru_cache(maxsize=256)
def _parameter_counts(model: Model, sequence_length: int) -> tuple[ParameterCount, int]:
    """Return all parameters, and those of the routed experts."""
    routed = model.mixture_layers * layer_parameters(model, 1, 1, mixture=True).routed if model.experts else 0
    return count_parameters(model, sequence_length), routed
