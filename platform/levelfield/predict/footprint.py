"""The expected memory of a case on the rank that needs most, before a run starts.

Weights, gradients and states: Rajbhandari et al., 2020 (ZeRO), section 3.1 and 5, with Adam's K = 12. Activations:
activations.py. fp8: a one-byte copy of each weight, and a transposed one (Micikevicius et al., 2022, and
transformer-engine's modules). The framework's `MemoryModel` covers what the analyses do not define: its own copies,
and a reserve for everything that is not a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from levelfield.measure.parameter_counts import Shapes, layer_shapes, outer_shapes
from levelfield.predict.activations import LayerBytes, activations, layer_bytes
from levelfield.predict.setup import FP8, FP16, FP32, TrainingSetup
from levelfield.specs.case import Model

# The head computes chunks of tokens with this many bytes of fp32 logits (models/torch/head_loss.py).
LOGITS_CHUNK_BYTES = {"host": 2**24, "accelerator": 2**28}


@dataclass(frozen=True)
class Footprint:
    """Bytes on the rank that needs most. weights: fp32 masters and 16-bit copies; buffers: for the exchange of sharded
    states and between context ranks; reserve: everything that is not a tensor of the training."""

    weights: int
    gradients: int
    optimizer_states: int
    activations: int
    logits: int
    buffers: int
    reserve: int

    @property
    def total(self) -> int:
        tensors = self.weights + self.gradients + self.optimizer_states + self.activations + self.logits
        return tensors + self.buffers + self.reserve

    def parts(self) -> dict[str, int]:
        """Return the bytes of each part by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class StageStates:
    """The bytes of a stage that do not depend on micro-batch, chunks and recomputation. buffers: for sharded states."""

    weights: int
    gradients: int
    optimizer_states: int
    buffers: int


def expected_memory(
    setup: TrainingSetup, layer: LayerBytes | None = None, states: Sequence[StageStates] | None = None
) -> Footprint:
    """Return the footprint of the pipeline stage that needs most. layer, states: of `end_states`, if they are known.

    The first stage holds the most layers and micro-batches, and the last holds the logits. None between needs more.
    """
    layer, states = layer or layer_bytes(setup), states or end_states(setup)
    ends = ((0, states[0]), (setup.layout.pipeline - 1, states[-1]))
    footprints = [_stage(setup, stage, layer, kept) for stage, kept in ends[: len(states)]]
    return max(footprints, key=lambda f: f.total)


def end_states(setup: TrainingSetup) -> tuple[StageStates, ...]:
    """Return the states of the first and the last stage."""
    return tuple(stage_states(setup, stage) for stage in sorted({0, setup.layout.pipeline - 1}))


def stage_footprints(setup: TrainingSetup) -> list[Footprint]:
    """Return the footprint of each pipeline stage."""
    layer = layer_bytes(setup)
    return [_stage(setup, stage, layer, stage_states(setup, stage)) for stage in range(setup.layout.pipeline)]


def stage_states(s: TrainingSetup, stage: int) -> StageStates:
    count = stage_parameters(s, stage)
    level, degree = s.layout.sharding_stage, s.layout.sharding_degree
    states = degree if level >= 1 else 1
    masters, moments = s.state_widths
    return StageStates(
        weights=masters * count // states + _copies(s, count),
        gradients=s.gradient_width * count // (degree if level >= 2 else 1),
        optimizer_states=moments * count // states,
        buffers=_buffers(s, count),
    )


def _stage(s: TrainingSetup, stage: int, layer: LayerBytes, states: StageStates) -> Footprint:
    """Return the peak of a stage: the moment when most activations wait."""
    waiting, logits = activations(s, stage, layer), _logits(s) if stage == s.layout.pipeline - 1 else 0
    buffers = states.buffers + context_buffers(s)
    return Footprint(
        weights=states.weights,
        gradients=states.gradients,
        optimizer_states=states.optimizer_states,
        activations=waiting,
        logits=logits,
        buffers=buffers,
        reserve=_reserve(s, waiting + logits + buffers),
    )


def _reserve(s: TrainingSetup, passing: int) -> int:
    """Return the bytes that hold no tensor: of the process, and of gaps between tensors that come and go."""
    model = s.memory_model
    return model.host_process_bytes if s.on_host else model.reserve_bytes + int(model.fragmentation * passing)


