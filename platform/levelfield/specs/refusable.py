"""Choices that an implementation may refuse by name, each with a reason: the closed list of implementation.yaml."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

from levelfield.specs.case import Work
from levelfield.specs.tuning import Tuning

Refusable = Literal[
    "compile",
    "flash_attn",
    "compile under zero3",
    "partial sharding",
    "zero2 or zero3 in a pipeline",
    "fewer micro-batches than stages",
    "fp8 with tensor parallel",
    "loss scale between powers of two",
    "experts with tensor but not sequence parallel",
    "experts with biases",
    "experts with compile",
    "experts with fp8",
    "experts of a part of the ranks with zero",
    "experts of a part of the ranks with partial sharding",
    "experts of a part of the ranks with an uneven hidden size",
    "expert capacity with context parallel",
    "latent attention with tensor parallel",
    "latent attention with rope scaling",
]


def refused(names: Iterable[Refusable], work: Work, tuning: Tuning) -> list[Refusable]:
    """Return those of the refused choices that this work and tuning make."""
    return [name for name in names if _MADE[name](work, tuning)]


def _is_short(work: Work, tuning: Tuning) -> bool:
    layout = tuning.layout
    micro_batches = work.training.global_batch // (tuning.micro_batch * layout.data)
    return layout.pipeline > 1 and micro_batches < layout.pipeline


def _divides_experts_alone(work: Work, tuning: Tuning) -> bool:
    layout = tuning.layout
    return work.model.experts is not None and layout.tensor > 1 and not layout.sequence_parallel


def _divides_experts_over_a_part(work: Work, tuning: Tuning) -> bool:
    layout = tuning.layout
    part = layout.sharding_stage > 0 and layout.expert not in (1, layout.gradient_ranks)
    return part and work.model.experts is not None


def _shards_experts_over_a_part(work: Work, tuning: Tuning) -> bool:
    return _divides_experts_over_a_part(work, tuning) and tuning.layout.shards_a_part


def _shards_experts_unevenly(work: Work, tuning: Tuning) -> bool:
    replicas = tuning.layout.gradient_ranks // tuning.layout.expert
    return _divides_experts_over_a_part(work, tuning) and work.model.hidden_size % replicas > 0


def _limits_shared_sequences(work: Work, tuning: Tuning) -> bool:
    experts = work.model.experts
    return experts is not None and experts.capacity_factor is not None and tuning.layout.context > 1


def _scale_is_between(work: Work, tuning: Tuning) -> bool:
    scale = work.training.loss_scale
    return work.training.precision == "fp16" and scale is not None and math.frexp(scale.initial)[0] != 0.5


_MADE: dict[Refusable, Callable[[Work, Tuning], bool]] = {
    "compile": lambda work, tuning: tuning.compile,
    "flash_attn": lambda work, tuning: tuning.attention == "flash_attn",
    "compile under zero3": lambda work, tuning: tuning.compile and tuning.layout.sharding_stage == 3,
    "partial sharding": lambda work, tuning: tuning.layout.shards_a_part,
    "zero2 or zero3 in a pipeline": lambda work, tuning: tuning.layout.sharding_stage > 1 < tuning.layout.pipeline,
    "fewer micro-batches than stages": _is_short,
    "fp8 with tensor parallel": lambda work, tuning: work.training.precision == "fp8" and tuning.layout.tensor > 1,
    "loss scale between powers of two": _scale_is_between,
    "experts with tensor but not sequence parallel": _divides_experts_alone,
    "experts with biases": lambda work, tuning: work.model.experts is not None and work.model.bias,
    "experts with compile": lambda work, tuning: work.model.experts is not None and tuning.compile,
    "experts with fp8": lambda work, tuning: work.model.experts is not None and work.training.precision == "fp8",
    "experts of a part of the ranks with zero": _divides_experts_over_a_part,
    "experts of a part of the ranks with partial sharding": _shards_experts_over_a_part,
    "experts of a part of the ranks with an uneven hidden size": _shards_experts_unevenly,
    "expert capacity with context parallel": _limits_shared_sequences,
    "latent attention with tensor parallel": lambda work, tuning: (
        work.model.latent_attention is not None and tuning.layout.tensor > 1
    ),
    "latent attention with rope scaling": lambda work, _tuning: (
        work.model.latent_attention is not None and work.model.rope_scaling is not None
    ),
}
