"""The cross-entropy of a vocabulary that may be split over tensor-parallel processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.nn import functional

if TYPE_CHECKING:
    import oneflow as flow


def mean_loss(logits: flow.Tensor, targets: flow.Tensor) -> flow.Tensor:
    """Return the mean over all tokens of the whole batch.

    logits: [batch, sequence, vocabulary], perhaps split over the vocabulary. targets: [batch, sequence].
    """
    # [batch sequence]
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.sum() / targets.numel()
