"""The expected memory of a case on the rank that needs most, before a run starts.

Weights, gradients and states: Rajbhandari et al., 2020 (ZeRO), section 3.1 and 5, with Adam's K = 12. Activations:
activations.py. fp8: a one-byte copy of each weight, and a transposed one (Micikevicius et al., 2022, and
transformer-engine's modules). The framework's `MemoryModel` covers what the analyses do not define: its own copies,
and a reserve for everything that is not a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from levelfield.measure.parameter_counts import Shapes, layer_shapes, outer_shapes
from levelfield.predict.activations import LayerBytes, activation_bytes, layer_bytes, waiting_passes
from levelfield.predict.setup import FP8, FP16, FP32, TrainingSetup
from levelfield.specs.architecture import Model

# The head computes chunks of tokens (models/torch/model/head_loss.py), which are equal and of whole tiles of rows.
HOST_CHUNK_BYTES = 2**24  # of a chunk's fp32 logits on the host
# On an accelerator: bytes of a chunk's logits in the products' precision, bytes of fp32 values, and how many fp32
# tensors exist at a time. A rank with the whole vocabulary has the first, ranks that divide it have the second.
WHOLE_HEAD, PART_OF_HEAD = (3 * 2**27, 2**27, 2), (2**28, 2**28, 1)
FUSED_HEAD_BYTES = 2**29  # of a chunk's logits, by a kernel that needs no fp32 values
TILE_ROWS = 128


class Footprint(NamedTuple):
    """Bytes on the rank that needs most."""

    weights: int  # fp32 masters and 16-bit copies
    gradients: int
    optimizer_states: int
    activations: int
    logits: int
    buffers: int  # for the exchange of sharded states, and between context ranks
    reserve: int  # everything that is not a tensor of the training

    @property
    def total(self) -> int:
        tensor_bytes = self.weights + self.gradients + self.optimizer_states + self.activations + self.logits
        return tensor_bytes + self.buffers + self.reserve


class StageStates(NamedTuple):
    """The bytes of a stage that do not depend on micro-batch, virtual stages and recomputation."""

    weights: int
    gradients: int
    optimizer_states: int
    buffers: int  # for the exchange of sharded states
    process: int  # what the process itself takes, with the pools of the streams that exchange sharded states


class StageTransients(NamedTuple):
    """The bytes of a stage that come and go, and do not depend on sharded states and expert ranks."""

    activations: int
    logits: int
    buffers: int  # between context ranks and stages


def expected_memory(setup: TrainingSetup) -> Footprint:
    """Return the footprint of the pipeline stage that needs most.

    The first stage holds the most layers and micro-batches, and the last holds the logits. None between needs more,
    unless only some layers are mixtures of experts, or a stage has buffers for all that it receives in a step.
    """
    return max(stage_footprints(setup, setup.critical_stages), key=lambda footprint: footprint.total)


def stage_footprints(setup: TrainingSetup, stages: Sequence[int] | None = None) -> list[Footprint]:
    """Return the footprint of each of these pipeline stages; None: of all."""
    layer, footprints = layer_bytes(setup), []
    for stage in range(setup.layout.pipeline) if stages is None else stages:
        states, transients = stage_states(setup, stage), stage_transients(setup, stage, layer)
        buffers = states.buffers + transients.buffers
        # gaps between tensors that come and go
        gap_share = 0.0 if setup.on_host else setup.memory_model.fragmentation
        gap_bytes = gap_share * (transients.activations + transients.logits + buffers)
        footprint = Footprint(
            weights=states.weights,
            gradients=states.gradients,
            optimizer_states=states.optimizer_states,
            activations=transients.activations,
            logits=transients.logits,
            buffers=buffers,
            reserve=states.process + int(gap_bytes),
        )
        footprints.append(footprint)
    return footprints


def stage_states(s: TrainingSetup, stage: int) -> StageStates:
    """Return the weights, gradients and optimizer states of a stage on one rank, and what their exchange and the
    process take.

    The allocator holds pools for the streams of gathers and reductions, and gives them to no other: the reduced
    gradients in 32 bits, which are the rank's own, and the largest group on its way, the gradients of the embedding or
    of a layer. From stage 2 on the reduced gradients are there all the time, and counted as gradients.
    """
    parameters, zero_stage = stage_parameters(s, stage), s.layout.sharding_stage
    gradient, masters, moments = s.state_widths
    streams = zero_stage or (s.layout.tensor > 1 and s.layout.data * s.layout.context > 1)
    pool_bytes = 0
    if s.memory_model.stream_pools and streams:
        reduced = FP32 * parameters.total // s.layout.sharding_degree if zero_stage < 2 else 0
        embedding = s.model.vocab_size * s.model.hidden_size // s.layout.tensor
        pool_bytes = reduced + FP32 * max(embedding, largest_layer(s, gathered=True))
    return StageStates(
        weights=_sharded_bytes(s, masters, parameters, zero_stage >= 1) + _compute_copy_bytes(s, stage, parameters),
        gradients=_sharded_bytes(s, gradient, parameters, zero_stage >= 2),
        optimizer_states=_sharded_bytes(s, moments, parameters, zero_stage >= 1),
        buffers=_sharding_buffer_bytes(s, parameters.total),
        process=s.memory_model.host_process_bytes if s.on_host else s.memory_model.reserve_bytes + pool_bytes,
    )


def _sharded_bytes(s: TrainingSetup, width: int, parameters: RankParameters, is_sharded: bool) -> int:
    """Return the bytes of `width` for each parameter of a rank, where they are sharded of its share."""
    if not is_sharded:
        return width * parameters.total
    routed = width * parameters.routed // s.expert_shards if parameters.routed else 0
    return width * parameters.plain // s.layout.sharding_degree + routed


def stage_transients(s: TrainingSetup, stage: int, layer: LayerBytes) -> StageTransients:
    """Return what comes and goes on a stage at its peak: the moment when most activations wait.

    A program that receives all micro-batches of a step in buffers has hidden states from the stage before, and
    gradients from the one behind; of interleaved stages it is what waiting passes passed on. On the host they are pages
    that nothing has written yet.
    """
    logits = _logit_bytes(s) if stage == s.layout.pipeline - 1 else 0
    received = 0
    if s.memory_model.receives_all and not s.on_host:
        neighbours = (stage > 0) + (stage < s.layout.pipeline - 1)
        messages = waiting_passes(s, stage) if s.tuning.virtual_pipeline > 1 else neighbours * s.micro_batches
        received = messages * s.tokens * s.model.hidden_size * s.width // s.sequence_split
    return StageTransients(activation_bytes(s, stage, layer), logits, context_buffers(s) + received)


def constant_bytes(s: TrainingSetup) -> tuple[tuple[int, int], ...]:
    """Return the bytes that micro-batch, virtual stages and recomputation do not change, for each stage that may need
    most, and those of them that are buffers of sharded states."""
    stages = (stage_states(s, stage) for stage in s.critical_stages)
    return tuple((sum(states), states.buffers) for states in stages)


@dataclass(frozen=True)
class RankParameters:
    """The parameters on one rank."""

    plain: int  # those that all ranks of data x context hold
    routed: int = 0  # of the rank's experts

    @property
    def total(self) -> int:
        return self.plain + self.routed


def stage_parameters(s: TrainingSetup, stage: int) -> RankParameters:
    """Return the parameters of a stage on one rank. Matrices are split over tensor ranks, vectors are not. Experts are
    divided over expert ranks, and each of them over tensor ranks."""
    ends = stage == 0, stage == s.layout.pipeline - 1
    layers = s.layers_of(stage), s.mixtures_of(stage)
    return _stage_parameters(s.model, s.training.sequence_length, s.layout.tensor, s.layout.expert, ends, layers)


# The search has few models and tensor sizes, and thousands of layouts.
@lru_cache(maxsize=4096)
def _stage_parameters(
    model: Model, sequence_length: int, tensor: int, expert: int, ends: tuple[bool, bool], layers: tuple[int, int]
) -> RankParameters:
    """Return the parameters of a stage. ends: whether it is the first, and the last; layers: all, and mixtures."""
    (first, last), (all_layers, mixtures) = ends, layers
    tied_copy = model.tied_embeddings and last
    is_on_stage = {"embedding": first or tied_copy, "position": first, "final_norm": last, "head": last}
    shapes = outer_shapes(model, sequence_length).items()
    outer = _rank_elements({name: shape for name, shape in shapes if is_on_stage[name.split(".")[0]]}, tensor)
    if mixtures < all_layers:
        outer += (all_layers - mixtures) * layer_parameters(model, tensor, expert, is_mixture=False).total
    if not mixtures:
        return RankParameters(outer)
    mixture = layer_parameters(model, tensor, expert, is_mixture=True)
    return RankParameters(outer + mixtures * mixture.plain, mixtures * mixture.routed)


@lru_cache(maxsize=256)
def layer_parameters(model: Model, tensor: int, expert: int, is_mixture: bool) -> RankParameters:
    """Return the parameters of a layer on one rank. is_mixture: the layer has experts, else an MLP."""
    shapes = layer_shapes(model, next((n for n in range(model.layers) if model.is_mixture(n) == is_mixture), 0))
    routed = {name: shape for name, shape in shapes.items() if name.startswith("mlp.experts.")}
    others = {name: shape for name, shape in shapes.items() if name not in routed}
    return RankParameters(_rank_elements(others, tensor), sum(map(math.prod, routed.values())) // (tensor * expert))


def _parameters_in_layers(s: TrainingSetup, stage: int) -> int:
    """Return the parameters of a stage's own layers on one rank."""
    mixtures, total = s.mixtures_of(stage), 0
    for count, is_mixture in ((s.layers_of(stage) - mixtures, False), (mixtures, True)):
        if count:
            total += count * layer_parameters(s.model, s.layout.tensor, s.layout.expert, is_mixture).total
    return total


