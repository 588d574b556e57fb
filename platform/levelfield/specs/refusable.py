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
    "sharded states with experts over a part of the ranks",
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
    "sharded states with experts over a part of the ranks": lambda work, tuning: (
        tuning.layout.sharding_stage > 0 and tuning.layout.expert not in (1, tuning.layout.gradient_ranks)
    ),
}
