"""Expert parallelism (Lepikhin et al., 2020; Rajbhandari et al., 2022): ranks of data parallelism divide the experts.

Every rank routes its own tokens, sends them to the ranks of their experts and gets the results back. So an expert has
the gradient of the tokens of all ranks of its group; what is left to sum are the replicas of its rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from levelfield.worker import Unsupported, part
from levelfield.worker.job import Job
from model.mixture import mixtures
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable

    from model.mixture import Mixture
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.tensor.placement_types import Placement

# Of the experts' matrices [experts, out, in]: the dimension that tensor-parallel ranks divide, and that of the hidden
# size, which ZeRO's ranks divide. An expert rank may have fewer experts than there are ranks with the same ones.
TENSOR_DIMENSIONS = {"gate": 1, "up": 1, "down": 2}
HIDDEN_DIMENSIONS = {"gate": 2, "up": 2, "down": 1}


def check_experts(job: Job) -> None:
    """Check a mixture of experts. Raises Unsupported for what mixtures of experts cannot be combined with here."""
    experts, layout = part(job.model, "experts"), job.layout
    if experts is None:
        return
    gradient_ranks = layout.data * layout.context
    refused = {
        "biases in the experts": job.model.bias,
        "torch.compile: the number of an expert's tokens is not known beforehand": job.tuning.compile,
        "precision fp8": job.training.precision == "fp8",
        f"a gate of the shared experts under tensor parallel {layout.tensor}": experts.shared_gate
        and layout.tensor > 1,
        f"a capacity under context parallel {layout.context}: it is that of whole sequences": (
            layout.context > 1 and experts.capacity_factor is not None
        ),
        f"{experts.count} experts over {layout.expert} ranks": experts.count % layout.expert > 0,
        f"an expert's ffn_hidden_size {experts.ffn_hidden_size} over {layout.tensor} tensor-parallel ranks": (
            experts.ffn_hidden_size % layout.tensor > 0
        ),
    }
    if layout.sharding_stage and 1 < layout.expert < gradient_ranks:
        over = f"experts over {layout.expert} of {gradient_ranks} ranks and ZeRO over"
        replicas = gradient_ranks // layout.expert
        refused[f"{over} {layout.sharding_degree}; take all of them"] = layout.sharding_degree < gradient_ranks
        refused[f"{over} all: hidden_size {job.model.hidden_size} over the {replicas} with the same experts"] = (
            job.model.hidden_size % replicas > 0
        )
    refusals = [what for what, requested in refused.items() if requested]
    if refusals:
        raise Unsupported(f"mixture of experts with {'; with '.join(refusals)}: not written")
    if job.tuning.recompute == "selective":
        hide_sharding()


def hide_sharding() -> None:
    """Hide from selective recomputation how FSDP gathers and frees parameters.

    Selective recomputation demands of a block's second forward pass the operations of the first one. A router is a
    group of its own inside of its block, and in a pipeline it is gathered and freed at other times there.
    """
    for name in ("_pre_forward", "_post_forward"):
        hook = getattr(FSDPState, name)
        if not hasattr(hook, "is_without_modes"):
            setattr(FSDPState, name, without_modes(hook))


def without_modes(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: object) -> Any:
        with _disable_current_modes():
            return hook(*arguments)

    call.is_without_modes = True  # type: ignore[attr-defined]
    return call


class ExpertMesh:
    """The ranks as (pipeline, replicas, expert, tensor): expert and replicas divide those of data parallelism.

    A group of `expert` has all experts once; a group of `replicas` has the same experts.
    """

    def __init__(self, job: Job) -> None:
        layout = job.layout
        self.gradient_ranks = layout.data * layout.context
        self.replicas = self.gradient_ranks // layout.expert
        self.shards = layout.sharding_stage > 0 and self.replicas > 1  # ZeRO over the ranks with the same experts
        shape = (layout.pipeline, self.replicas, layout.expert, layout.tensor)
        self.mesh = init_device_mesh(job.device, shape, mesh_dim_names=("pipeline", "replicas", "expert", "tensor"))
        self.weights = self.mesh[("expert", "tensor") if layout.tensor > 1 else "expert"]

    def reduce_gradients(self, model: nn.Module) -> None:
        """Make the experts' gradients those of the mean over all ranks, as the other parameters' are.

        Call it after the last backward pass of a step. Where the experts are sharded, FSDP2 has done so.
        """
        parameter: Any
        if self.shards:
            return
        group = self.mesh["replicas"].get_group()
        for parameter in expert_parameters(model):
            gradient = parameter.grad.to_local()
            gradient /= self.gradient_ranks
            if self.replicas > 1:
                dist.all_reduce(gradient, group=group)


def distribute_experts(model: nn.Module, experts: ExpertMesh | None, tensor: DeviceMesh | None) -> None:
    """Divide the experts, on the meta device, over `experts`, and each of them over `tensor`; either may be None."""
    layer: Any
    placements: list[Placement]
    if experts is None and tensor is None:
        return
    mesh = tensor if experts is None else experts.weights
    for _, mixture in mixtures(model):
        for name, layer in mixture.experts.named_children():
            placements = [Shard(0)] if experts is not None else []
            placements += [Shard(TENSOR_DIMENSIONS[name])] if tensor is not None else []
            layer.weight = Parameter(distribute_tensor(layer.weight, mesh, placements))
        if tensor is not None:
            mixture.router.weight = Parameter(distribute_tensor(mixture.router.weight, tensor, [Replicate()]))
        if experts is not None:
            mixture.experts.exchange = Exchange(experts.mesh["expert"].get_group())


def shard_experts(mixture: Mixture, experts: ExpertMesh, stage: int, precision: MixedPrecisionPolicy) -> None:
    """Apply FSDP2, on the meta device, to the experts over the ranks that hold the same ones."""
    dimensions: dict[Any, int] = {
        layer.weight: HIDDEN_DIMENSIONS[name] for name, layer in mixture.experts.named_children()
    }
    sharded = fully_shard(
        mixture.experts,
        mesh=experts.mesh["replicas"],
        mp_policy=precision,
        reshard_after_forward=stage == 3,
        shard_placement_fn=lambda weight: Shard(dimensions[weight]),
    )
    # a rank's experts have the tokens of its whole group of `expert`; a factor of one's own is a sum for NCCL only
    sharded.set_gradient_divide_factor(experts.gradient_ranks)
    sharded.set_force_sum_reduction_for_comms(True)


def expert_parameters(model: nn.Module) -> list[Parameter]:
    """Return the experts' parameters that this rank holds whole, not those that FSDP2 gathers, casts and reduces."""
    experts = [mixture.experts for _, mixture in mixtures(model)]
    return [parameter for expert in experts if not isinstance(expert, FSDPModule) for parameter in expert.parameters()]


