"""A tied embedding and head on one process: one table of gradients for both.

Autograd would fill a second whole table for the embedding, of which most rows are zero, and add it to the head's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


class TiedGradient:
    """Carries the head's gradient, in a backward pass, from the head to the embedding, which returns it for both."""

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None

    def give(self, gradient: torch.Tensor) -> None:
        self.value = gradient

    def take(self) -> torch.Tensor | None:
        gradient, self.value = self.value, None
        return gradient


def tied_embedding(tokens: torch.Tensor, weight: torch.Tensor, tied: TiedGradient) -> torch.Tensor:
    """Return weight[tokens]; its backward pass, always after the head's, adds to the gradient that `tied` holds."""
    return TiedEmbedding.apply(tokens, weight, tied)  # type: ignore[no-any-return]


class TiedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor, tied: TiedGradient) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.tied = tied
        return functional.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (tokens,) = ctx.saved_tensors
        total = ctx.tied.take()
        total.index_add_(0, tokens.flatten(), gradient.flatten(0, 1).to(total.dtype))
        return None, total, None
