"""The cross-entropy of a vocabulary that may be split over tensor-parallel processes."""

from oneflow.nn import functional


def mean_loss(logits, targets):
    """The mean over all tokens of the whole batch: logits [batch, sequence, vocabulary], targets [batch, sequence]."""
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.sum() / targets.numel()