def stage_parameters(s: TrainingSetup, stage: int) -> int:
    """Return the parameters of a stage on one tensor rank. Matrices are split over tensor ranks, vectors are not."""
    first, last = stage == 0, stage == s.layout.pipeline - 1
    outer = _outer_parameters(s.model, s.sequence_length, s.layout.tensor, first, last)
    return outer + s.layers_of(stage) * layer_parameters(s.model, s.layout.tensor)


# The search has few models and tensor sizes, and thousands of layouts.
@lru_cache(maxsize=256)
def _outer_parameters(model: Model, sequence_length: int, tensor: int, first: bool, last: bool) -> int:
    outer = outer_shapes(model, sequence_length)
    tied_copy = model.tied_embeddings and last
    wanted = {"embedding": first or tied_copy, "position": first, "final_norm": last, "head": last}
    return _held({name: shape for name, shape in outer.items() if wanted[name.split(".")[0]]}, tensor)


@lru_cache(maxsize=256)
def layer_parameters(model: Model, tensor: int) -> int:
    """Return the parameters of one layer on one tensor rank."""
    return _held(layer_shapes(model), tensor)


def _held(shapes: Shapes, tensor: int) -> int:
    return sum(
        math.prod(shape) // (tensor if len(shape) > 1 and not name.startswith("position") else 1)
        for name, shape in shapes.items()
    )


def _copies(s: TrainingSetup, count: int) -> int:
    """Return the bytes of compute copies beside the masters: always in 16 bits, in fp32 only for sharded masters.

    ZeRO stage 3 gathers layer by layer instead (see `_buffers`), some programs from a sharded copy in 16 bits.
    """
    if s.layout.sharding_stage == 3:
        return s.width * count // s.layout.sharding_degree if s.memory_model.sharded_copy else 0
    matrices = s.layers_per_stage * layer_parameters(s.model, s.layout.tensor)
    fp8 = 2 * FP8 * matrices if s.input_width == FP8 else 0  # a copy of each, and a transposed copy
    return fp8 + (s.width * count if s.width == FP16 or s.layout.sharding_stage else 0)


def _buffers(s: TrainingSetup, count: int) -> int:
    """Return the bytes for the exchange of sharded states. On the host they are the copies that stay in the process.
    ZeRO stage 3 adds two gathered layers (one in use, one in transfer) and the embedding."""
    exchanged = s.memory_model.host_sharding_copies if s.on_host and s.layout.sharding_stage else 0
    buffers = exchanged * s.width * count
    if s.layout.sharding_stage < 3:
        return buffers
    embedding = s.model.vocab_size * s.model.hidden_size // s.layout.tensor
    return buffers + s.width * (2 * layer_parameters(s.model, s.layout.tensor) + embedding)


def context_buffers(s: TrainingSetup) -> int:
    """Return the bytes of keys, values and their gradients that one layer's attention holds of other context ranks.

    In a ring the part that came and the part that is coming (Liu et al., 2023, section 3); gathered: all parts.
    """
    if s.layout.context == 1:
        return 0
    parts = s.layout.context if s.memory_model.gathers_keys_values else 2
    return 2 * parts * s.key_value_bytes


def _logits(s: TrainingSetup) -> int:
    """Return the bytes of the head in chunks: fp32 logits and log-softmax of one chunk, and two gradients.

    The gradients of the head (fp32) and of its input wait for the backward pass. All logits of a micro-batch are
    4 s b V bytes (Korthikanti et al., 2022, section 4.3). A framework without chunks takes `logit_bytes` for each.
    """
    vocabulary = s.model.vocab_size // s.layout.tensor
    if s.memory_model.logit_bytes is not None:
        whole = s.memory_model.gathered_logit_bytes * s.model.vocab_size
        return int(s.tokens * (s.memory_model.logit_bytes * vocabulary + whole))
    chunk = min(FP32 * s.tokens * vocabulary, LOGITS_CHUNK_BYTES["host" if s.on_host else "accelerator"])
    return 2 * chunk + FP32 * vocabulary * s.model.hidden_size + s.width * s.tokens * s.model.hidden_size
