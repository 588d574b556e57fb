"""The layers of both families. Parameters are float32; the activation's dtype decides what is computed in."""

from __future__ import annotations

from functools import partial

import torch
from model.casts import CastLayer
from model.kernels import chosen
from model.onednn import OneDnnLinear, applies
from torch import nn
from torch.nn import functional

GATES = {"swiglu": functional.silu, "geglu_tanh": partial(functional.gelu, approximate="tanh")}


class Linear(CastLayer, nn.Linear):
    """y = x W^T + b, in x's dtype. W: [out, in].

    step_linear: during a step the StepLinear of this layer, which may compute layers after it, too.
    """

    step_linear = None

    def forward(self, x: torch.Tensor, head_size=None):
        """head_size: for StepLinear.product, where a step has one."""
        if self.step_linear is not None:
            return self.step_linear.product(x, head_size)
        if applies(x, self.weight):
            return OneDnnLinear.apply(x, self.weight, self.bias)
        return functional.linear(x, self.cast("weight", x.dtype), self.cast("bias", x.dtype))


def heads_for_one_input(x: torch.Tensor, layers, size):
    """What each of `layers` makes of x, [..., n, size]: by one product where a step has their copies adjoin.

    Under tensor parallelism n is this rank's share.
    """
    apart = joint_of(layers) is None
    return [layer(x).unflatten(-1, (-1, size)) for layer in layers] if apart else layers[0](x, size)


def joint_of(layers):
    """The StepLinear by which the first of `layers` computes the outputs of all; None where each computes its own."""
    linear = getattr(layers[0], "step_linear", None)  # another library's layer has none
    return linear if linear is not None and len(linear.rows) == len(layers) > 1 else None


class LayerNorm(CastLayer, nn.LayerNorm):
    """Layer normalisation (Ba et al., 2016) over the last dimension."""

    def forward(self, x: torch.Tensor, *branch, kernel=None):
        """kernel: fused/add_norm.py, which returns (x + branch, its norm); (x, its norm) without a branch."""
        weight, bias = self.cast("weight", x.dtype), self.cast("bias", x.dtype)
        if kernel is not None:
            return kernel.add_norm(x, *branch, weight=weight, bias=bias, eps=self.eps)
        return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(CastLayer, nn.RMSNorm):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension."""

    def forward(self, x: torch.Tensor, *branch, kernel=None):
        """kernel: as of LayerNorm."""
        weight = self.cast("weight", x.dtype)
        if kernel is not None:
            return kernel.add_norm(x, *branch, weight=weight, eps=self.eps)
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class Positions(nn.Module):
    """Learned position embeddings: weight [sequence_length, hidden]."""

    def __init__(self, length, hidden_size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, hidden_size))

    def forward(self, length):
        return self.weight if length == self.weight.shape[0] else self.weight[:length]


def norm(model):
    """The model's normalisation layer."""
    kinds = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
    return kinds[model.norm](model.hidden_size, eps=model.norm_eps)


def gated(activation, gate, up):
    """The activation of `gate`, by its name in GATES, times `up`."""
    kernel = chosen("swiglu")
    return GATES[activation](gate) * up if kernel is None else kernel.gated(activation, gate, up)


def dropout(x: torch.Tensor, probability):
    """Dropout (Srivastava et al., 2014) that keeps a mask of one byte an element for the backward pass."""
    return torch.native_dropout(x, probability, True)[0] if probability else x
