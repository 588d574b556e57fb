"""Data parallelism: DDP for plain replicas, FSDP2 for ZeRO (Rajbhandari et al., 2020) and for DTensor parameters.

Stages 1 and 2 keep the parameters gathered over all micro-batches of a step and shard gradients and optimizer;
stage 1 reduces gradients once, at the last micro-batch, stage 2 at every one; stage 3 gathers each block's
parameters when it runs and frees them after, and those of embedding and head once a step. With fewer shards than
data-parallel ranks the shards are replicated.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from levelfield.worker import is_mixture
from parallelism.model_chunks import chunks_of
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from model.decoder import Decoder
    from parallelism.expert_parallel import ExpertMesh
    from parallelism.mesh import Grid
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def shard_data_parallel(model: Decoder, grid: Grid, stage: int, experts: ExpertMesh | None = None) -> bool:
    """Apply FSDP2, on the meta device, where the layout needs it. Return whether it did.

    experts: the ExpertMesh, which reduces the gradients of the experts' parameters or shards them; or None.
    """
    block: Any
    mesh = grid.data_mesh()
    if mesh is None or not (stage or grid["tensor"] is not None):
        return False
    ignored: set[nn.Parameter] = set()
    if experts is not None:
        from parallelism.expert_parallel import expert_parameters, shard_experts

        ignored = ignored if experts.shards else set(expert_parameters(model))
    for layer, block in model.layers.items():
        if is_mixture(model.model, int(layer)):
            shard(block.mlp.router, mesh, grid, stage, policy(torch.float32))  # its scores are in float32
            if experts is not None and experts.shards:
                shard_experts(block.mlp, experts, stage, policy(model.dtype))
        shard(block, mesh, grid, stage, policy(model.dtype), ignored_params=ignored)
    for end in separate_ends(model):
        shard(end, mesh, grid, min(stage, 2), policy(model.dtype))
    shard(model, mesh, grid, min(stage, 2), policy(model.dtype), ignored_params=ignored)
    return True


def separate_ends(model: Decoder) -> list[Any]:
    """Return the embedding and the head of this rank, which FSDP2 exchanges one after the other.

    Together their gradients in float32 are gigabytes for a vocabulary of 128,000. One weight that is both stays in the
    group of the whole model.
    """
    if model.model.tied_embeddings:
        return []
    return [*([model.embedding] if model.stage.first else []), *([model.head] if model.stage.last else [])]


def shard(
    module: nn.Module, mesh: DeviceMesh, grid: Grid, stage: int, precision: MixedPrecisionPolicy, **ignored: Any
) -> None:
    if grid["shard"] is None:
        replicate(module, mesh=mesh, mp_policy=precision, **ignored)
    else:
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=stage == 3, **ignored)


def policy(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Return the policy for parameters gathered in `dtype` and gradients reduced in float32."""
    return MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )


def replicate_data_parallel(
    model: Decoder, grid: Grid, divided: Collection[nn.Parameter] = ()
) -> DistributedDataParallel:
    """Return DDP around the filled model; its ranks start from equal weights, so nothing is broadcast.

    Its buckets are the gradients, from before the first micro-batch on: other gradients would need the memory twice.
    """
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ignored = [name for name, parameter in model.named_parameters() if any(parameter is other for other in divided)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    group = grid["replicate"].get_group()  # type: ignore[union-attr]  # there are replicas
    reduced = [parameter for name, parameter in model.named_parameters() if name not in ignored]
    return DistributedDataParallel(
        model,
        process_group=group,
        bucket_cap_mb=bucket_mebibytes(reduced, group.size()),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
        init_sync=False,
    )


def bucket_mebibytes(parameters: Sequence[torch.Tensor], ranks: int) -> int | None:
    """Return the size of DDP's buckets; None on a processor: torch's 25 MiB, and 1 MiB for the first.

    Between many ranks latency takes most of the time of so small a message. Megatron-LM's buckets have 40 million
    numbers, or a million for each rank if that is more. But nothing hides the last bucket's message: so there are at
    least eight buckets.
    """
    if parameters[0].device.type == "cpu":
        return None
    numbers = sum(parameter.numel() for parameter in parameters)
    return max(25, 4 * min(max(40_000_000, 1_000_000 * ranks), numbers // 8) // 2**20)


def gradients_in_buckets(model: object) -> bool:
    return isinstance(chunks_of(model)[0], DistributedDataParallel)


def free_first_buckets(model: object) -> None:
    """Free the buckets of the first step. Call it after each step.

    Before the second step DDP makes its buckets anew, in the order of the gradients. NCCL's group keeps what it sent
    last until its next operation, after it has seen the end of that one. So the first buckets, as large as all
    gradients, would stay through the whole second step.
    """
    if gradients_in_buckets(model) and not all(chunk._has_rebuilt_buckets for chunk in chunks_of(model)):
        chunk = chunks_of(model)[0]
        group = chunk.process_group
        if dist.get_backend(group) == "nccl":
            group._wait_for_pending_works()
            dist.all_reduce(torch.zeros(1, device=next(chunk.parameters()).device), group=group)


def micro_batch_context(model: Any, stage: int, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Set what is exchanged after this micro-batch's backward pass: all after the last, else what the stage needs."""
    if gradients_in_buckets(model):
        return contextlib.nullcontext() if last else model.no_sync()
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last or stage >= 2)
        model.set_requires_all_reduce(last)
        model.set_reshard_after_backward(last or stage == 3)
        # gathered from forward to backward pass, so also between micro-batches
        for end in (model, *separate_ends(model)):  # type: ignore[arg-type]  # FSDP2 keeps the Decoder
            end.set_reshard_after_backward(last, recurse=False)
    return contextlib.nullcontext()
