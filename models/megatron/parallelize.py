"""Megatron's groups, data-parallel wrapper and optimizer, as the job's layout asks for them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch.distributed as dist
from device import process_group
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.module import Float16Module
from mixture import list_routers
from model import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from levelfield.worker.job import Job
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import MegatronOptimizer


@contextlib.contextmanager
def parallel_groups(job: Job, device: torch.device) -> Iterator[None]:
    """Open Megatron's process groups while the context lasts.

    The order is tensor innermost, then context, data and pipeline. Experts lie over consecutive ranks of data and
    context, and each expert over the tensor-parallel ranks.
    """
    if job.world_size == 1:  # Megatron needs a group of one too
        dist.init_process_group(job.backend, store=dist.HashStore(), rank=0, world_size=1)
    with process_group(job, device):
        chunks = job.tuning.virtual_pipeline
        parallel_state.initialize_model_parallel(
            job.layout.tensor,
            job.layout.pipeline,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            context_parallel_size=job.layout.context,
            expert_model_parallel_size=job.layout.expert,
            create_gloo_process_groups=False,
        )
        yield


def replicate(job: Job, chunks: Sequence[GPTModel]) -> list[DistributedDataParallel]:
    """Wrap each model chunk in Megatron's DistributedDataParallel, which sums gradients in float32 into `main_grad`.

    With more than one rank its communication overlaps the backward pass, and the distributed optimizer's the forward.
    """
    config, has_replicas = chunks[0].config, job.layout.data * job.layout.context > 1
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=job.layout.sharding_stage == 1,
        overlap_grad_reduce=has_replicas,
        overlap_param_gather=has_replicas and job.layout.sharding_stage == 1,
    )
    is_16_bit = config.fp16 or config.bf16
    chunks = [Float16Module(config, chunk) if is_16_bit else chunk for chunk in chunks]
    for router in list_routers(chunks):
        router.float()  # its weight, and the counts beside it
    # a later chunk's gradients are ready while other chunks still compute: one bucket is enough for them
    ddp_chunks = [
        DistributedDataParallel(config, settings, chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]
    config.finalize_model_grads_func = finalize_model_grads
    # what keeps gradients local until the last micro-batch: the interleaved schedule takes a list
    no_sync_contexts = [chunk.no_sync for chunk in ddp_chunks] if len(ddp_chunks) > 1 else ddp_chunks[0].no_sync
    config.no_sync_func = no_sync_contexts if has_replicas else None
    return ddp_chunks


def make_optimizer(job: Job, ddp_chunks: list[DistributedDataParallel]) -> MegatronOptimizer:
    """Make Megatron's optimizer over the wrapped chunks: AdamW, clipping, and fp16's dynamic loss scale."""
    training, scale = job.training, job.training.loss_scale
    model, replication = ddp_chunks[0].config, ddp_chunks[0].ddp_config
    config = OptimizerConfig(
        optimizer="adam",
        lr=training.schedule.peak_lr,
        weight_decay=training.optimizer.weight_decay,
        adam_beta1=training.optimizer.beta1,
        adam_beta2=training.optimizer.beta2,
        adam_eps=training.optimizer.eps,
        clip_grad=training.gradient_clip,
        params_dtype=DTYPES[training.precision],
        bf16=model.bf16,
        fp16=model.fp16,
        use_distributed_optimizer=replication.use_distributed_optimizer,
        overlap_param_gather=replication.overlap_param_gather,
        initial_loss_scale=scale.initial if scale else 1.0,
        loss_scale_window=scale.growth_interval if scale else 1000,
        hysteresis=1,  # halve at the first overflow
    )
    optimizer = get_megatron_optimizer(config, ddp_chunks, use_gloo_process_groups=False)
    model.grad_scale_func = optimizer.scale_loss
    return optimizer


def set_rates(optimizer: MegatronOptimizer, learning_rate: float, weight_decay: float) -> None:
    """Set the rates of all groups. They carry a multiplier for the decay, 0 for biases and norms, which otherwise only
    Megatron's scheduler applies."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = learning_rate, weight_decay * group["wd_mult"]
