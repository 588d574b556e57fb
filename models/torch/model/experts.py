"""The experts of a mixture: tokens sorted by expert, one product for all experts of a rank, and back in slot order."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.architecture import GATED
from model.casts import CastLayer
from model.layers import gated
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from levelfield.worker.architecture import Model
    from routing import Choice

UNGATED = {
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}  # type: dict[str, Callable[[torch.Tensor], torch.Tensor]]
LAST = 2**31  # sorts after every expert
ALIGNMENT = 16  # bytes: of the rows that grouped_mm takes


class ExpertLinear(CastLayer):
    """y = x W^T in x's dtype, each row by the W of its expert. weight: [experts, out, in]."""

    def __init__(self, count: int, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, rows, columns))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return [rows, out]. x: [rows, in], sorted by expert; counts: [experts of this rank], of their rows."""
        return grouped_product(x, self.cast("weight", x.dtype), counts)

    def local_parameter(self, name: str) -> torch.Tensor:
        return self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight


class Experts(nn.Module):
    """`count` MLPs of the model's activation. exchange: see expert_parallel.py; None where this rank has them all."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        count, inner = model.experts.count, model.experts.ffn_hidden_size  # type: ignore[union-attr]
        self.gate = ExpertLinear(count, model.hidden_size, inner) if model.activation in GATED else None
        self.up = ExpertLinear(count, model.hidden_size, inner)
        self.down = ExpertLinear(count, inner, model.hidden_size)
        self.activation = model.activation
        # (rows, counts, self.mlp) -> rows
        self.exchange: (
            Callable[[torch.Tensor, torch.Tensor, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]], torch.Tensor]
            | None
        ) = None

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the outputs in the order of `rows`.

        rows: [rows, hidden], sorted by expert; counts: [experts], of their rows.
        """
        if self.exchange is not None:
            return self.exchange(rows, counts, self.mlp)
        return self.mlp(rows, counts)

    def mlp(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the outputs [rows, hidden] of this rank's experts."""
        up = self.up(rows, counts)
        if self.gate is None:
            return self.down(UNGATED[self.activation](up), counts)  # type: ignore[no-any-return]
        return self.down(  # type: ignore[no-any-return]
            gated(self.activation, self.gate(rows, counts), up), counts
        )


def grouped_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return [rows, out] of x [rows, in], weight [groups, out, in] and counts [groups].

    A group without rows gives its weight a gradient of zeros. On a processor torch's grouped product takes as long as
    products one after another, in float32 and bfloat16; it needs rows of whole 16 bytes.
    """
    if any(size * x.element_size() % ALIGNMENT for size in weight.shape[1:]):
        parts = x.split(counts.tolist())
        return torch.cat([part @ matrix.t() for part, matrix in zip(parts, weight.unbind(), strict=True)])
    return functional.grouped_mm(x, weight.transpose(1, 2), offs=counts.cumsum(0).to(torch.int32))


def sorted_choices(choice: Choice) -> torch.Tensor:
    """Return the choices in the order of their experts, and for each of these by token: [rows].

    A choice is a number, token times chosen plus slot. Choices without room are left out.
    """
    experts, room = choice.experts.flatten(), choice.kept
    if room is None:
        return experts.sort(stable=True).indices
    rows = int(room.sum())
    return experts.masked_fill(~room.flatten(), LAST).sort(stable=True).indices[:rows]


def rows_by_expert(choice: Choice, count: int) -> torch.Tensor:
    """Return how many rows each expert takes, [experts]."""
    experts = choice.experts.flatten()
    rows = torch.ones_like(experts) if choice.kept is None else choice.kept.flatten().to(experts.dtype)
    return experts.new_zeros(count).scatter_add_(0, experts, rows)


class Dispatch(torch.autograd.Function):
    """The tokens of the choices `order`: [tokens, hidden] -> [rows, hidden].

    The gradient of a token is the sum over its choices in slot order, whatever the order of rows: no atomic sums.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor, chosen: int) -> torch.Tensor:
        ctx.save_for_backward(order)
        ctx.shape = (x.shape[0], chosen, x.shape[1])
        return x[order // chosen]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return in_slot_order(placed(gradient, order, ctx.shape)), None, None


class Collect(torch.autograd.Function):
    """The rows of the choices `order` in their slots, zeros elsewhere: [rows, hidden] -> [tokens, chosen, hidden]."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, tokens: int, chosen: int) -> torch.Tensor:
        ctx.save_for_backward(order)
        return placed(rows, order, (tokens, chosen, rows.shape[1]))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (order,) = ctx.saved_tensors
        return gradient.flatten(0, 1)[order], None, None, None


def placed(rows: torch.Tensor, order: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    """Return the rows in their slots, [tokens, chosen, hidden], with zeros where a choice has no row."""
    target = rows.new_zeros(shape) if order.numel() < shape[0] * shape[1] else rows.new_empty(shape)
    target.flatten(0, 1)[order] = rows
    return target


def in_slot_order(slots: torch.Tensor) -> torch.Tensor:
    """Return the sum over slots [tokens, chosen, hidden], one after the other."""
    return functools.reduce(torch.add, slots.unbind(1))
