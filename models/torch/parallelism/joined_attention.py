"""Causal attention of one context rank in calls without a mask, joined by their log-sum-exp (Liu et al., 2023).

A rank has two pieces of each sequence (context_parallel.py). A piece attends causally to itself and without a mask to
all keys before it. With o the output and l the log-sum-exp of the scores of each call,

    l = log(exp(l_own) + exp(l_before)),    o = exp(l_own - l) o_own + exp(l_before - l) o_before.

The backward pass of a call takes the joined o and l in place of its own, and returns its part of the gradients. The
calls of the own keys do not wait for those of other ranks: they run while keys and values are gathered and, in the
backward pass, while the gradients of these are summed over the ranks. Forward and backward are one operation each: so
selective recomputation keeps one output, and torch.compile leaves their inside alone.
"""

from typing import TYPE_CHECKING, Any

import torch
from parallelism.context_parallel import in_order
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parallelism.context_parallel import Attend, SequenceShare

    Triple = tuple[Tensor, Tensor, Tensor]

aten, collectives = torch.ops.aten, torch.ops._c10d_functional


def joined_attention(share: "SequenceShare", kernel: str) -> "Attend":
    """Return the attention of this rank's queries, over the keys and values of the whole sequence.

    share: the SequenceShare. kernel: a name of KERNELS. query, key, value: [batch, part, n, D].
    """
    group = share.group.group_name

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own = torch.cat((key, value), dim=-1)  # [batch, part, n, 2 D]
        # not waited for here, and without a gradient: the operation does both
        gathered = collectives.all_gather_into_tensor(own.detach(), share.ranks, group)  # [ranks * batch, part, n, 2 D]
        return attention(query, own, gathered, share.rank, group, kernel)[0]  # type: ignore[no-any-return]

    return attended


@torch.library.custom_op("levelfield::joined_attention", mutates_args=())
def attention(
    query: Tensor, own: Tensor, gathered: Tensor, rank: int, group: str, kernel: str
) -> tuple[Tensor, Tensor]:
    """Return (output, log-sum-exp [2, batch, n, piece]). query and output: [batch, part, n, D].

    own: [batch, part, n, 2 D], this rank's keys and values; gathered: those of all, [ranks * batch, part, n, 2 D].
    """
    call = KERNELS[kernel][0]
    output, scales = torch.empty_like(query, memory_format=torch.contiguous_format), []
    first = [call(*inputs, True) for inputs in own_inputs(query, own)]
    later = inputs_before(query, whole_of(gathered, query), rank)  # of each piece [batch, n, ..., D]
    for causal, inputs, into in zip(first, later, halves(output), strict=True):
        scales.append(join(causal, call(*inputs, False) if inputs else None, into))  # [batch, n, piece]
    return output, torch.stack(scales)


