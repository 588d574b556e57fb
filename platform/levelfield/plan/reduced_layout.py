"""A layout for many devices reduced to a few. Every kind of parallelism stays if there are enough devices."""

from __future__ import annotations

import math
from collections.abc import Collection

from levelfield.specs.case import Work
from levelfield.specs.layout import Layout


def reduced(layout: Layout, devices: int, work: Work, micro_batch: int, offered: Collection[str]) -> Layout:
    """Return the layout with its largest dimension halved until it fits `devices` and the work's sizes.

    Of equal dimensions data is halved first, then context, tensor and pipeline. offered: the parallelism of the
    implementation on these devices. A sharding stage that is not offered becomes the next lower offered one.
    """
    sizes = _within(work, micro_batch, {n: getattr(layout, n) for n in ("data", "context", "tensor", "pipeline")})
    while math.prod(sizes.values()) > devices:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = _halved(sizes[largest])
    return Layout(
        **sizes,
        sequence_parallel=layout.sequence_parallel and sizes["tensor"] > 1 and "sequence" in offered,
        **_sharding(layout, sizes["data"] * sizes["context"], offered),
    )


def _within(work: Work, micro_batch: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes, each halved until it divides the numbers that it splits."""
    model, training = work.model, work.training
    cut = {
        "data": max(1, training.global_batch // micro_batch),
        "context": training.sequence_length // 2,
        "tensor": math.gcd(model.kv_heads, model.heads, model.ffn_hidden_size, model.vocab_size),
        "pipeline": model.layers,
    }
    return {name: _dividing(size, cut[name]) for name, size in sizes.items()}


def _dividing(size: int, whole: int) -> int:
    return size if whole % size == 0 else _dividing(_halved(size), whole)


def _halved(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _sharding(layout: Layout, ranks: int, offered: Collection[str]) -> dict[str, int]:
    stages = [stage for stage in range(1, layout.sharding_stage + 1) if f"zero{stage}" in offered]
    degree = math.gcd(ranks, layout.sharding_degree) if layout.sharding_degree < layout.gradient_ranks else ranks
    if not stages or degree == 1:
        return {}
    return {"sharding_stage": stages[-1], "sharding_degree": degree}
