"""Tensor parallelism (Shoeybi et al., 2019) by DTensor, with sequence parallelism (Korthikanti et al., 2022).

Attention and MLP: the first products are split by columns, the last by rows. The embedding and the head are
split over the vocabulary. Between them the hidden state is whole on every rank, or, with sequence parallelism,
each rank has its part of the sequence.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from levelfield.worker import is_mixture, part
from levelfield.worker.architecture import GATED
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import Parameter

if TYPE_CHECKING:
    import torch
    from levelfield.worker.architecture import Model
    from model.decoder import Decoder
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.distributed.tensor.placement_types import Placement


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Shard `model`, still on the meta device, over `mesh`."""
    block: Any
    between: Placement = Shard(1) if sequence_parallel else Replicate()
    for layer, block in model.layers.items():
        mixture = is_mixture(model.model, int(layer))
        parallelize_module(block, mesh, block_plan(model.model, between, sequence_parallel, mixture))
        if mixture:
            block.mlp.between = between
    ends: dict[str, ParallelStyle] = {}
    if model.stage.first:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.stage.last and sequence_parallel:
        ends["final_norm"] = SequenceParallel(use_local_output=True)
    parallelize_module(model, mesh, ends)
    split_positions(model, mesh, sequence_parallel)
    split_head(model, mesh, between)


def block_plan(
    model: Model, between: Placement, sequence_parallel: bool, mixture: bool = False
) -> dict[str, ParallelStyle]:
    """Return how each module of a block is divided, by its name.

    mixture: whether the block has experts; theirs and the router's weights are not divided here.
    """
    mlp = "mlp.shared" if mixture else "mlp"
    columns = ["attention.query", "attention.key", "attention.value", f"{mlp}.up"]
    columns += [f"{mlp}.gate"] if model.activation in GATED else []
    # one gathered input for all the columns: its gradient is then summed over ranks once, not three times
    gathered = {
        "attention": PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(Replicate(), None)),
        "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),)),
    }
    rows = {name: RowwiseParallel(output_layouts=between) for name in ("attention.output", f"{mlp}.down")}
    norms = {name: SequenceParallel(use_local_output=True) for name in ("attention_norm", "mlp_norm")}
    norms = norms if sequence_parallel else {}
    if part(model, "parallel_residual") == "one_norm":
        norms.pop("mlp_norm", None)
    return {**gathered, **{name: ColwiseParallel() for name in columns}, **rows, **norms, **head_norms(model)}


def head_norms(model: Model) -> dict[str, ParallelStyle]:
    """Return how the norms of queries and keys are divided: they have one weight for all heads.

    Each rank has some heads, so the weight's gradient is summed over the ranks. torch's class for a split sequence does
    that too, for any split dimension.
    """
    names = ("attention.query_norm", "attention.key_norm") if part(model, "query_key_norm") else ()
    return {name: SequenceParallel(sequence_dim=2, use_local_output=True) for name in names}


def split_positions(model: Decoder, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Split the learned positions under sequence parallelism: each rank needs those of its part of the sequence only.

    Under context parallelism too these are no rows in a row: then each rank holds all of them, and their gradient is
    summed over the ranks.
    """
    if not sequence_parallel or not hasattr(model, "position"):
        return
    split, placements = (split_rows, None) if model.share is None else (None, [Partial()])
    local = lambda _module, output, _mesh: output.to_local(grad_placements=placements)  # noqa: E731
    distribute_module(model.position, mesh, split, output_fn=local)


def split_head(model: Decoder, mesh: DeviceMesh, between: Placement) -> None:
    """Split the vocabulary's rows over the ranks. The head's input is whole on each, its gradient summed over them."""
    if not model.stage.last:
        return
    model.final_norm.register_forward_hook(partial(gather_hidden, mesh, between))
    head = model.embedding if model.model.tied_embeddings else model.head
    if not isinstance(head.weight, DTensor):
        split_rows("head", head, mesh)


def gather_hidden(
    mesh: DeviceMesh, between: Placement, _module: nn.Module, _inputs: object, output: torch.Tensor
) -> torch.Tensor:
    hidden = DTensor.from_local(output, mesh, [between], run_check=False)
    return hidden.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def split_rows(_name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    module.weight = Parameter(distribute_tensor(module.weight, mesh, [Shard(0)]))  # type: ignore[arg-type]
