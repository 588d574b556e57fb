"""What this implementation cannot do. Without OneFlow, so that a refusal needs no other rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.worker import (
    Unsupported,
    check_layout,
    check_no_graph,
    check_parts,
    check_recomputed_layers,
    check_tensor_parallel,
)

if TYPE_CHECKING:
    from levelfield.worker.job import Job


def check(job: Job) -> None:
    """Raise Unsupported where the implementation cannot do what the job asks for."""
    layout, tuning = job.layout, job.tuning
    check_precision(job)
    check_layout(job, "data", "tensor", "pipeline")
    check_parts(job)
    if tuning.compile:
        raise Unsupported("compile: this implementation runs OneFlow eagerly")
    check_no_graph(job)
    if tuning.attention != "sdpa":
        raise Unsupported(f"attention {tuning.attention}: OneFlow 0.9 has no kernel of it that can train")
    if tuning.recompute == "selective":
        raise Unsupported("recompute 'selective'; this implementation has none and full")
    check_recomputed_layers(job)
    check_tensor_parallel(job)
    if job.model.layers < layout.pipeline:
        raise Unsupported(f"pipeline of {layout.pipeline} stages: {job.model.layers} layers, expected at least as many")


def check_precision(job: Job) -> None:
    precision = job.training.precision
    if precision not in ("fp32", "fp16"):
        raise Unsupported(f"precision {precision}; this implementation has fp32, and fp16 on NVIDIA devices")
    if precision == "fp16" and job.device != "cuda":
        raise Unsupported(
            f"precision fp16: OneFlow's automatic mixed precision is for CUDA; on '{job.device}' it switches itself off"
        )
