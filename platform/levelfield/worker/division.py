"""Whether a layout's ranks can share a model; what an implementation asks before any rank joins the others.

The platform asks the same before it starts a run (relations.py); a job that comes from elsewhere is refused here.
"""

from __future__ import annotations

from types import SimpleNamespace

from .faults import Unsupported

DIVIDED = ("heads", "kv_heads", "ffn_hidden_size", "vocab_size")


def check_tensor_parallel(job: SimpleNamespace) -> None:
    """Raises Unsupported for sizes that the tensor-parallel ranks do not divide."""
    ranks = job.layout.tensor
    sizes = {name: getattr(job.model, name) for name in DIVIDED}
    if job.layout.sequence_parallel:
        sizes["sequence_length"] = job.training.sequence_length
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % ranks]
    if uneven:
        raise Unsupported(f"tensor parallel over {ranks} ranks: {', '.join(uneven)} cannot be divided by it")


def check_pipeline(job: SimpleNamespace) -> None:
    """Raises Unsupported for fewer layers or micro-batches than stages."""
    stages = job.layout.pipeline
    for name, count in (("layers", job.model.layers), ("micro-batches a step", job.accumulation)):
        if count < stages:
            raise Unsupported(f"pipeline of {stages} stages: {count} {name}, expected at least {stages}")
