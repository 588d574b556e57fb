"""AdamW on the parts that a rank holds, with one gradient norm over all of them.

The optimizer sees plain local tensors, in every layout: it is elementwise, so splitting does not concern it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import oneflow as flow
from oneflow.nn import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from levelfield.worker.job import Training
    from parameters import LocalParameter


class LocalAdamW:
    """OneFlow's AdamW (Loshchilov and Hutter, 2019); decay on parameters of two or more dimensions only."""

    def __init__(self, parts: Sequence[LocalParameter], training: Training) -> None:
        self.parts = parts
        self.locals = [Parameter(part.local) for part in parts]
        self.replicas = np.array([part.replicas for part in parts], dtype=np.float64)
        settings = training.optimizer
        decayed = [local for local in self.locals if local.dim() >= 2]
        undecayed = [local for local in self.locals if local.dim() < 2]
        self.adamw = flow.optim.AdamW(
            [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": undecayed, "weight_decay": 0.0}],
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
        )

    def take_gradients(self) -> None:
        """Give each local tensor the gradient of its part."""
        for part, local in zip(self.parts, self.locals, strict=True):
            local.grad = part.parameter.grad.to_local()

    def gradients(self) -> list[tuple[str, flow.Tensor]]:
        """Return (name, gradient) of this rank's part of each parameter."""
        return [(part.name, local.grad) for part, local in zip(self.parts, self.locals, strict=True)]

    def squares(self) -> flow.Tensor:
        """Return this rank's share of each parameter's squared gradient norm: the shares of all ranks add up to it."""
        squares = flow.stack([local.grad.to(flow.float64).square().sum() for local in self.locals])
        return squares / flow.tensor(self.replicas, device=squares.device)

    def step(self, learning_rate: float, divisor: float) -> None:
        """Run one step with the gradients divided by `divisor`, a number; then they are dropped."""
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        for local in self.locals if divisor != 1.0 else ():
            local.grad.div_(divisor)
        self.adamw.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        for part, local in zip(self.parts, self.locals, strict=True):
            part.parameter.grad = local.grad = None
