"""A linear layer's products by oneDNN, on a processor in float32.

torch takes its float32 products from MKL there and only those of bfloat16 from oneDNN. Which is faster in two of a
layer's three products depends on the processor: peak.py measures both, and the job names the faster one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

_uses_onednn = torch.backends.mkldnn.is_available()  # type: bool


def choose(products: str | None) -> None:
    """Take float32 products from `onednn` or `mkl`; None: from oneDNN where torch has it."""
    global _uses_onednn
    _uses_onednn = torch.backends.mkldnn.is_available() and products != "mkl"


def uses_onednn() -> bool:
    """Return whether oneDNN computes the float32 products of a processor."""
    return _uses_onednn


def applies(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether `product` and `OneDnnLinear` are used: for plain float32 tensors on a processor."""
    is_plain = not isinstance(weight, DTensor) and x.dtype == weight.dtype == torch.float32
    return _uses_onednn and is_plain and x.device.type == "cpu"


# an operation of its own: torch.compile knows oneDNN's only for weights that never change
library = torch.library.Library("levelfield", "DEF")
library.define("product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


@torch.library.impl(library, "product", "CPU")
def _product(x, weight, bias):  # type: ignore[no-untyped-def]
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@torch.library.impl(library, "product", "Meta")
def _shape(x, weight, bias):  # type: ignore[no-untyped-def]
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x W^T + b without gradients. x: [..., in]; weight: [out, in], of any strides; b: [out]."""
    return torch.ops.levelfield.product(x, weight, bias)  # type: ignore[no-any-return]


class OneDnnLinear(torch.autograd.Function):
    """x W^T + b. x: [..., in]; weight: [out, in]; bias: [out] or None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = bias is not None
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        weight_gradient = rows.t() @ x.flatten(0, -2)  # MKL's is the faster here
        return product(gradient, weight.t()), weight_gradient, rows.sum(0) if ctx.bias else None
