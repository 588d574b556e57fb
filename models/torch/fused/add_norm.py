"""A residual sum and the norm behind it, in one kernel forward; backward one, and a small one for the weight.

    t = x + branch,    n = (t - mean) r w + b,    r = 1 / sqrt(var + eps)    LayerNorm (Ba et al., 2016)
                       n = t r w,                 r = 1 / sqrt(mean(t^2) + eps)    RMSNorm (Zhang and Sennrich, 2019)

Both t and n are handed out: t goes on beside the layer that n enters. So the backward pass is given both gradients,
and adds them in its kernel. With h = (t - mean) r, or t r, and p = (gradient of n) w, the gradient of x and branch is

    (gradient of t) + r (p - mean(p) - h mean(p h))    without mean(p) for RMSNorm

Of w it is the sum over rows of (gradient of n) h, of b that of (gradient of n). Computed in float32; t is rounded
before its norm is computed, as where the sum is an operation of its own.

Forward one program has one row. Backward a program has many rows, sums their part of w's gradient in registers, and
writes it once; `_sum_parts` adds these parts, in a fixed order. PROGRAMS is two for each of an H100's 132 processors;
of rows shorter than 4,096 there are more, so that as many bytes are on their way. With 4,096 rows of 4,096
numbers these parts are 6 % of what moves, of LayerNorm 13 %; with more rows less.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from fused.launching import QuickLaunch

PROGRAMS, LONG_ROW = 264, 4096
PART_ROWS, PART_COLUMNS = 32, 32


def add_norm(
    x: torch.Tensor,
    branch: torch.Tensor | None = None,
    *,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x + branch, its norm); without a branch (x, its norm).

    x, branch: [..., hidden]; weight: [hidden]; bias: that of LayerNorm, or None.
    """
    return AddNorm.apply(x, branch, weight, bias, eps)  # type: ignore[no-any-return]


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        branch: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, branch = x.contiguous(), None if branch is None else branch.contiguous()
        total = x if branch is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        rows, columns = x.numel() // x.shape[-1], x.shape[-1]
        statistics = x.new_empty(2, rows, dtype=torch.float32)
        _forward[(rows,)](
            x, branch, weight, bias, total, normed, statistics, rows, columns, eps,
            ADDS=branch is not None, LAYER=bias is not None, **blocks(columns),
        )  # fmt: skip
        ctx.save_for_backward(total, weight, statistics)
        ctx.adds, ctx.layer = branch is not None, bias is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(
        ctx: Any, total_gradient: torch.Tensor | None, normed_gradient: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        total, weight, statistics = ctx.saved_tensors
        if normed_gradient is None:
            return total_gradient, total_gradient if ctx.adds else None, None, None, None
        rows, columns = statistics.shape[1], total.shape[-1]
        options, normed_gradient = blocks(columns), normed_gradient.contiguous()
        total_gradient = None if total_gradient is None else total_gradient.contiguous()
        programs = min(rows, PROGRAMS * max(1, LONG_ROW // options["BLOCK"]))
        parts = weight.new_empty(1 + ctx.layer, programs, columns, dtype=torch.float32)
        gradient, weight_gradient = torch.empty_like(total), weight.new_empty(1 + ctx.layer, columns)
        _backward[(programs,)](
            total, total_gradient, normed_gradient, weight, statistics, gradient, parts, rows, columns,
            ADDS=total_gradient is not None, LAYER=ctx.layer, **options,
        )  # fmt: skip
        _sum_parts[(triton.cdiv(columns, PART_COLUMNS), 1 + ctx.layer)](
            parts, weight_gradient, programs, columns, ROWS=PART_ROWS, COLUMNS=PART_COLUMNS, num_warps=4
        )
        weight, bias = weight_gradient[0], weight_gradient[1] if ctx.layer else None
        return gradient, gradient if ctx.adds else None, weight, bias, None


@cache
def blocks(columns: int) -> dict[str, int]:
    """Return a kernel's options for rows of so many numbers.

    It has at least 4 warps, and 16 numbers of a row for each thread.
    """
    block = triton.next_power_of_2(columns)
    return {"BLOCK": block, "num_warps": min(16, max(4, block // 512))}


@QuickLaunch
@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, branch, weight, bias, total, normed, statistics, rows, columns, eps,
    ADDS: tl.constexpr, LAYER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, start = at < columns, row * columns
    t = tl.load(x + start + at, mask=inside, other=0.0)
    if ADDS:
        t = (t.to(tl.float32) + tl.load(branch + start + at, mask=inside, other=0.0).to(tl.float32)).to(t.dtype)
        tl.store(total + start + at, t, mask=inside)
    t = t.to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if LAYER:
        mean = tl.sum(t) / columns
        t = tl.where(inside, t - mean, 0.0)
        tl.store(statistics + rows + row, mean)
    r = 1 / tl.sqrt(tl.sum(t * t) / columns + eps)
    tl.store(statistics + row, r)
    n = t * r * w
    if LAYER:
        n += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + start + at, n.to(normed.dtype.element_ty), mask=inside)


@QuickLaunch
@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    total, total_gradient, normed_gradient, weight, statistics, gradient, parts, rows, columns,
    ADDS: tl.constexpr, LAYER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, programs, at = tl.program_id(0), tl.num_programs(0), tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    weight_gradient, bias_gradient = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    place, step = program.to(tl.int64) * columns + at, programs.to(tl.int64) * columns
    for row in range(program, rows, programs):
        t = tl.load(total + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(normed_gradient + place, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(statistics + row)
        if LAYER:
            t = tl.where(inside, t - tl.load(statistics + rows + row), 0.0)
        h, p = t * r, g * w
        weight_gradient += g * h
        t_gradient = p - h * (tl.sum(p * h) / columns)
        if LAYER:
            bias_gradient += g
            t_gradient -= tl.sum(p) / columns
        t_gradient *= r
        if ADDS:
            t_gradient += tl.load(total_gradient + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(gradient + place, t_gradient.to(gradient.dtype.element_ty), mask=inside)
        place += step
    parts += program * columns
    tl.store(parts + at, weight_gradient, mask=inside)
    if LAYER:
        tl.store(parts + programs * columns + at, bias_gradient, mask=inside)


@QuickLaunch
@triton.jit
def _sum_parts(parts, sums, programs, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    parts += tl.program_id(1) * programs * columns
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, programs, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & (at < columns)[None, :]
        total += tl.load(parts + row[:, None] * columns + at[None, :], mask=inside, other=0.0)
    sums += tl.program_id(1) * columns
    tl.store(sums + at, tl.sum(total, 0).to(sums.dtype.element_ty), mask=at < columns)
