"""A mixture of experts in place of a block's MLP (Shazeer et al., 2017; DeepSeek-AI, 2024)."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.distributed as dist
from chosen import chosen_layer
from model.experts import Collect, Dispatch, Experts, in_slot_order, rows_by_expert, sorted_choices
from routing import Router, RouterLoss, Tally, choose, router_loss, scores_of
from torch import nn
from torch.distributed.tensor import DTensor, Partial


class Mixture(nn.Module):
    """The sum, over the experts that a token chose, of gate x expert(x), best expert first; then the shared experts.

    layer: its number in the whole model. shared: the MLP that every token uses, or None. between: how tensor-parallel
    ranks want the output, a placement.
    """

    def __init__(self, model, layer, sequence_length, shared):
        super().__init__()
        self.settings, self.layer = model.experts, layer
        self.router = Router(model.hidden_size, model.experts.count)
        self.experts = Experts(model)
        self.shared = shared
        self.capacity = capacity_of(model.experts, sequence_length)
        self.tally = self.between = self.share = self.record = None

    def prepare(self, device: torch.device, share=None):
        """Make what is counted, and the selection bias, on `device`. share: this rank's share of each sequence
        (context_parallel.py); None: all."""
        self.share, self.tally = share, Tally(self.settings.count, device)
        self.record = chosen_layer(self.layer, self.settings)

    def forward(self, x: torch.Tensor):
        """x: [batch, sequence, hidden], whole sequences; under tensor parallelism a replicated DTensor."""
        shared = None if self.shared is None else self.shared(x)  # before: recomputation repeats up to the last product
        if isinstance(x, DTensor):
            # each rank computes a part of every expert, so all gradients in here are parts, to be summed over ranks
            routed = self.routed(x.to_local(grad_placements=[Partial()]))
            routed = DTensor.from_local(routed, x.device_mesh, [Partial()], run_check=False)
            routed = routed.redistribute(placements=[self.between]).to_local()
        else:
            routed = self.routed(x)
        return routed if shared is None else routed + shared

    def routed(self, x: torch.Tensor):
        logits = self.router(x)
        scores = scores_of(logits, self.settings.router)
        choice = choose(scores, self.tally.bias, self.settings, self.capacity, self.record)
        if self.record is not None:
            self.record.weighed(choice.gates)
        mixed = self.mixed(x.flatten(0, 1), choice).view(x.shape).to(x.dtype)
        loss = router_loss(logits, scores, self.of_whole_sequences(choice.counts), self.settings)
        return RouterLoss.apply(mixed, loss, choice.counts.sum(0), self.tally)

    def of_whole_sequences(self, counts):
        """The counts of each sequence, as the mean over the ranks that share it: their number of tokens is equal.

        The scores need no such mean: the loss is linear in them, and its mean over ranks is taken anyway.
        """
        if self.share is None:
            return counts
        total = counts.float()
        dist.all_reduce(total, group=self.share.group)
        return total / self.share.ranks

    def mixed(self, tokens, choice):
        """[tokens, hidden] -> the same, in the gates' float32."""
        chosen = self.settings.chosen
        counts = rows_by_expert(choice, self.settings.count)
        order = sorted_choices(choice)
        rows = self.experts(Dispatch.apply(tokens, order, chosen), counts)
        slots = Collect.apply(rows, order, tokens.shape[0], chosen)
        return in_slot_order(slots * choice.gates.flatten(0, 1)[..., None])


def shared_experts(model):
    """The model with the width of its shared experts as that of its MLP; None without shared experts."""
    experts = model.experts
    if not experts.shared:
        return None
    return SimpleNamespace(**{**vars(model), "ffn_hidden_size": experts.shared * experts.ffn_hidden_size})


def capacity_of(experts, sequence_length):
    """The tokens of one sequence that an expert takes; None: all."""
    if experts.capacity_factor is None:
        return None
    return math.ceil(experts.capacity_factor * sequence_length * experts.chosen / experts.count)


def mixtures(model):
    """(layer, its Mixture) of this rank's layers."""
    blocks = ((int(layer), block.mlp) for layer, block in model.layers.items())
    return [(layer, mlp) for layer, mlp in blocks if isinstance(mlp, Mixture)]
