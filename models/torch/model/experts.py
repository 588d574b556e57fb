"""The experts of a mixture: tokens sorted by expert, one product for all experts of a rank, and back in slot order."""

from __future__ import annotations

import functools

import torch
from levelfield.worker.architecture import GATED
from model.casts import CastLayer
from model.layers import gated
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

UNGATED = {"gelu": functional.gelu, "gelu_tanh": functools.partial(functional.gelu, approximate="tanh")}
LAST = 2**31  # sorts after every expert
ALIGNMENT = 16  # bytes: of the rows that grouped_mm takes


class ExpertLinear(CastLayer):
    """y = x W^T in x's dtype, each row by the W of its expert. weight: [experts, out, in]."""

    def __init__(self, count, columns, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, rows, columns))

    def forward(self, x: torch.Tensor, counts):
        """x: [rows, in], sorted by expert; counts: [experts of this rank], of their rows."""
        return grouped_product(x, self.cast("weight", x.dtype), counts)

    def held(self, name):
        return self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight


class Experts(nn.Module):
    """`count` MLPs of the model's activation. exchange: see expert_parallel.py; None where this rank has them all."""

    def __init__(self, model):
        super().__init__()
        count, inner = model.experts.count, model.experts.ffn_hidden_size
        self.gate = ExpertLinear(count, model.hidden_size, inner) if model.activation in GATED else None
        self.up = ExpertLinear(count, model.hidden_size, inner)
        self.down = ExpertLinear(count, inner, model.hidden_size)
        self.activation = model.activation
        self.exchange = None

    def forward(self, rows, counts):
        """rows: [rows, hidden], sorted by expert; counts: [experts], of their rows. Returns rows in the same order."""
        if self.exchange is not None:
            return self.exchange(rows, counts, self.mlp)
        return self.mlp(rows, counts)

    def mlp(self, rows, counts):
        up = self.up(rows, counts)
        if self.gate is None:
            return self.down(UNGATED[self.activation](up), counts)
        return self.down(gated(self.activation, self.gate(rows, counts), up), counts)


def grouped_product(x: torch.Tensor, weight, counts):
    """x: [rows, in], weight: [groups, out, in], counts: [groups] -> [rows, out].

    A group without rows gives its weight a gradient of zeros. On a processor torch's grouped product takes as long as
    products one after another, in float32 and bfloat16; it needs rows of whole 16 bytes.
    """
    if any(size * x.element_size() % ALIGNMENT for size in weight.shape[1:]):
        parts = x.split(counts.tolist())
        return torch.cat([part @ matrix.t() for part, matrix in zip(parts, weight.unbind(), strict=True)])
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))


def sorted_choices(choice):
    """The choices in the order of their experts, tokens first to last: [rows], each a token times chosen plus slot.

    Choices without room are left out.
    """
    experts, room = choice.experts.flatten(), choice.kept
    if room is None:
        return experts.sort(stable=True).indices
    rows = int(room.sum())
    return experts.masked_fill(~room.flatten(), LAST).sort(stable=True).indices[:rows]


def rows_by_expert(choice, count):
    """[experts]: how many rows each expert takes."""
    experts = choice.experts.flatten()
    rows = torch.ones_like(experts) if choice.kept is None else choice.kept.flatten().to(experts.dtype)
    return experts.new_zeros(count).scatter_add_(0, experts, rows)


class Dispatch(torch.autograd.Function):
    """The tokens of the choices `order`: [tokens, hidden] -> [rows, hidden].

    The gradient of a token is the sum over its choices in slot order, whatever the order of rows: no atomic sums.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor, order, chosen):
        ctx.save_for_backward(order)
        ctx.shape = (x.shape[0], chosen, x.shape[1])
        return x[order // chosen]

    @staticmethod
    def backward(ctx, gradient):
        (order,) = ctx.saved_tensors
        return in_slot_order(placed(gradient, order, ctx.shape)), None, None


class Collect(torch.autograd.Function):
    """The rows of the choices `order` in their slots, zeros elsewhere: [rows, hidden] -> [tokens, chosen, hidden]."""

    @staticmethod
    def forward(ctx, rows, order, tokens, chosen):
        ctx.save_for_backward(order)
        return placed(rows, order, (tokens, chosen, rows.shape[1]))

    @staticmethod
    def backward(ctx, gradient):
        (order,) = ctx.saved_tensors
        return gradient.flatten(0, 1)[order], None, None, None


def placed(rows, order, shape):
    target = rows.new_zeros(shape) if order.numel() < shape[0] * shape[1] else rows.new_empty(shape)
    target.flatten(0, 1)[order] = rows
    return target


def in_slot_order(slots):
    """The sum over slots [tokens, chosen, hidden], one after the other."""
    return functools.reduce(torch.add, slots.unbind(1))