def largest_layer(s: TrainingSetup, gathered: bool = False) -> int:
    """Return the parameters of the largest layer on one rank; gathered: without experts that lie whole on it."""
    sizes, model_and_ranks = [], (s.model, s.layout.tensor, s.layout.expert)
    if s.model.mixture_layers < s.model.layers:
        sizes.append(layer_parameters(*model_and_ranks, is_mixture=False).total)
    if s.model.experts is not None:
        mixture = layer_parameters(*model_and_ranks, is_mixture=True)
        sizes.append(mixture.plain if gathered and s.has_whole_experts else mixture.total)
    return max(sizes)


# Parameters of two dimensions that every tensor rank holds whole: they write or read what is not divided.
UNDIVIDED_MATRICES = ("position", "mlp.router", "attention.query_down", "attention.latent_down")


def _rank_elements(shapes: Shapes, tensor: int) -> int:
    """Return how many elements of these parameters one tensor rank has."""
    return sum(
        math.prod(shape) // (tensor if len(shape) > 1 and not name.startswith(UNDIVIDED_MATRICES) else 1)
        for name, shape in shapes.items()
    )


def _compute_copy_bytes(s: TrainingSetup, stage: int, parameters: RankParameters) -> int:
    """Return the bytes of compute copies beside the masters: in 16 bits but for primary weights in fp8, in fp32 only
    for sharded masters.

    ZeRO stage 3 gathers layer by layer instead (`_sharding_buffer_bytes`), some programs from a sharded copy in 16
    bits. Experts that it does not shard have their copies.
    """
    if s.layout.sharding_stage == 3:
        if s.memory_model.sharded_copy:
            return _sharded_bytes(s, s.width, parameters, True)
        return s.width * parameters.routed if s.width == FP16 and s.has_whole_experts else 0
    in_layers = _parameters_in_layers(s, stage)
    fp8_bytes = 2 * FP8 * in_layers if s.input_width == FP8 else 0  # one copy is transposed
    copied = parameters.total - (in_layers if s.layer_weight_width == FP8 else 0)
    return fp8_bytes + (s.width * copied if s.width == FP16 or s.layout.sharding_stage else 0)


