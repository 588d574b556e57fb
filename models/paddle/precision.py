"""Mixed precision by Paddle's own means: products in 16 bits, parameters, sums and the optimizer in float32."""

import contextlib

import paddle
from paddle.distributed import fleet

DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def auto_cast(precision):
    """The context of forward passes."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return paddle.amp.auto_cast(level="O1", dtype=DTYPES[precision])


class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 2018) by Paddle's GradScaler; nothing without `settings`."""

    def __init__(self, settings, distributed):
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

    def value(self):
        """The present scale; None without scaling."""
        return None if self.scaler is None else float(self.scaler.state_dict()["scale"].item())

    def backward(self, loss):
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer):
        """The optimizer's step with unscaled gradients, or none where one of them is not finite."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
