"""Rotary positions of queries and keys (Su et al., 2021), in one kernel each way: one read, one write.

    first' = first cos - second sin,    second' = second cos + first sin

first, second: the halves of a head; cos, sin: of its position's angles (model/attention.py: rotary_tables). The
backward pass is the rotation by the negative angle. Computed in float32, and rounded once.

`rotate` takes heads of any strides. `rotate_joined` takes the output of one product for queries, keys and values, and
copies the values beside: then nothing keeps that output until the backward pass, and the gradients of the three lie
together as that product's backward pass needs them. It is not done in place: selective recomputation keeps the
product.

One program has one token, and takes 2,048 pairs at a time: 16 of each thread of 4 warps.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from fused.launching import QuickLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIRS, WARPS = 2048, 4


def rotate(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return x, rotated. x: [batch, sequence, n, D]; tables: cosines and sines [at least sequence, 1, D / 2]."""
    return Rotation.apply(x, *tables)  # type: ignore[no-any-return]


def rotate_joined(
    joined: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor], heads: list[int]
) -> tuple[torch.Tensor, ...]:
    """Return (query, key, value), each [batch, sequence, n, D], of `joined` [batch, sequence, sum(heads) D].

    heads: how many of queries, keys and values.
    """
    return JoinedRotation.apply(joined, *tables, heads)  # type: ignore[no-any-return]


class Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin, backward=False)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return rotated(gradient, *ctx.saved_tensors, backward=True), None, None  # type: ignore[misc]


class JoinedRotation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joined: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: list[int]
    ) -> tuple[torch.Tensor, ...]:
        ctx.save_for_backward(cos, sin)
        heads_of_joined = joined.unflatten(-1, (sum(heads), -1)).split(heads, dim=2)
        parts = tuple(joined.new_empty(part.shape) for part in heads_of_joined)
        move(heads_of_joined, parts, cos, sin, backward=False)
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        batch, length, _, size = gradients[0].shape
        heads = [gradient.shape[2] for gradient in gradients]
        joined = gradients[0].new_empty(batch, length, sum(heads), size)
        move(  # type: ignore[misc]
            gradients, joined.split(heads, dim=2), *ctx.saved_tensors, backward=True
        )
        return joined.flatten(2), None, None, None


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, backward: bool) -> torch.Tensor:
    """Return the heads x [batch, sequence, n, D], rotated; backward: by the negative angle."""
    x, target = unit_stride(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, length, heads, size = x.shape
    strides = (*x.stride()[:3], *target.stride()[:3])
    _rotate[(batch * length,)](x, target, cos, sin, length, heads, *strides, **blocks(size, backward))
    return target


def move(
    sources: "Sequence[torch.Tensor]",
    targets: "Sequence[torch.Tensor]",
    cos: torch.Tensor,
    sin: torch.Tensor,
    backward: bool,
) -> None:
    """Rotate queries and keys of `sources` into `targets`, and copy the values."""
    sources = [unit_stride(source) for source in sources]
    batch, length, _, size = sources[0].shape
    tensors = [tensor for pair in zip(sources, targets, strict=True) for tensor in pair]
    heads = [source.shape[2] for source in sources]
    strides = [stride for tensor in tensors for stride in tensor.stride()[:3]]
    _move[(batch * length,)](*tensors, cos, sin, length, *heads, *strides, **blocks(size, backward))


def unit_stride(x: torch.Tensor) -> torch.Tensor:
    """Return x, or a copy whose last dimension has its numbers side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def blocks(size: int, backward: bool) -> dict[str, int]:
    """Return a kernel's options for heads of `size`."""
    half = triton.next_power_of_2(size // 2)
    return {
        "HALF": size // 2,
        "HALF_BLOCK": half,
        "HEADS_BLOCK": max(1, PAIRS // half),
        "BACKWARD": backward,
        "num_warps": WARPS,
    }


@QuickLaunch
@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    source, target, cos, sin, length, heads,
    source_batch, source_token, source_head, target_batch, target_token, target_head,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    batch, position = token // length, token % length
    source += batch * source_batch + position * source_token
    target += batch * target_batch + position * target_token
    cos, sin = cos + position * HALF, sin + position * HALF
    _heads(source, target, cos, sin, heads, source_head, target_head, HALF, HALF_BLOCK, HEADS_BLOCK, BACKWARD, True)


@QuickLaunch
@triton.jit
def _move(  # type: ignore[no-untyped-def]
    query, query_target, key, key_target, value, value_target, cos, sin, length, queries, keys, values,
    query_batch, query_token, query_head, query_target_batch, query_target_token, query_target_head,
    key_batch, key_token, key_head, key_target_batch, key_target_token, key_target_head,
    value_batch, value_token, value_head, value_target_batch, value_target_token, value_target_head,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    batch, position = token // length, token % length
    cos, sin = cos + position * HALF, sin + position * HALF
    query += batch * query_batch + position * query_token
    query_target += batch * query_target_batch + position * query_target_token
    key += batch * key_batch + position * key_token
    key_target += batch * key_target_batch + position * key_target_token
    value += batch * value_batch + position * value_token
    value_target += batch * value_target_batch + position * value_target_token
    _heads(
        query, query_target, cos, sin, queries, query_head, query_target_head,
        HALF, HALF_BLOCK, HEADS_BLOCK, BACKWARD, True,
    )  # fmt: skip
    _heads(
        key, key_target, cos, sin, keys, key_head, key_target_head,
        HALF, HALF_BLOCK, HEADS_BLOCK, BACKWARD, True,
    )  # fmt: skip
    _heads(
        value, value_target, cos, sin, values, value_head, value_target_head,
        HALF, HALF_BLOCK, HEADS_BLOCK, BACKWARD, False,
    )  # fmt: skip


@triton.jit
def _heads(  # type: ignore[no-untyped-def]
    source, target, cos, sin, heads, source_head, target_head,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, BACKWARD: tl.constexpr,
    ROTATED: tl.constexpr,
):  # fmt: skip
    """The heads of one token: rotated, or copied."""
    pair = tl.arange(0, HALF_BLOCK)
    c = tl.load(cos + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    if BACKWARD:
        s = -s
    for start in range(0, heads, HEADS_BLOCK):
        head = start + tl.arange(0, HEADS_BLOCK)
        is_pair = (head < heads)[:, None] & (pair < HALF)[None, :]
        from_pair = source + head[:, None] * source_head + pair[None, :]
        to_pair = target + head[:, None] * target_head + pair[None, :]
        first = tl.load(from_pair, mask=is_pair, other=0.0)
        second = tl.load(from_pair + HALF, mask=is_pair, other=0.0)
        if ROTATED:
            exact_first, exact_second = first.to(tl.float32), second.to(tl.float32)
            first = (exact_first * c - exact_second * s).to(first.dtype)
            second = (exact_second * c + exact_first * s).to(second.dtype)
        tl.store(to_pair, first, mask=is_pair)
        tl.store(to_pair + HALF, second, mask=is_pair)
