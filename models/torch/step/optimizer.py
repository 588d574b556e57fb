"""AdamW on the parts that a rank holds, with one gradient norm over all of them, and dynamic loss scaling.

The optimizer sees plain local tensors, in every layout: it is elementwise, so sharding does not concern it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from model.parameters import local_memory, local_parameters
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from levelfield.worker.job import LossScale as LossScaleSettings
    from levelfield.worker.job import Training
    from model.parameters import LocalParameter
    from parallelism.model_chunks import ModelChunks
    from torch import nn


class LocalAdamW:
    """Fused AdamW (Loshchilov and Hutter, 2019); decay on parameters of two or more dimensions only.

    stage_ranks: the ranks of one pipeline stage, data times context times tensor. ends: the group of the first and last
    pipeline stage where both hold the tied embedding, else None. capturable: a CUDA graph captures the step, so the
    learning rate is a tensor.
    """

    def __init__(
        self,
        model: nn.Module | ModelChunks,
        training: Training,
        stage_ranks: int,
        ends: dist.ProcessGroup | None = None,
        capturable: bool = False,
    ) -> None:
        self.names: tuple[str, ...]
        self.parameters: tuple[Parameter, ...]
        self.locals: list[Any]  # Parameters, which have gradients during a step
        self.square_names: list[str]
        self.replicas: Any  # of each name: a list, then a tensor
        self.kernels: list[FusedStep] | None
        self.names, self.parameters = zip(*model.named_parameters(), strict=True)
        self.locals = [_local(parameter) for parameter in self.parameters]
        pairs = zip(self.parameters, self.locals, strict=True)
        self.separate_pairs = [(parameter, local) for parameter, local in pairs if local is not parameter]
        self.tied = [name == "embedding.weight" and ends is not None for name in self.names]
        self.ends = ends
        replicas = [
            _replicas(parameter, stage_ranks) * (2 if tied else 1)
            for parameter, tied in zip(self.parameters, self.tied, strict=True)
        ]
        self.square_names, self.replicas = [], []
        for part, copies in zip(local_parameters(model), replicas, strict=True):
            names = _square_names(part)
            self.square_names += names
            self.replicas += [copies] * len(names)
        self.replicas = torch.tensor(self.replicas, dtype=torch.float64, device=self.locals[0].device)
        tensors = [(local, local.dim()) for local in self.locals if local.numel()]
        self.adamw, self.kernels = make_adamw(tensors, training), None
        self.rate = torch.zeros((), device=self.locals[0].device) if capturable else None
        for group in self.adamw.param_groups:
            group["capturable"] = capturable

    def take_gradients(self) -> None:
        """Give each local tensor the gradient of its part; a tied embedding's is summed over both ends first."""
        for parameter, local in self.separate_pairs:
            local.grad = _local_gradient(parameter)
        for local, tied in zip(self.locals, self.tied, strict=True):
            if tied:
                dist.all_reduce(local.grad, group=self.ends)

    def gradients(self) -> list[tuple[str, Any]]:
        """Return (name, gradient) of this rank's part of each parameter."""
        return [(name, local.grad) for name, local in zip(self.names, self.locals, strict=True)]

    def squares(self) -> torch.Tensor:
        """Return this rank's share of the squared gradient norms of `square_names`. The shares of all ranks add up.

        Ranks that hold a part alike (`replicas`) divide its share. Of matrices [experts, out, in] every expert has its
        own norm. On a processor torch adds up float32 in a few lanes. The norm of a million elements is
        wrong by 1e-5, that of six million by 2e-4, and each layout has other errors, as its parts are smaller.
        """
        parts = [part for local in self.locals for part in (local.grad.unbind() if local.dim() == 3 else [local.grad])]
        norm_dtype = torch.float64 if parts[0].device.type == "cpu" else None
        norms = torch.stack(torch._foreach_norm(parts, 2, norm_dtype)).double()
        return norms.square() / self.replicas  # type: ignore[no-any-return]

    def set_learning_rate(self, value: float) -> None:
        if self.rate is not None:
            self.rate.fill_(value)
        for group in self.adamw.param_groups:
            group["lr"] = value if self.rate is None else self.rate

    def step(self, divisor: torch.Tensor, skip: torch.Tensor | None = None) -> None:
        """Make one step with the gradients divided by `divisor` (a tensor), or none where the tensor `skip` is one."""
        if self.kernels is None:
            self.adamw.grad_scale, self.adamw.found_inf = divisor, skip  # type: ignore[attr-defined]
            self.adamw.step()
            self.kernels = [FusedStep(group, self.adamw.state) for group in self.adamw.param_groups if group["params"]]
            return
        for kernel in self.kernels:
            kernel.step(divisor, skip)

    def drop_gradients(self, keep: bool = False) -> None:
        """Forget the step's gradients. keep: their memory is that of a collective, so it is filled with zeros."""
        if keep:
            torch._foreach_zero_([local_memory(parameter.grad) for parameter in self.parameters])
        for _parameter, local in self.separate_pairs:
            local.grad = None
        for parameter in () if keep else self.parameters:
            parameter.grad = None


