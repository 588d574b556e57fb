"""How much memory a case is expected to need on its fullest rank, before anything is started.

Weights, gradients and states: Rajbhandari et al., 2020 (ZeRO), section 3.1 and 5, with Adam's K = 12.
Activations: Korthikanti et al., 2022, section 4, with each factor written out so that it holds for grouped heads, a
gated MLP, 32-bit compute and attention kernels that keep no score matrix (Dao et al., 2022).
Micro-batches in flight: Narayanan et al., 2021, section 2.2 (1F1B, and interleaved over model chunks).

An estimate: it knows nothing of fragmentation or of a framework's own copies. It decides only whether a full case is
worth starting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from levelfield.measure.parameters import Shapes, layer_shapes, outer_shapes
from levelfield.specs.case import Model, Training
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Tuning

FP32, FP16, MASK = 4, 2, 1
# The head works on as many tokens at a time as have so many bytes of fp32 logits (models/torch/head_loss.py).
LOGITS_CHUNK_BYTES = {"host": 2**24, "accelerator": 2**28}
# Driver context, kernels and communication buffers of a process on an accelerator (seen: 0.5 to 1.5 GB).
CONTEXT_BYTES = 1_500_000_000
# Interpreter, framework and allocator of a process on the host (seen: about 0.4 GB).
HOST_PROCESS_BYTES = 400_000_000


@dataclass(frozen=True)
class Footprint:
    """Bytes on the rank that needs most. weights: fp32 masters and 16-bit copies; buffers: all that is no tensor
    of the training, and ZeRO stage 3's gathered layers."""

    weights: int
    gradients: int
    optimizer_states: int
    activations: int
    logits: int
    buffers: int

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))

    def parts(self) -> dict[str, int]:
        """By name, without the total."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class _Setting:
    """The numbers that every term needs. tokens: of one micro-batch; width: bytes of a compute value."""

    model: Model
    layout: Layout
    tuning: Tuning
    sequence_length: int
    tokens: int
    width: int
    in_host_memory: bool
    accumulation: int

    @property
    def layers_per_stage(self) -> int:
        return math.ceil(self.model.layers / self.layout.pipeline)


def expected_memory(model: Model, training: Training, layout: Layout, tuning: Tuning, device_kind: str) -> Footprint:
    """The footprint of the pipeline stage that needs most; `device_kind` as vendor.yaml gives it (`cpu`, `nvidia`)."""
    setting = _Setting(
        model=model,
        layout=layout,
        tuning=tuning,
        sequence_length=training.sequence_length,
        tokens=tuning.micro_batch * training.sequence_length,
        width=FP32 if training.precision == "fp32" else FP16,
        in_host_memory=device_kind == "cpu",
        accumulation=max(1, training.global_batch // (tuning.micro_batch * layout.data)),
    )
    return max((_stage(setting, stage) for stage in range(layout.pipeline)), key=lambda f: f.total)


def _stage(s: _Setting, stage: int) -> Footprint:
    count = _parameters_of_stage(s, stage)
    level, degree = s.layout.sharding_stage, s.layout.sharding_degree
    states = degree if level >= 1 else 1
    gradients = degree if level >= 2 else 1
    return Footprint(
        weights=FP32 * count // states + _copies(s, count),
        gradients=FP32 * count // gradients,
        optimizer_states=2 * FP32 * count // states,
        activations=_activations(s, stage),
        logits=_logits(s) if stage == s.layout.pipeline - 1 else 0,
        buffers=_buffers(s),
    )


def _parameters_of_stage(s: _Setting, stage: int) -> int:
    """Of one tensor rank: matrices are split over the tensor ranks, vectors and positions are not."""
    outer = outer_shapes(s.model, s.sequence_length)
    first, last = stage == 0, stage == s.layout.pipeline - 1
    tied_copy = s.model.tied_embeddings and last
    wanted = {"embedding": first or tied_copy, "position": first, "final_norm": last, "head": last}
    here = {name: shape for name, shape in outer.items() if wanted[name.split(".")[0]]}
    return _held(here, s) + s.layers_per_stage * _held(layer_shapes(s.model), s)


def _held(shapes: Shapes, s: _Setting) -> int:
    return sum(
        math.prod(shape) // (s.layout.tensor if len(shape) > 1 and not name.startswith("position") else 1)
        for name, shape in shapes.items()
    )


def _copies(s: _Setting, count: int) -> int:
    """Whole compute copies beside the masters: in 16 bits always, in fp32 only where the masters are sharded.

    ZeRO stage 3 gathers layer by layer instead: see `_buffers`.
    """
    if s.layout.sharding_stage == 3:
        return 0
    return s.width * count if s.width == FP16 or s.layout.sharding_stage else 0


def _buffers(s: _Setting) -> int:
    """The process itself and, at ZeRO stage 3, two gathered layers (one in use, one on its way) and the embedding."""
    process = HOST_PROCESS_BYTES if s.in_host_memory else CONTEXT_BYTES
    if s.layout.sharding_stage < 3:
        return process
    embedding = s.model.vocab_size * s.model.hidden_size // s.layout.tensor
    return process + s.width * (2 * _held(layer_shapes(s.model), s) + embedding)


def _activations(s: _Setting, stage: int) -> int:
    """What the backward pass needs of every micro-batch in flight; the first chunk's has the embedding's too."""
    embedding = s.tokens * s.model.hidden_size * (s.width + _mask(s)) if stage == 0 else 0
    layers = _passes(s, stage) * s.layers_per_stage * _stored_of_layer(s) // s.tuning.virtual_pipeline
    stored = layers + _passes_of_first_chunk(s, stage) * (embedding // _sequence_split(s))
    return stored + (_whole_layer(s) if s.tuning.recompute != "none" else 0)


def _passes(s: _Setting, stage: int) -> int:
    """Forward passes of one chunk that wait for their backward pass, at most. In 1F1B: pipeline - stage.

    Interleaved, every later chunk adds a round of `pipeline`: on the first of p stages with v chunks, 1 + (p - 1)/(p v)
    times the activations of 1F1B (Korthikanti et al., 2022, section 4.2.3).
    """
    later = (s.tuning.virtual_pipeline - 1) * min(s.layout.pipeline, s.accumulation)
    return later + _passes_of_first_chunk(s, stage)


def _passes_of_first_chunk(s: _Setting, stage: int) -> int:
    ahead = s.layout.pipeline - stage - 1
    return min((2 * ahead if s.tuning.virtual_pipeline > 1 else ahead) + 1, s.accumulation)


def _stored_of_layer(s: _Setting) -> int:
    """Full recomputation keeps a layer's input; selective what its matrix products and its attention give, so
    that norms, activations and dropout are computed again."""
    if s.tuning.recompute == "none":
        return _whole_layer(s)
    hidden = s.tokens * s.model.hidden_size * s.width // _sequence_split(s)
    if s.tuning.recompute == "full":
        return hidden
    products = _attention_width(s) + s.model.ffn_hidden_size * (2 if s.model.activation == "swiglu" else 1)
    return 3 * hidden + s.tokens * products * s.width // s.layout.tensor + _scores(s)


def _whole_layer(s: _Setting) -> int:
    """Korthikanti et al., 2022, equations 1 to 4: outside the tensor-parallel regions, inside them, and the scores.

    For GPT in 16 bits without tensor parallel: s b h (10 + 24) + 5 a s^2 b.
    """
    hidden = s.tokens * s.model.hidden_size
    outside = hidden * (4 * s.width + 2 * _mask(s)) // _sequence_split(s)
    return outside + s.tokens * _split_width(s) * s.width // s.layout.tensor + _scores(s)


def _split_width(s: _Setting) -> int:
    """Values per token inside the tensor-parallel regions: attention's, and the MLP's before and after each step."""
    return _attention_width(s) + s.model.ffn_hidden_size * (4 if s.model.activation == "swiglu" else 2)


def _attention_width(s: _Setting) -> int:
    """Queries, keys, values and the heads' output."""
    return (2 * s.model.heads + 2 * s.model.kv_heads) * s.model.head_size


def _scores(s: _Setting) -> int:
    """Scores, their softmax and its dropout, where the kernel keeps them: on the host when attention has dropout."""
    if not (s.in_host_memory and s.model.attention_dropout):
        return 0
    return (2 * s.width + MASK) * s.model.heads * s.tokens * s.sequence_length // s.layout.tensor


def _mask(s: _Setting) -> int:
    return MASK if s.model.hidden_dropout else 0


def _sequence_split(s: _Setting) -> int:
    return s.layout.tensor if s.layout.sequence_parallel else 1


def _logits(s: _Setting) -> int:
    """The head, in chunks: fp32 logits and their log-softmax of one chunk, and the gradients that wait for the
    backward pass, of the head (fp32) and of its input. A whole micro-batch's logits would be 4 s b V alone
    (Korthikanti et al., 2022, section 4.3)."""
    vocabulary = s.model.vocab_size // s.layout.tensor
    chunk = min(FP32 * s.tokens * vocabulary, LOGITS_CHUNK_BYTES["host" if s.in_host_memory else "accelerator"])
    return 2 * chunk + FP32 * vocabulary * s.model.hidden_size + s.width * s.tokens * s.model.hidden_size