def _sharding_buffer_bytes(s: TrainingSetup, parameters: int) -> int:
    """Return the bytes for the exchange of sharded states. On the host they are the copies that stay in the process.
    ZeRO stage 3 adds two gathered layers (one in use, one in transfer) and the embedding, in some programs the head."""
    if s.layout.sharding_stage == 0:
        return 0
    memory_model = s.memory_model
    buffers = (
        memory_model.host_sharding_copies * s.width * parameters
        if s.on_host
        else min(memory_model.exchange_bytes, FP32 * parameters)
    )
    if s.layout.sharding_stage < 3:
        return buffers
    end_count = 1 if s.model.tied_embeddings or s.layout.pipeline > 1 else memory_model.gathered_ends
    end_parameters = s.model.vocab_size * s.model.hidden_size // s.layout.tensor  # of the embedding, or of the head
    return buffers + s.width * (2 * largest_layer(s, gathered=True) + end_count * end_parameters)


def context_buffers(s: TrainingSetup) -> int:
    """Return the bytes of keys, values and their gradients that one layer's attention holds of other context ranks.

    In a ring these are the part that came and the part that is coming (Liu et al., 2023, section 3), else all parts.
    """
    if s.layout.context == 1:
        return 0
    parts = s.layout.context if s.memory_model.gathers_keys_values else 2
    return 2 * parts * s.key_value_bytes