class FusedStep:
    """The steps of a group of `make_adamw` after its first one, which made its state.

    torch's class sorts all tensors anew in each step, which takes the host longer than the launches. Here they are
    lists that stay, and the number of steps is one tensor, not one for each parameter.
    """

    def __init__(self, group: dict[str, Any], state: Mapping[Any, dict[str, Any]]) -> None:
        self.group, self.parameters = group, group["params"]
        states = [state[parameter] for parameter in self.parameters]
        self.means, self.squares = [[moments[name] for moments in states] for name in ("exp_avg", "exp_avg_sq")]
        self.steps = states[0]["step"]
        for moments in states:
            moments["step"] = self.steps

    def step(self, divisor: torch.Tensor, skip: torch.Tensor | None) -> None:
        """Make one step, as LocalAdamW.step does."""
        group, gradients = self.group, [parameter.grad for parameter in self.parameters]
        beta1, beta2 = group["betas"]
        options = {"beta1": beta1, "beta2": beta2, "amsgrad": False, "maximize": False}
        options.update({key: group[key] for key in ("lr", "weight_decay", "eps")}, grad_scale=divisor, found_inf=skip)
        with torch.no_grad():
            self.steps += 1
            steps = [self.steps] * len(gradients)
            torch._fused_adamw_(self.parameters, gradients, self.means, self.squares, [], steps, **options)
            if skip is not None:
                self.steps -= skip


class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 2018): halve and skip on overflow, double after some finite steps."""

    def __init__(self, settings: LossScaleSettings | None) -> None:
        self.value = settings.initial if settings else 1.0
        self.growth_interval = settings.growth_interval if settings else None
        self.finite_steps = 0

    def update(self, is_finite: bool) -> None:
        """Take note of one step. Every rank must say the same."""
        if self.growth_interval is None:
            return
        self.finite_steps = self.finite_steps + 1 if is_finite else 0
        if not is_finite:
            self.value /= 2
        elif self.finite_steps % self.growth_interval == 0:
            self.value *= 2


def make_adamw(parameters: Sequence[tuple[torch.Tensor, int]], training: Training) -> torch.optim.AdamW:
    """Return torch's fused AdamW on (parameter, its number of dimensions), with decay from two dimensions on."""
    settings = training.optimizer
    decayed = [parameter for parameter, dimensions in parameters if dimensions >= 2]
    undecayed = [parameter for parameter, dimensions in parameters if dimensions < 2]
    groups: list[dict[str, Any]]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)


def clip_divisor(norm: torch.Tensor, limit: float, scale: float) -> torch.Tensor:
    """Return the divisor of gradients scaled by `scale` that brings their unscaled norm, `norm`, within `limit`."""
    return ((norm / limit).clamp(min=1.0) * scale).float()


def _square_names(part: LocalParameter) -> list[str]:
    """Return the names of the squared norms of a held part: each routed expert has its own, by its global index."""
    if len(part.shape) < 3:
        return [part.name]
    return [f"{part.name}[{expert}]" for expert in range(part.slices[0].start, part.slices[0].stop)]


def _local(parameter: Parameter) -> Parameter:
    """Return the parameter itself where it is plain memory, else its part here as a parameter of its own."""
    part = parameter.detach()
    return parameter if type(part) is torch.Tensor else Parameter(local_memory(part))


def _local_gradient(parameter: Any) -> torch.Tensor:
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        # a norm's weight under sequence parallelism: each rank has the gradient of its part of the sequence
        gradient = gradient.redistribute(placements=parameter.placements)
    return local_memory(gradient)


def _replicas(parameter: torch.Tensor, stage_ranks: int) -> int:
    """Return how many ranks of the stage hold the same part of `parameter`."""
    if not isinstance(parameter, DTensor):
        return stage_ranks
    shards = 1
    for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
        shards *= 1 if placement.is_replicate() else size  # a strided shard says no to is_shard()
    return stage_ranks // shards
