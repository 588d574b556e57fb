"""Checks that a layout's ranks can divide a model; every implementation calls them before the rendezvous.

The platform makes the same checks before it starts a run (predict/layout_rules.py). These checks refuse a job
that did not come from the platform.
"""

from __future__ import annotations

from types import SimpleNamespace

from .faults import Unsupported

DIVIDED = ("heads", "kv_heads", "ffn_hidden_size", "vocab_size")


def check_tensor_parallel(job: SimpleNamespace) -> None:
    """Check that the tensor-parallel ranks divide every size that they share. Raises Unsupported."""
    ranks = job.layout.tensor
    sizes = {name: getattr(job.model, name) for name in DIVIDED}
    if job.layout.sequence_parallel:
        sizes["sequence_length"] = job.training.sequence_length
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % ranks]
    if uneven:
        raise Unsupported(f"tensor parallel over {ranks} ranks: {', '.join(uneven)} cannot be divided by it")


def check_pipeline(job: SimpleNamespace) -> None:
    """Check that every stage has a layer and a micro-batch. Raises Unsupported."""
    stages = job.layout.pipeline
    for name, count in (("layers", job.model.layers), ("micro-batches a step", job.accumulation)):
        if count < stages:
            raise Unsupported(f"pipeline of {stages} stages: {count} {name}, expected at least {stages}")
