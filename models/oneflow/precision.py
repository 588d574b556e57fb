"""Mixed precision by OneFlow's own means: products in fp16, parameters, sums and the optimizer in float32.

Not yet run on the chip. OneFlow 0.9 switches its automatic mixed precision off on a processor, with a warning only.
"""

import contextlib

import oneflow as flow


def auto_cast(precision):
    """The context of forward passes, and of what is computed again in a backward pass."""
    return flow.amp.autocast("cuda", dtype=flow.float16) if precision == "fp16" else contextlib.nullcontext()


def exact(x):
    """x in float32: norms, softmax, the residual stream and the loss have no place for fp16's range."""
    return x if x.dtype == flow.float32 else x.float()


def like(x, other):
    """x in the dtype of `other`: a bias in that of the product that it is added to."""
    return x if x.dtype == other.dtype else flow.cast(x, other.dtype)


class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 2018): halve and skip on overflow, double after some good steps."""

    def __init__(self, settings):
        self.value = settings.initial if settings else 1.0
        self.interval = settings.growth_interval if settings else None
        self.good_steps = 0

    def update(self, finite):
        """Take note of one step. Every rank must say the same."""
        if self.interval is None:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good_steps % self.interval == 0:
            self.value *= 2