class Exchange:
    """Sends rows to the ranks of their experts, has them computed there, and gets them back in their order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)

    def __call__(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return what the experts make of the rows, in the same order.

        rows: [rows, hidden], sorted by expert; counts: [experts], of their rows. compute: of this rank's experts.
        """
        sent_counts = counts.view(self.ranks, -1)
        received_counts = torch.empty_like(sent_counts)  # [ranks, experts of this rank]
        dist.all_to_all_single(received_counts, sent_counts, group=self.group)
        rows_to, rows_from = sent_counts.sum(1).tolist(), received_counts.sum(1).tolist()
        order = by_expert(received_counts)
        local_rows = Permute.apply(AllToAll.apply(rows, rows_from, rows_to, self.group), order)
        results = Permute.apply(compute(local_rows, received_counts.sum(0)), order.argsort())
        return AllToAll.apply(results, rows_to, rows_from, self.group)  # type: ignore[no-any-return]


def by_expert(counts: torch.Tensor) -> torch.Tensor:
    """Return the order that sorts rows by expert, then by rank, where they lie by rank, then by expert: [rows].

    counts: [ranks, experts], of the rows.
    """
    experts = torch.arange(counts.shape[1], device=counts.device).repeat(counts.shape[0])
    return experts.repeat_interleave(counts.flatten()).sort(stable=True).indices


class AllToAll(torch.autograd.Function):
    """[sum of rows_to, hidden] -> [sum of rows_from, hidden]: the rows for each rank, and those from each rank."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, rows_from: list[int], rows_to: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.exchange = (rows_to, rows_from, group)
        return exchanged(rows, rows_from, rows_to, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return exchanged(gradient, *ctx.exchange), None, None, None


def exchanged(rows: torch.Tensor, rows_from: list[int], rows_to: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    received = rows.new_empty(sum(rows_from), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), rows_from, rows_to, group=group)
    return received


class Permute(torch.autograd.Function):
    """x[order], of which each row is taken once: so its gradient is a permutation too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (order,) = ctx.saved_tensors
        return torch.empty_like(gradient).index_copy_(0, order, gradient), None
