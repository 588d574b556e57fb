"""Bytes of activations that wait for the backward pass, on one rank of one pipeline stage.

The formulas are those of Korthikanti et al., 2022, section 4. Each factor is explicit, so they also hold for grouped
heads, a gated MLP, 32-bit compute and attention kernels without a score matrix (Dao et al., 2022). Micro-batches in
flight: Narayanan et al., 2021, section 2.2 (1F1B, and interleaved over model chunks). fp8: inputs of matrix products
take one byte, as in transformer-engine's modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.predict.setup import TrainingSetup

MASK = 1  # bytes of a dropout mask's element


@dataclass(frozen=True)
class LayerBytes:
    """The bytes of one layer for one micro-batch: all, and those that wait for the backward pass. They do not depend on
    stages, chunks and sharded states."""

    whole: int
    stored: int


def layer_bytes(s: TrainingSetup) -> LayerBytes:
    whole = whole_layer(s)
    return LayerBytes(whole, _stored(s, whole))


def activations(s: TrainingSetup, stage: int, layer: LayerBytes) -> int:
    """Return the bytes for the backward pass of all micro-batches in flight. The first chunk adds the embedding."""
    embedding = s.tokens * s.model.hidden_size * (s.width + _mask(s)) if stage == 0 else 0
    layers = passes(s, stage) * s.layers_of(stage) * layer.stored // s.tuning.virtual_pipeline
    stored = layers + passes_of_first_chunk(s, stage) * (embedding // _sequence_split(s))
    return stored + _recomputed(s, layer)


def _recomputed(s: TrainingSetup, layer: LayerBytes) -> int:
    """Return the bytes of what is computed again at a time: a whole layer, or the part that selective does not keep."""
    working_sets = s.memory_model.pipeline_working_sets if s.layout.pipeline > 1 else 1
    return working_sets * (layer.whole if s.tuning.recompute == "full" else layer.whole - layer.stored)


def passes(s: TrainingSetup, stage: int) -> int:
    """Return the largest number of forward passes that wait for their backward pass. In 1F1B: pipeline - stage.

    In the interleaved schedule every later chunk adds a round of `pipeline`. On the first of p stages with v chunks
    this is 1 + (p - 1)/(p v) times the activations of 1F1B (Korthikanti et al., 2022, section 4.2.3).
    """
    later = (s.tuning.virtual_pipeline - 1) * min(s.layout.pipeline, s.micro_batches)
    return later + passes_of_first_chunk(s, stage)


def passes_of_first_chunk(s: TrainingSetup, stage: int) -> int:
    ahead = s.layout.pipeline - stage - 1
    return min((2 * ahead if s.tuning.virtual_pipeline > 1 else ahead) + 1, s.micro_batches)


def _stored(s: TrainingSetup, whole: int) -> int:
    """Return the bytes that one layer keeps for the backward pass.

    Full recomputation keeps the layer's input. Selective recomputation keeps the outputs of matrix products and of
    attention; norms, activations and dropout are recomputed. With Megatron only the inside of attention is recomputed.
    No recomputation keeps more than none.
    """
    if s.tuning.recompute == "none":
        return whole
    hidden = s.tokens * s.model.hidden_size * s.width // _sequence_split(s)
    if s.tuning.recompute == "full":
        return hidden
    if s.memory_model.selective_keeps == "all but scores":
        return whole - _scores(s)
    products = _attention_width(s) + s.model.ffn_hidden_size * (2 if s.model.activation == "swiglu" else 1)
    kept = (1 - s.memory_model.selective_recomputes) * s.tokens * products * s.width
    return min(whole, 3 * hidden + int(kept) // s.layout.tensor + _scores(s) + _tensor_copies(s))


def whole_layer(s: TrainingSetup) -> int:
    """Return the bytes of a whole layer: outside the tensor-parallel regions, inside them, and the scores.

    Korthikanti et al., 2022, equations 1 to 4. GPT in 16 bits without tensor parallel: s b h (10 + 24) + 5 a s^2 b.
    """
    hidden = s.tokens * s.model.hidden_size
    norms = 2 * (s.width + s.input_width + s.memory_model.norm_bytes)
    outside = int(hidden * (norms + 2 * _mask(s))) // _sequence_split(s)
    return outside + s.tokens * _split_bytes(s) // s.layout.tensor + _scores(s) + _tensor_copies(s)


def _split_bytes(s: TrainingSetup) -> int:
    """Return the bytes per token inside the tensor-parallel regions: those of attention, and those of the MLP before
    and after each step. The heads' output and the MLP's last tensor are inputs of products."""
    heads = s.model.heads * s.model.head_size
    before = (s.memory_model.gated_mlp_tensors if s.model.activation == "swiglu" else 2) - 1
    mlp = s.model.ffn_hidden_size * (before * s.width + s.input_width)
    return (_attention_width(s) - heads) * s.width + heads * s.input_width + mlp


def _tensor_copies(s: TrainingSetup) -> int:
    apart = s.layout.tensor > 1 and not s.layout.sequence_parallel
    return s.memory_model.tensor_parallel_copies * s.tokens * s.model.hidden_size * s.width if apart else 0


def _attention_width(s: TrainingSetup) -> int:
    """Return the width of queries, keys, values and the heads' output."""
    return (2 * s.model.heads + 2 * s.model.kv_heads) * s.model.head_size


def _scores(s: TrainingSetup) -> int:
    """Return the bytes of scores, softmax and dropout. On the host the kernel keeps them only with dropout."""
    per_score = s.memory_model.score_bytes
    if s.on_host:
        per_score = 2 * s.width + MASK if s.model.attention_dropout else 0
    return int(per_score * s.model.heads * s.tokens * s.sequence_length) // s.layout.tensor


def _mask(s: TrainingSetup) -> int:
    return MASK if s.model.hidden_dropout else 0


def _sequence_split(s: TrainingSetup) -> int:
    return s.layout.tensor if s.layout.sequence_parallel else 1
