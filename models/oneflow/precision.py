"""Mixed precision by OneFlow's own means: products in fp16, parameters, sums and the optimizer in float32.

Not yet run on the chip. OneFlow 0.9 switches its automatic mixed precision off on a processor, with a warning only.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import oneflow as flow

if TYPE_CHECKING:
    from levelfield.worker.job import LossScale as Settings


def auto_cast(precision: str) -> contextlib.AbstractContextManager[None]:
    """Return the context of forward passes, and of what is computed again in a backward pass."""
    return flow.amp.autocast("cuda", dtype=flow.float16) if precision == "fp16" else contextlib.nullcontext()


def to_float32(x: flow.Tensor) -> flow.Tensor:
    """Return x in float32: norms, softmax, the residual stream and the loss have no place for fp16's range."""
    return x if x.dtype == flow.float32 else x.float()


def cast_like(x: flow.Tensor, other: flow.Tensor) -> flow.Tensor:
    """Return x in the dtype of `other`: a bias in that of the product that it is added to."""
    return x if x.dtype == other.dtype else flow.cast(x, other.dtype)


class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 2018): halve and skip on overflow, double after some finite steps."""

    def __init__(self, settings: Settings | None) -> None:
        self.value = settings.initial if settings else 1.0
        self.growth_interval = settings.growth_interval if settings else None
        self.finite_steps = 0

    def update(self, is_finite: bool) -> None:
        """Take note of one step, which must be finite on all ranks or on none."""
        if self.growth_interval is None:
            return
        self.finite_steps = self.finite_steps + 1 if is_finite else 0
        if not is_finite:
            self.value /= 2
        elif self.finite_steps % self.growth_interval == 0:
            self.value *= 2
