"""The sizes that a layout divides, and the checks that every implementation calls before the rendezvous.

`DIVIDED_OVER` is the one list of these rules: the platform applies it before it starts a run
(predict/layout_rules.py) and to published rows (publish/row_relations.py). The checks here refuse a job that did not
come from the platform.
"""

from __future__ import annotations

from .architecture import is_mixture, part
from .faults import Unsupported
from .job import Job

# A size of the model, and the dimension of the layout that must divide it. Sequence parallelism adds the last one.
DIVIDED_OVER = {
    "heads": "tensor",
    "kv_heads": "tensor",
    "ffn_hidden_size": "tensor",
    "vocab_size": "tensor",
    "layers": "pipeline",
}
SEQUENCE_OVER = {"sequence_length": "tensor"}
# Sizes of a mixture of experts.
EXPERTS_OVER = {"count": "expert", "ffn_hidden_size": "tensor"}


def check_tensor_parallel(job: Job) -> None:
    """Check that the tensor-parallel ranks divide every size that they share. Raises Unsupported."""
    ranks = job.layout.tensor
    sizes = {name: getattr(job.model, name) for name, over in DIVIDED_OVER.items() if over == "tensor"}
    experts = part(job.model, "experts")
    if experts is not None:
        sizes["experts.ffn_hidden_size"] = experts.ffn_hidden_size
        if all(is_mixture(job.model, layer) for layer in range(job.model.layers)):
            del sizes["ffn_hidden_size"]  # of no layer
    if job.layout.sequence_parallel:
        sizes["sequence_length"] = job.training.sequence_length
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % ranks]
    if uneven:
        raise Unsupported(f"tensor parallel over {ranks} ranks: {', '.join(uneven)} cannot be divided by it")


def check_context_parallel(job: Job) -> None:
    """Check that each context rank has two pieces of every sequence, front and back. Raises Unsupported."""
    ranks, length = job.layout.context, job.training.sequence_length
    tensor = job.layout.tensor if job.layout.sequence_parallel else 1
    if ranks > 1 and (length % (2 * ranks) or length // ranks % tensor):
        beside = f", then by tensor parallel {tensor}" if tensor > 1 else ""
        raise Unsupported(
            f"context parallel over {ranks} ranks: sequence_length {length} cannot be divided by {2 * ranks}{beside}"
        )


def check_pipeline(job: Job) -> None:
    """Check that every stage has a layer and a micro-batch. Raises Unsupported."""
    stages = job.layout.pipeline
    for name, count in (("layers", job.model.layers), ("micro-batches a step", job.accumulation)):
        if count < stages:
            raise Unsupported(f"pipeline of {stages} stages: {count} {name}, expected at least {stages}")
