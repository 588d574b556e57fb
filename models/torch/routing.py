"""How the tokens of a mixture choose their experts, and what the router adds to the loss.

The definition is that of Router in specs/architecture.py. Scores are in float32, from a product in float32. Every
choice follows from the scores of one sequence, so it is the same in every layout and micro-batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

if TYPE_CHECKING:
    from chosen import ChosenLayer
    from levelfield.worker.architecture import Experts, RouterGroups
    from levelfield.worker.architecture import Router as RouterSettings


class Choice(NamedTuple):
    """What the tokens chose. experts, gates, kept: [batch, sequence, chosen], the best expert first.

    kept: whether the expert has room for the token; None: every one has. counts: of the choices of each expert by
    sequence, [batch, experts], room or not.
    """

    experts: torch.Tensor
    gates: torch.Tensor
    kept: torch.Tensor
    counts: torch.Tensor


class Router(nn.Module):
    """The logits of all experts, [batch, sequence, experts], in float32. weight: [experts, hidden]."""

    def __init__(self, hidden_size: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if isinstance(weight, DTensor):  # each tensor-parallel rank has a part of its gradient
            weight = weight.to_local(grad_placements=[Partial()])
        return functional.linear(x.float(), weight.float())


def scores_of(logits: torch.Tensor, router: RouterSettings) -> torch.Tensor:
    return logits.softmax(-1) if router.scores == "softmax" else logits.sigmoid()


def choose(
    scores: torch.Tensor,
    bias: torch.Tensor,
    experts: Experts,
    capacity: int | None,
    record: ChosenLayer | None = None,
) -> Choice:
    """Return the Choice of every token.

    bias: [experts], added to select and not in the gates. capacity: the tokens of an expert in a sequence, or None.
    record: a ChosenLayer, which may put known choices in place of these; None: there is none.
    """
    router = experts.router
    chosen = best(within_groups(scores + bias, experts), experts.chosen)
    if record is not None:
        chosen = record.experts_to_take(scores.detach() + bias, chosen)
    gates = scores.gather(-1, chosen)
    if router.normalised:
        gates = gates / gates.sum(-1, keepdim=True)
    counts = chosen.new_zeros(chosen.shape[0], experts.count)
    counts.scatter_add_(1, chosen.flatten(1), torch.ones_like(chosen).flatten(1))
    return Choice(chosen, gates * router.scale, with_room(chosen, experts.count, capacity), counts)  # type: ignore[arg-type]


def best(scores: torch.Tensor, number: int) -> torch.Tensor:
    """Return the indices of the largest scores, the largest first.

    Among equal ones the lower index comes first: topk does not promise that, and a device's topk does not do it.
    """
    return scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :number]


def within_groups(scores: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return the scores, minus infinity outside of each token's best groups.

    The score of a group is the sum of its best chosen / groups.chosen scores (DeepSeek-AI, 2024, V3, section 2.1.2).
    """
    groups = experts.router.groups
    if groups is None:
        return scores
    strength = strength_of_groups(scores, experts)
    return in_groups(scores, best(strength, groups.chosen), groups.count)


def strength_of_groups(scores: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return the score of each group: [..., experts] -> [..., groups]."""
    groups: RouterGroups = experts.router.groups  # type: ignore[assignment]  # this router has groups
    grouped: torch.Tensor = scores.detach().unflatten(-1, (groups.count, -1))
    experts_counted = max(1, experts.chosen // groups.chosen)
    return grouped.sort(dim=-1, descending=True).values[..., :experts_counted].sum(-1)


def in_groups(scores: torch.Tensor, open_groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return the scores, minus infinity outside of the open groups, which are given by their numbers."""
    is_open = torch.zeros(*scores.shape[:-1], count, dtype=torch.bool, device=scores.device)
    grouped: torch.Tensor = scores.detach().unflatten(-1, (count, -1))
    return grouped.masked_fill(~is_open.scatter_(-1, open_groups, True)[..., None], -math.inf).flatten(-2)


def with_room(chosen: torch.Tensor, count: int, capacity: int | None) -> torch.Tensor | None:
    """Return whether each choice is among the first `capacity` of its expert in its sequence. None: no capacity."""
    if capacity is None:
        return None
    ranks = torch.zeros(*chosen.shape[:2], count, dtype=torch.int64, device=chosen.device).scatter_(2, chosen, 1)
    return ranks.cumsum(1).gather(2, chosen) <= capacity


def router_loss(logits: torch.Tensor, scores: torch.Tensor, counts: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return the router's own losses of one micro-batch, with their coefficients: a float32 scalar."""
    router = experts.router
    total = logits.new_zeros(())
    if router.auxiliary_loss:
        total = total + router.auxiliary_loss * balance_loss(scores, counts, experts)
    if router.z_loss:
        total = total + router.z_loss * logits.logsumexp(-1).square().mean()
    return total


def balance_loss(scores: torch.Tensor, counts: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Return experts x sum of (share of the sequence's choices) x (mean score), as the mean over sequences.

    It is 1 in balance.
    """
    if experts.router.scores == "sigmoid":
        scores = scores / scores.sum(-1, keepdim=True)
    shares = counts / (experts.chosen * scores.shape[1])
    return experts.count * (shares * scores.mean(1)).sum(-1).mean()


class Tally:
    """What a mixture's layer counted in one step, and its selection bias. It is made where the parameters lie.

    scale: what the gradient of the router's losses is multiplied by. loss: the sum over micro-batches.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.bias = torch.zeros(count, device=device)
        self.counts = torch.zeros(count, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        self.scale = 1.0

    def begin(self, scale: float) -> None:
        self.counts.zero_()
        self.loss.zero_()
        self.scale = scale

    def move_bias(self, counts: torch.Tensor, rate: float) -> None:
        """Move the bias by `rate` against the load over the global batch (Wang et al., 2024). counts: [experts]."""
        load = counts.double()
        self.bias += rate * (load.mean() - load).sign().float()


class RouterLoss(torch.autograd.Function):
    """x unchanged; the backward pass adds the gradient of `loss`, and counts.

    It counts there, because it runs once where a recomputed forward pass runs twice. The loss needs no way to the last
    layer, so each pipeline stage has those of its own layers.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, loss: torch.Tensor, counts: torch.Tensor, tally: Tally) -> torch.Tensor:
        ctx.loss, ctx.counts, ctx.tally = loss.detach(), counts, tally
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        ctx.tally.counts += ctx.counts
        ctx.tally.loss += ctx.loss
        return gradient, ctx.loss.new_full((), ctx.tally.scale), None, None