@attention.register_fake
def _(query, own, gathered, rank, group, kernel):  # type: ignore[no-untyped-def]
    batch, part, heads, _ = query.shape
    scales = (2, batch, heads, part // 2)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    return output, query.new_empty(scales, dtype=torch.promote_types(query.dtype, torch.float32))


@torch.library.custom_op("levelfield::joined_attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    gathered: Tensor,
    output: Tensor,
    scales: Tensor,
    rank: int,
    group: str,
    kernel: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `query` and `own`. scales: the log-sum-exp of `attention`."""
    whole, ranks = whole_of(gathered, query), gathered.shape[0] // query.shape[0]  # whole: [batch, sequence, n, 2 D]
    joined = list(zip(halves(gradient), halves(output), scales, strict=True))
    query_gradient, whole_gradient = gradients_before(joined, query, whole, rank, kernel)
    others = collectives.reduce_scatter_tensor(by_rank(whole_gradient, ranks), "sum", ranks, group)
    causal = own_gradients(joined, query, gathered.chunk(ranks)[rank], kernel)
    local_gradient = collectives.wait_tensor(others)  # [batch, part, n, 2 D]
    for gradients, totals in zip(causal, own_inputs(query_gradient, local_gradient), strict=True):
        add(gradients, totals)
    return query_gradient, local_gradient


@attention_backward.register_fake
def _(gradient, query, gathered, *_):  # type: ignore[no-untyped-def]
    local_gradient = gathered.new_empty(query.shape[0], *gathered.shape[1:])
    return torch.empty_like(query, memory_format=torch.contiguous_format), local_gradient


def save_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, _, gathered, *ctx.others = inputs
    ctx.save_for_backward(query, gathered, *output)


def differentiate(ctx: Any, gradient: Tensor, _: object) -> tuple[Tensor, Tensor, None, None, None, None]:
    return *attention_backward(gradient, *ctx.saved_tensors, *ctx.others), None, None, None, None


attention.register_autograd(differentiate, setup_context=save_for_gradient)


def join(first_part: tuple[Tensor, Tensor], before: "tuple[Tensor, Tensor] | None", into: Tensor) -> Tensor:
    """Write the joined output into `into`, and return the joined log-sum-exp.

    first_part, before: (output, log-sum-exp).
    """
    if before is None:
        into.copy_(first_part[0])
        return first_part[1]
    scale = torch.logaddexp(first_part[1], before[1])  # [batch, n, piece]
    # the factors of both outputs: [batch, n, piece, 1]
    first, second = ((scales - scale).exp()[..., None] for _, scales in (first_part, before))
    torch.addcmul(
        first_part[0] * first, before[0], second, out=into
    )  # the weights are in float32: so it is rounded once
    return scale


def gradients_before(
    joined: "Sequence[Triple]", query: Tensor, whole: Tensor, rank: int, kernel: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of (query, whole) by the calls over the keys before each piece.

    joined: (gradient, output, log-sum-exp) of each piece. whole: [batch, sequence, n, 2 D].
    """
    totals: Any
    query_gradient, whole_gradient = (
        torch.zeros_like(query, memory_format=torch.contiguous_format),
        torch.zeros_like(whole),
    )
    later = zip(inputs_before(query, whole, rank), inputs_before(query_gradient, whole_gradient, rank), strict=True)
    for piece, (inputs, totals) in zip(joined, later, strict=True):
        if inputs:
            add(KERNELS[kernel][1](*piece, *inputs, False), totals)
    return query_gradient, whole_gradient


def own_gradients(joined: "Sequence[Triple]", query: Tensor, own: Tensor, kernel: str) -> "list[Triple]":
    """Return the gradients of (query, key, value) of each piece by the call over its own keys."""
    backward = KERNELS[kernel][1]
    return [backward(*piece, *inputs, True) for piece, inputs in zip(joined, own_inputs(query, own), strict=True)]


def add(gradients: "Iterable[Tensor]", totals: "Iterable[Tensor]") -> None:
    for gradient, total in zip(gradients, totals, strict=True):
        total.add_(gradient)


def own_inputs(query: Tensor, own: Tensor) -> "list[Triple]":
    """Return (query, key, value) of each piece, [batch, n, piece, D], with the piece's own keys and values."""
    # a chunk of keys and one of values
    return [(piece, *keys.chunk(2, dim=-1)) for piece, keys in zip(halves(query), halves(own), strict=True)]  # type: ignore[misc]


def inputs_before(query: Tensor, whole: Tensor, rank: int) -> "list[Triple | None]":
    """Return (query, key, value) of each piece, with all keys and values before it; None where there are none."""
    size = query.shape[1] // 2
    ends = rank * size, whole.shape[1] - (rank + 1) * size
    before = [whole[:, :end].transpose(1, 2).chunk(2, dim=-1) for end in ends]  # keys and values: [batch, n, end, D]
    return [(piece, *keys) if end else None for piece, keys, end in zip(halves(query), before, ends, strict=True)]  # type: ignore[misc]


def halves(x: Tensor) -> tuple[Tensor, ...]:
    """Return two of [batch, n, piece, ...] from [batch, part, n, ...]: the pieces, as kernels take them."""
    return x.transpose(1, 2).chunk(2, dim=2)


def whole_of(gathered: Tensor, query: Tensor) -> Tensor:
    """Return keys and values in the order of the sequence, [batch, sequence, n, 2 D].

    It waits, also for what a recomputation has gathered again.
    """
    return in_order(collectives.wait_tensor(gathered), gathered.shape[0] // query.shape[0])


def by_rank(whole: Tensor, ranks: int) -> Tensor:
    """Return the reverse of `in_order`: [batch, sequence, ...] -> [ranks * batch, part, ...]."""
    fronts, backs = (half.unflatten(1, (ranks, -1)) for half in whole.chunk(2, dim=1))
    return torch.cat((fronts, backs.flip(1)), dim=2).transpose(0, 1).flatten(0, 1).contiguous()


def flash(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)[:2]  # type: ignore[no-any-return]


def flash_backward(
    gradient: Tensor, output: Tensor, scale: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool
) -> "Triple":
    seed = torch.empty(2, dtype=torch.uint64, device=query.device)  # of a dropout that there is not
    lengths = query.shape[2], key.shape[2]
    return aten._scaled_dot_product_flash_attention_backward(  # type: ignore[no-any-return]
        gradient, query, key, value, output, scale, None, None, *lengths, 0.0, causal, seed, seed
    )


def cudnn(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    output, scale, *_ = aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, causal)
    return output, scale.view(output.shape[:3])


def cudnn_backward(
    gradient: Tensor, output: Tensor, scale: Tensor, query: Tensor, key: Tensor, value: Tensor, causal: bool
) -> "Triple":
    seed = torch.empty((), dtype=torch.int64, device=query.device)
    lengths = query.shape[2], key.shape[2]
    return aten._scaled_dot_product_cudnn_attention_backward(  # type: ignore[no-any-return]
        gradient, query, key, value, output, scale[..., None], seed, seed, None, None, None, *lengths, 0.0, causal
    )


# Forward: (query, key, value, causal) -> (output, log-sum-exp); backward: (gradient, output, log-sum-exp, query, key,
# value, causal) -> gradients of query, key and value: [batch, n, length, D]; the log-sum-exp: [batch, n, length].
KERNELS = {"flash": (flash, flash_backward), "cudnn": (cudnn, cudnn_backward)}
