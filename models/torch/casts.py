"""The parameters in the precision that blocks compute in, cast once a step for all of its micro-batches.

Parameters are float32. With a cast of its own each micro-batch would read all of them again, and in a pipeline every
micro-batch in flight would keep its copy. What FSDP2 gathers it casts itself.
"""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


class CastLayer(nn.Module):
    """A layer that computes in its input's precision. casts: the step's copies of its parameters, by name."""

    casts = None

    def cast(self, name, dtype):
        """The parameter `name` in `dtype`, or None where the layer has none: the step's copy, or a new one."""
        if self.casts is not None:
            return self.casts[name]
        parameter = self.held(name)
        return None if parameter is None else parameter.to(dtype)

    def held(self, name):
        return getattr(self, name)


class StepCasts:
    """The copies of one step. A cast keeps nothing for its backward pass, so the gradients of one micro-batch after
    another go through it into the float32 parameters.

    apart: the parameters that FSDP2 does not gather, where it gathers the model's others.
    """

    def __init__(self, model, apart=()):
        apart, self.dtype = set(apart), model.dtype
        layers = [layer for layer in model.modules() if isinstance(layer, CastLayer)]
        if isinstance(model, FSDPModule):
            layers = [layer for layer in layers if apart.intersection(layer.parameters(recurse=False))]
        self.layers = layers if self.dtype != torch.float32 else []

    def make(self):
        """Before the first forward pass of a step."""
        for layer in self.layers:
            layer.casts = {name: layer.cast(name, self.dtype) for name in layer._parameters}

    def drop(self):
        """After the last backward pass: the optimizer changes what was cast."""
        for layer in self.layers:
            layer.casts = None
