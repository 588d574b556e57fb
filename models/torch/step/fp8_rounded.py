"""fp8's products on a processor: numbers of 8 bits, multiplied and added in float32.

It has what transformer-engine's Float8CurrentScaling has: E4M3 forward and E5M2 for gradients (Micikevicius et al.,
2022), a scale for each tensor from its largest value now, and results in the activations' dtype. A Hopper chip adds its
forward products less exactly. It is for the loss, so that a run on a chip has a reference; its speed says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.job import Job
from step.fp8 import replace_each
from torch import nn

if TYPE_CHECKING:
    from model.decoder import Decoder

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def replace_linears(model: Decoder, _job: Job) -> None:
    replace_each(model, RoundedLinear)


class RoundedLinear(nn.Linear):
    """y = x W^T + b. Parameters: float32, or as FSDP2 gathers them."""

    is_exact = True  # but for its output's rounding to x's dtype: samples hold it to that

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Products.apply(x, self.weight, self.bias)  # type: ignore[no-any-return]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return y = x W^T + b. x: [..., in], weight: [out, in], bias: [out] or None; y: [..., out]."""
        numbers, factor = rounded(x, E4M3)
        weights, weight_factor = rounded(weight, E4M3)
        ctx.save_for_backward(numbers, factor, weights, weight_factor)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        y = numbers.float() @ weights.float().T * (factor * weight_factor)
        return (y if bias is None else y + bias.to(x.dtype)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        numbers, factor, weights, weight_factor = ctx.saved_tensors
        dtype, weight_dtype, bias_dtype = ctx.dtypes
        steep, steep_factor = (value.float() for value in rounded(gradient, E5M2))
        of_x = steep @ weights.float() * (steep_factor * weight_factor)
        rows = steep.flatten(0, -2)
        of_weight = rows.T @ numbers.flatten(0, -2).float() * (steep_factor * factor)
        of_bias = None
        if bias_dtype is not None:
            of_bias = gradient.flatten(0, -2).float().sum(0).to(dtype).to(bias_dtype)
        return of_x.to(dtype), of_weight.to(dtype).to(weight_dtype), of_bias


def rounded(tensor: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (numbers in 8 bits, factor), whose product is the tensor. factor: a float32 scalar; 1 for zeros only."""
    largest, most = tensor.detach().abs().amax().float(), torch.finfo(kind).max
    scale = torch.where(largest > 0, most / largest, 1.0).clamp(max=torch.finfo(torch.float32).max)
    return (tensor.float() * scale).to(kind), 1 / scale
