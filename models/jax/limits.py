"""What this implementation cannot do. Without JAX, so that a refusal needs no other rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.worker import Unsupported, check_no_graph, check_recomputed_layers, check_tensor_parallel, part
from levelfield.worker.architecture import UNUSED

if TYPE_CHECKING:
    from levelfield.worker.architecture import Model
    from levelfield.worker.job import Job, Layout, Tuning

PRECISIONS = ("fp32", "bf16")
ACTIVATIONS = ("gelu", "gelu_tanh", "swiglu")


def check(job: Job) -> None:
    """Raise Unsupported where the implementation cannot do what the job asks for."""
    check_layout(job.layout)
    check_model(job.model)
    check_tuning(job.tuning)
    check_no_graph(job)
    check_recomputed_layers(job)
    if job.training.precision not in PRECISIONS:
        raise Unsupported(f"precision {job.training.precision}; this implementation has {' and '.join(PRECISIONS)}")
    check_tensor_parallel(job)


def check_layout(layout: Layout) -> None:
    for name in ("pipeline", "context", "expert"):
        if getattr(layout, name) > 1:
            raise Unsupported(f"{name} parallel over {getattr(layout, name)} ranks: not written; use data or tensor")


def check_model(model: Model) -> None:
    later_fields = [name for name, unused in UNUSED.items() if part(model, name) != unused]
    if later_fields:
        raise Unsupported(f"model parts {', '.join(later_fields)}: not written")
    if model.activation not in ACTIVATIONS:
        raise Unsupported(f"activation {model.activation}; this implementation has {', '.join(ACTIVATIONS)}")


def check_tuning(tuning: Tuning) -> None:
    if tuning.compile:
        raise Unsupported("compile: XLA compiles this implementation's whole step in every run")
    if tuning.attention != "sdpa":
        raise Unsupported(f"attention {tuning.attention}: the package flash-attn is torch's")
    if tuning.recompute not in ("none", "selective", "full"):
        raise Unsupported(f"recompute '{tuning.recompute}'; this implementation has none, selective and full")
