"""The layers of both families. Parameters are float32; the activation's dtype decides what is computed in."""

from functools import partial

import torch
from model.casts import CastLayer, CastLinear
from model.kernels import chosen
from model.onednn import OneDnnLinear, applies
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

GATES = {"swiglu": functional.silu, "geglu_tanh": partial(functional.gelu, approximate="tanh")}


class Linear(CastLayer, nn.Linear):
    """y = x W^T + b, in x's dtype. W: [out, in]. joint: during a step, the Joint of this layer and those after it."""

    joint = None

    def forward(self, x):
        if applies(x, self.weight):
            return OneDnnLinear.apply(x, self.weight, self.bias)
        if self.joint is not None:
            return self.joint.product(x)
        if self.copies is None or isinstance(self.weight, DTensor):
            return functional.linear(x, self.cast("weight", x.dtype), self.cast("bias", x.dtype))
        parameters = [self.weight] if self.bias is None else [self.weight, self.bias]
        return CastLinear.apply(x, self.copies["weight"], self.copies["bias"], [self.out_features], *parameters)


def outputs_of_one_input(x, layers):
    """What each of `layers` makes of x: by one product where a step has their copies adjoin (casts.Joint)."""
    joint = joint_of(layers)
    return [layer(x) for layer in layers] if joint is None else layers[0](x).split(joint.rows, dim=-1)


def joint_of(layers):
    """The Joint by which the first of `layers` computes the outputs of all; None where each computes its own."""
    return getattr(layers[0], "joint", None)  # another library's layer has none


class LayerNorm(CastLayer, nn.LayerNorm):
    """Layer normalisation (Ba et al., 2016) over the last dimension."""

    def forward(self, x, *branch, kernel=None):
        """kernel: fused/add_norm.py, which returns (x + branch, its norm); (x, its norm) without a branch."""
        weight, bias = self.cast("weight", x.dtype), self.cast("bias", x.dtype)
        if kernel is not None:
            return kernel.add_norm(x, *branch, weight=weight, bias=bias, eps=self.eps)
        return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(CastLayer, nn.RMSNorm):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension."""

    def forward(self, x, *branch, kernel=None):
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


def dropout(x, probability):
    """Dropout (Srivastava et al., 2014) that keeps a mask of one byte an element for the backward pass."""
    return torch.native_dropout(x, probability, True)[0] if probability else x
