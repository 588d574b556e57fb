"""Data parallelism: DDP for plain replicas, FSDP2 for ZeRO (Rajbhandari et al., 2020) and for DTensor parameters.

Stages 1 and 2 keep the parameters gathered over all micro-batches of a step and shard gradients and optimizer;
stage 1 reduces gradients once, at the last micro-batch, stage 2 at every one; stage 3 gathers each block's
parameters when it runs and frees them after. With fewer shards than data-parallel ranks the shards are replicated.
"""

import contextlib

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def shard_data_parallel(model, grid, stage):
    """Apply FSDP2, on the meta device, where the layout needs it; returns whether it did."""
    mesh = grid.data_mesh()
    if mesh is None or not (stage or grid["tensor"] is not None):
        return False
    policy = MixedPrecisionPolicy(
        param_dtype=None if model.dtype == torch.float32 else model.dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    if grid["shard"] is None:
        apply = lambda module, _root: replicate(module, mesh=mesh, mp_policy=policy)  # noqa: E731
    else:
        apply = lambda module, root: fully_shard(  # noqa: E731
            module, mesh=mesh, mp_policy=policy, reshard_after_forward=stage == 3 and not root
        )
    for block in model.layers.values():
        apply(block, False)
    apply(model, True)
    return True


def replicate_data_parallel(model, grid):
    """DDP around the filled model; its ranks start from equal weights, so nothing is broadcast."""
    group = grid["replicate"].get_group()
    return DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False, init_sync=False
    )


def micro_batch_context(model, stage, last):
    """What to communicate after this micro-batch's backward pass: all after the last, else what the stage needs."""
    if isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext() if last else model.no_sync()
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last or stage >= 2)
        model.set_requires_all_reduce(last)
        model.set_reshard_after_backward(last or stage == 3)
    return contextlib.nullcontext()
