"""The product of a gated MLP (Shazeer, 2020), in one kernel each way: two reads and one write, then three and two.

    y = a(gate) up,    a(x) = x s(u(x)),    s(u) = 1 / (1 + exp(-u))

u(x) = x gives silu. u(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3) gives gelu's tanh form, as (1 + tanh(u / 2)) / 2 = s(u).
Backward, with g the gradient of y:

    gradient of up = g a(gate),    of gate = g up (s + gate s (1 - s) u'(gate))

Computed in float32. a(gate) is computed again in the backward pass: kept are gate and up alone. Their gradients lie
side by side, as the halves of one tensor, like gate and up where one product computes both.

One program has 1,024 numbers of a row: 8 of each thread of 4 warps, which it reads as 16 bytes.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from fused.launching import QuickLaunch

BLOCK, WARPS = 1024, 4


def gated(activation: str, *parts: torch.Tensor) -> torch.Tensor:
    """Return activation(gate) * up, [..., f]. activation: `swiglu` or `geglu_tanh`.

    parts: gate and up [..., f], or one tensor [..., 2 f] with gate before up.
    """
    return GatedProduct.apply(activation == "geglu_tanh", *parts)  # type: ignore[no-any-return]


class GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gelu: bool, *parts: torch.Tensor) -> torch.Tensor:
        ctx.gelu = gelu
        ctx.save_for_backward(*parts)
        gate, up = halves(parts)
        y = gate.new_empty(gate.shape)
        _forward[grid(y)](gate, up, y, *strides(gate, up), y.shape[1], GELU=gelu, BLOCK=BLOCK, num_warps=WARPS)
        return y.view(*parts[0].shape[:-1], y.shape[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        parts = ctx.saved_tensors
        gate, up = halves(parts)
        rows = unit_stride(gradient).flatten(0, -2)
        both = gate.new_empty(gate.shape[0], 2 * gate.shape[1])
        tensors = (rows, gate, up, both)
        _backward[grid(rows)](*tensors, *strides(*tensors), rows.shape[1], GELU=ctx.gelu, BLOCK=BLOCK, num_warps=WARPS)
        both = both.view(*gradient.shape[:-1], both.shape[1])
        return None, *((both,) if len(parts) == 1 else both.chunk(2, dim=-1))


def halves(parts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return (gate, up), each [rows, f] with numbers side by side."""
    parts = parts[0].chunk(2, dim=-1) if len(parts) == 1 else parts
    return tuple(unit_stride(part).flatten(0, -2) for part in parts)


def unit_stride(x: torch.Tensor) -> torch.Tensor:
    """Return x, or a copy whose last dimension has its numbers side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def grid(rows: torch.Tensor) -> tuple[int, int]:
    """Return the programs of `rows`, [rows, f]."""
    return rows.shape[0], triton.cdiv(rows.shape[1], BLOCK)


def strides(*tensors: torch.Tensor) -> list[int]:
    """Return the elements from one row of each tensor to the next."""
    return [tensor.stride(0) for tensor in tensors]


@QuickLaunch
@triton.jit
def _forward(gate, up, y, gate_row, up_row, columns, GELU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(gate + row * gate_row + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_row + at, mask=inside, other=0.0).to(tl.float32)
    share, _ = _share_and_slope(x, GELU)
    tl.store(y + row * columns + at, (x * share * factor).to(y.dtype.element_ty), mask=inside)


@QuickLaunch
@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, gate, up, both, gradient_row, gate_row, up_row, both_row, columns,
    GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    g = tl.load(gradient + row * gradient_row + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(gate + row * gate_row + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_row + at, mask=inside, other=0.0).to(tl.float32)
    share, slope = _share_and_slope(x, GELU)
    gate_gradient = g * factor * (share + x * share * (1 - share) * slope)
    both += row * both_row
    tl.store(both + at, gate_gradient.to(both.dtype.element_ty), mask=inside)
    tl.store(both + columns + at, (g * x * share).to(both.dtype.element_ty), mask=inside)


@triton.jit
def _share_and_slope(x, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
    """s(u(x)) and u'(x)."""
    if GELU:
        double_root: tl.constexpr = 1.5957691216057308  # 2 sqrt(2 / pi)
        u, slope = double_root * (x + 0.044715 * x * x * x), double_root * (1 + 0.134145 * x * x)
    else:
        u, slope = x, 1.0
    return 1 / (1 + tl.exp(-u)), slope