def gathered_logit_bytes(s: TrainingSetup) -> float:
    """Return the bytes of each logit of the whole vocabulary, where every tensor rank gathers them."""
    gathered = s.memory_model.gathered_logit_bytes
    return gathered + 2 * s.width if gathered and s.layout.tensor > 1 else gathered


def _logit_bytes(s: TrainingSetup) -> int:
    """Return the bytes of the head in chunks: logits of one chunk, fp32 logits and mostly a log-softmax of a part of it
    (on the host of all of it), and two gradients.

    The gradients of the head (fp32) and of its input wait for the backward pass. All logits of a micro-batch are
    4 s b V bytes (Korthikanti et al., 2022, section 4.3). A framework without chunks takes `logit_bytes` for each.
    Gathered ones exist twice more: the parts that came from the tensor ranks, and what they were joined to.
    """
    vocabulary = s.model.vocab_size // s.layout.tensor
    if s.memory_model.logit_bytes is not None:
        gathered = gathered_logit_bytes(s) * s.model.vocab_size
        return int(s.tokens * (s.memory_model.logit_bytes * vocabulary + gathered))
    fp32_logits = FP32 * s.tokens * vocabulary
    if s.on_host:
        head_chunk_bytes = 2 * min(fp32_logits, HOST_CHUNK_BYTES)
    elif s.memory_model.fused_loss:
        head_chunk_bytes = s.width * vocabulary * head_chunk_rows(s.tokens, FUSED_HEAD_BYTES // (s.width * vocabulary))
    else:
        product_bytes, softmax_bytes, tensor_count = WHOLE_HEAD if s.layout.tensor == 1 else PART_OF_HEAD
        rows = head_chunk_rows(s.tokens, product_bytes // (s.width * vocabulary))
        head_chunk_bytes = s.width * vocabulary * rows + min(tensor_count * fp32_logits, softmax_bytes)
    return head_chunk_bytes + FP32 * vocabulary * s.model.hidden_size + s.width * s.tokens * s.model.hidden_size


def head_chunk_rows(tokens: int, max_rows: int) -> int:
    """Return the tokens of one chunk of the head, as models/torch/model/head_on_accelerators.py divides them."""
    tiles = max_rows // TILE_ROWS
    if tokens <= max_rows or tiles == 0:
        return max(1, min(tokens, max_rows))
    return TILE_ROWS * math.ceil(tokens / (TILE_ROWS * math.ceil(tokens / (TILE_ROWS * tiles))))
