"""DeepSpeed's JSON configuration of a job, and what this implementation cannot do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from deepspeed.accelerator import get_accelerator
from levelfield.worker import Unsupported, check_layout, check_no_graph, check_parts
from levelfield.worker.job import Job
from model.attention import check_attention
from step.recompute import check_recompute

if TYPE_CHECKING:
    from levelfield.worker.job import LossScale, Training

NEVER = 2**62  # steps
# Of torch's model; its experts need an exchange of tokens that the engine does not know.
OPTIONAL_PARTS = (
    "head_dim", "qkv_bias", "attention_bias", "norm_bias", "query_key_norm", "joint_query_key_norm", "sliding_window",
    "full_attention_interval", "rope_scaling", "rotary_dim", "no_rope_interval", "norm_place", "parallel_residual",
    "embedding_scale", "residual_scale", "logit_scale", "attention_scale",
)  # fmt: skip


def configuration(job: Job) -> dict[str, Any]:
    """Return what deepspeed.initialize is given as `config`."""
    training, tuning = job.training, job.tuning
    return {
        "train_batch_size": training.global_batch,
        "train_micro_batch_size_per_gpu": tuning.micro_batch,
        "gradient_accumulation_steps": job.accumulation,
        "gradient_clipping": 0.0 if clips_here(job) else training.gradient_clip,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": accumulation_type(job)},
        "zero_optimization": zero_optimization(job),
        "steps_per_print": NEVER,
        **precision(training),
    }


def clips_here(job: Job) -> bool:
    """Return whether this training clips gradients itself.

    Without ZeRO and in float32 the engine clips by torch's norm in float32, and reports it nowhere.
    """
    return job.layout.sharding_stage == 0 and job.training.precision == "fp32"


def zero_optimization(job: Job) -> dict[str, Any]:
    """Return ZeRO's settings; it communicates beside the backward pass where a device has streams to do so."""
    return {
        "stage": job.layout.sharding_stage,
        "overlap_comm": job.device != "cpu",
        "contiguous_gradients": True,
        "reduce_scatter": job.device != "cpu",
    }


def accumulation_type(job: Job) -> str:
    """Return fp32, or without ZeRO the parameters' own type: there DeepSpeed accumulates gradients in no other."""
    return job.training.precision if job.layout.sharding_stage == 0 else "fp32"


def precision(training: Training) -> dict[str, Any]:
    """Return the settings of the precision.

    Parameters of 16 bits have a float32 master copy in the optimizer. fp16's loss scale is that of the case.
    """
    if training.precision == "bf16":
        return {"bf16": {"enabled": True}}
    if training.precision != "fp16":
        return {}
    scale: LossScale = training.loss_scale  # type: ignore[assignment]  # fp16 has one
    return {
        "fp16": {
            "enabled": True,
            "initial_scale_power": int(math.log2(scale.initial)),
            "loss_scale_window": scale.growth_interval,
            "hysteresis": 1,
        }
    }


def check(job: Job) -> None:
    """Raise Unsupported for what this implementation has not. Every rank asks before it joins the others."""
    check_recompute(job.tuning)
    check_attention(job.tuning.attention)
    check_no_graph(job)
    layout, precision = job.layout, job.training.precision
    check_layout(job, "data", "zero1", "zero2", "zero3")
    check_parts(job, *OPTIONAL_PARTS)
    if layout.sharding_stage and layout.sharding_degree != layout.data:
        raise Unsupported(f"ZeRO over {layout.sharding_degree} of {layout.data} ranks: it is over all of them here")
    if precision == "fp8":
        raise Unsupported("precision fp8; this implementation has fp32, bf16 and fp16")
    if precision == "fp16" and not get_accelerator().is_fp16_supported():
        raise Unsupported(
            f"precision fp16: DeepSpeed reports that this {job.device} does not compute in it; a cpu needs "
            "instructions for fp16 that oneDNN uses, such as avx512_fp16"
        )
    scale = job.training.loss_scale
    if precision == "fp16" and scale is not None and not math.log2(scale.initial).is_integer():
        raise Unsupported(f"loss scale {scale.initial:g}: DeepSpeed's configuration holds the exponent of 2 only")
    if job.tuning.compile and layout.sharding_stage == 3:
        raise Unsupported("compile under ZeRO 3, which gathers parameters inside of what would be compiled")
