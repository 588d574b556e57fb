"""Megatron's groups, data-parallel wrapper and optimizer, as the job's layout asks for them."""

import contextlib

import torch.distributed as dist
from device import process_group
from levelfield.worker import Unsupported
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from model import DTYPES


def check(job):
    """Raises Unsupported for what this implementation cannot do, before anything is made."""
    layout, model = job.layout, job.model
    sizes = {name: getattr(model, name) for name in ("heads", "kv_heads", "ffn_hidden_size", "vocab_size")}
    if layout.sequence_parallel:
        sizes["sequence_length"] = job.training.sequence_length
    uneven = [f"{name} {size}" for name, size in sizes.items() if size % layout.tensor]
    reasons = {
        f"tensor parallel over {layout.tensor} ranks: {', '.join(uneven)} cannot be divided by it": uneven,
        f"pipeline of {layout.pipeline} stages: {model.layers} layers cannot be divided by it": (
            model.layers % layout.pipeline
        ),
        "sequence parallel needs tensor parallel": layout.sequence_parallel and layout.tensor == 1,
        f"sharding stage {layout.sharding_stage}; Megatron's distributed optimizer is stage 1": (
            layout.sharding_stage > 1
        ),
        f"sharding over {layout.sharding_degree} of {layout.data} data-parallel ranks; only over all": (
            layout.sharding_stage and layout.sharding_degree != layout.data
        ),
        f"recompute '{job.tuning.recompute}'; this implementation has none, selective and full": (
            job.tuning.recompute not in ("none", "selective", "full")
        ),
        "compile: Megatron fuses its own operations": job.tuning.compile,
        "attention flash_attn is transformer-engine's, on a GPU": (
            job.tuning.attention == "flash_attn" and job.device != "cuda"
        ),
        "precision fp8 needs an NVIDIA device and transformer-engine": (
            job.training.precision == "fp8" and job.device != "cuda"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise Unsupported(reason)


@contextlib.contextmanager
def parallel_groups(job, device):
    """Megatron's process groups while the context lasts: tensor innermost, then data, then pipeline."""
    if job.world_size == 1:  # Megatron needs a group of one too
        dist.init_process_group(job.backend, store=dist.HashStore(), rank=0, world_size=1)
    with process_group(job, device):
        parallel_state.initialize_model_parallel(
            job.layout.tensor, job.layout.pipeline, create_gloo_process_groups=False
        )
        yield


def replicate(job, model):
    """Megatron's DistributedDataParallel around `model`, which sums gradients in float32 into `main_grad`.

    With more than one rank its communication overlaps the backward pass, and the distributed optimizer's the forward.
    """
    config, several = model.config, job.layout.data > 1
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=job.layout.sharding_stage == 1,
        overlap_grad_reduce=several,
        overlap_param_gather=several and job.layout.sharding_stage == 1,
    )
    module = Float16Module(config, model) if config.fp16 or config.bf16 else model
    wrapped = DistributedDataParallel(config, settings, module)
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = wrapped.no_sync if several else None
    return wrapped


def make_optimizer(job, wrapped):
    """Megatron's optimizer over the wrapped model: AdamW, clipping, and fp16's dynamic loss scale."""
    training, scale = job.training, job.training.loss_scale
    config = OptimizerConfig(
        optimizer="adam",
        lr=training.schedule.peak_lr,
        weight_decay=training.optimizer.weight_decay,
        adam_beta1=training.optimizer.beta1,
        adam_beta2=training.optimizer.beta2,
        adam_eps=training.optimizer.eps,
        clip_grad=training.gradient_clip,
        params_dtype=DTYPES[training.precision],
        bf16=wrapped.config.bf16,
        fp16=wrapped.config.fp16,
        use_distributed_optimizer=wrapped.ddp_config.use_distributed_optimizer,
        overlap_param_gather=wrapped.ddp_config.overlap_param_gather,
        initial_loss_scale=scale.initial if scale else 1.0,
        loss_scale_window=scale.growth_interval if scale else 1000,
        hysteresis=1,  # halve at the first overflow
    )
    optimizer = get_megatron_optimizer(config, [wrapped], use_gloo_process_groups=False)
    wrapped.config.grad_scale_func = optimizer.scale_loss
    return optimizer


def set_rates(optimizer, learning_rate, weight_decay):
    """Megatron's groups carry a multiplier for the decay, 0 for biases and norms, that only its scheduler applies."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = learning_rate, weight_decay * group["wd_mult"]
