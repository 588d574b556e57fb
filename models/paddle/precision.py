"""Mixed precision by Paddle's own means: products in 16 bits, parameters, sums and the optimizer in float32."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import paddle
from paddle.distributed import fleet

if TYPE_CHECKING:
    from levelfield.worker.job import LossScale as Settings
    from paddle.optimizer import Optimizer

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def auto_cast(precision: str) -> contextlib.AbstractContextManager[None]:
    """Return the context of forward passes."""
    if precision == "fp32":
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = paddle.amp.auto_cast(level="O1", dtype=DTYPES[precision])
    return context


class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 2018) by Paddle's GradScaler; nothing without `settings`."""

    def __init__(self, settings: Settings | None, distributed: bool) -> None:
        self.scaler = None
        if settings is not None:
            scaler = paddle.amp.GradScaler(
                init_loss_scaling=settings.initial,
                incr_ratio=2.0,
                decr_ratio=0.5,
                incr_every_n_steps=settings.growth_interval,
                decr_every_n_nan_or_inf=1,
            )
            self.scaler = fleet.distributed_scaler(scaler) if distributed else scaler

    def value(self) -> float | None:
        """Return the present scale; None without scaling."""
        return None if self.scaler is None else float(self.scaler.state_dict()["scale"].item())

    def backward(self, loss: paddle.Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Optimizer) -> None:
        """Run the optimizer's step with unscaled gradients, or none where one of them is not finite."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
