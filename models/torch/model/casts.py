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
        parameter = self.held(name)
        if parameter is None:
            return None
        return parameter.to(dtype) if self.casts is None else Borrowed.apply(parameter, self.casts[name])

    def held(self, name):
        return getattr(self, name)


class Borrowed(torch.autograd.Function):
    """A copy in place of its parameter, whose gradient goes to the parameter.

    The cast itself is one node for all micro-batches. It is the oldest of each one's graph, so autograd would run it
    last, and the 16-bit gradients of all layers would wait for it.
    """

    @staticmethod
    def forward(context, parameter, copy):
        context.dtype = parameter.dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(context, gradient):
        return gradient.to(context.dtype), None


class StepCasts:
    """The copies of one step. Each use of one has its own path to the float32 parameter (Borrowed).

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
        with torch.no_grad():
            for layer in self.layers:
                layer.casts = {name: layer.cast(name, self.dtype) for name in layer._parameters}

    def drop(self):
        """After the last backward pass: the optimizer changes what was cast."""
        for layer in self.layers:
            layer.casts = None
