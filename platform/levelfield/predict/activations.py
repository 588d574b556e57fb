"""Bytes of activations that wait for the backward pass, on one rank of one pipeline stage.

The formulas are those of Korthikanti et al., 2022, section 4. Each factor is explicit, so they also hold for grouped
heads, a gated MLP, 32-bit compute and attention kernels without a score matrix (Dao et al., 2022). Micro-batches in
flight: Narayanan et al., 2021, section 2.2 (1F1B, and interleaved over model chunks). fp8: inputs of matrix products
take one byte, as in transformer-engine's modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.specs.case import Model, Training
from levelfield.specs.constants import Keeping
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Tuning

FP32, FP16, FP8, MASK = 4, 2, 1, 1


@dataclass(frozen=True)
class Setting:
    """The numbers that every term needs. tokens: of one micro-batch; width: bytes of a compute value; input_width:
    bytes of a stored input of a matrix product."""

    model: Model
    layout: Layout
    tuning: Tuning
    keeping: Keeping
    sequence_length: int
    tokens: int
    width: int
    input_width: int
    in_host_memory: bool
    accumulation: int

    @property
    def layers_per_stage(self) -> int:
        return math.ceil(self.model.layers / self.layout.pipeline)


def setting_of(
    model: Model, training: Training, layout: Layout, tuning: Tuning, device_kind: str, keeping: Keeping | None
) -> Setting:
    """Return the numbers for a layout. `device_kind` as in vendor.yaml (`cpu`, `nvidia`)."""
    return Setting(
        model=model,
        layout=layout,
        tuning=tuning,
        keeping=keeping or Keeping(),
        sequence_length=training.sequence_length,
        tokens=tuning.micro_batch * training.sequence_length,
        width=FP32 if training.precision == "fp32" else FP16,
        input_width={"fp32": FP32, "fp8": FP8}.get(training.precision, FP16),
        in_host_memory=device_kind == "cpu",
        accumulation=max(1, training.global_batch // (tuning.micro_batch * layout.data)),
    )


def activations(s: Setting, stage: int) -> int:
    """Return the bytes for the backward pass of all micro-batches in flight. The first chunk adds the embedding."""
    embedding = s.tokens * s.model.hidden_size * (s.width + _mask(s)) if stage == 0 else 0
    layers = passes(s, stage) * s.layers_per_stage * stored_of_layer(s) // s.tuning.virtual_pipeline
    stored = layers + passes_of_first_chunk(s, stage) * (embedding // _sequence_split(s))
    working_sets = s.keeping.pipeline_working_sets if s.layout.pipeline > 1 else 1
    return stored + (working_sets * whole_layer(s) if s.tuning.recompute != "none" else 0)


def passes(s: Setting, stage: int) -> int:
    """Return the largest number of forward passes that wait for their backward pass. In 1F1B: pipeline - stage.

    In the interleaved schedule every later chunk adds a round of `pipeline`. On the first of p stages with v chunks
    this is 1 + (p - 1)/(p v) times the activations of 1F1B (Korthikanti et al., 2022, section 4.2.3).
    """
    later = (s.tuning.virtual_pipeline - 1) * min(s.layout.pipeline, s.accumulation)
    return later + passes_of_first_chunk(s, stage)


def passes_of_first_chunk(s: Setting, stage: int) -> int:
    ahead = s.layout.pipeline - stage - 1
    return min((2 * ahead if s.tuning.virtual_pipeline > 1 else ahead) + 1, s.accumulation)


def stored_of_layer(s: Setting) -> int:
    """Return the bytes that one layer keeps for the backward pass.

    Full recomputation keeps the layer's input. Selective recomputation keeps the outputs of matrix products and of
    attention; norms, activations and dropout are recomputed. With Megatron only the inside of attention is recomputed.
    """
    if s.tuning.recompute == "none":
        return whole_layer(s)
    hidden = s.tokens * s.model.hidden_size * s.width // _sequence_split(s)
    if s.tuning.recompute == "full":
        return hidden
    if s.keeping.selective_keeps == "all but scores":
        return whole_layer(s) - _scores(s)
    products = _attention_width(s) + s.model.ffn_hidden_size * (2 if s.model.activation == "swiglu" else 1)
    return 3 * hidden + s.tokens * products * s.width // s.layout.tensor + _scores(s) + _tensor_copies(s)


def whole_layer(s: Setting) -> int:
    """Return the bytes of a whole layer: outside the tensor-parallel regions, inside them, and the scores.

    Korthikanti et al., 2022, equations 1 to 4. GPT in 16 bits without tensor parallel: s b h (10 + 24) + 5 a s^2 b.
    """
    hidden = s.tokens * s.model.hidden_size
    outside = hidden * (2 * s.width + 2 * s.input_width + 2 * _mask(s)) // _sequence_split(s)
    return outside + s.tokens * _split_bytes(s) // s.layout.tensor + _scores(s) + _tensor_copies(s)


def _split_bytes(s: Setting) -> int:
    """Return the bytes per token inside the tensor-parallel regions: those of attention, and those of the MLP before
    and after each step. The heads' output and the MLP's last tensor are inputs of products."""
    heads = s.model.heads * s.model.head_size
    before = (s.keeping.gated_mlp_tensors if s.model.activation == "swiglu" else 2) - 1
    mlp = s.model.ffn_hidden_size * (before * s.width + s.input_width)
    return (_attention_width(s) - heads) * s.width + heads * s.input_width + mlp


def _tensor_copies(s: Setting) -> int:
    apart = s.layout.tensor > 1 and not s.layout.sequence_parallel
    return s.keeping.tensor_parallel_copies * s.tokens * s.model.hidden_size * s.width if apart else 0


def _attention_width(s: Setting) -> int:
    """Return the width of queries, keys, values and the heads' output."""
    return (2 * s.model.heads + 2 * s.model.kv_heads) * s.model.head_size


def _scores(s: Setting) -> int:
    """Return the bytes of scores, softmax and dropout. On the host the kernel keeps them only with dropout."""
    per_score = s.keeping.score_bytes
    if s.in_host_memory:
        per_score = 2 * s.width + MASK if s.model.attention_dropout else 0
    return int(per_score * s.model.heads * s.tokens * s.sequence_length) // s.layout.tensor


def _mask(s: Setting) -> int:
    return MASK if s.model.hidden_dropout else 0


def _sequence_split(s: Setting) -> int:
    return s.layout.tensor if s.layout.sequence_parallel else 1
