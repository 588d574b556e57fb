"""The router of a mixture of experts by the case's definition (specs/architecture.py: Router), inside Megatron's layer.

Megatron's own differs from it. Its topk leaves open which of equal scores it takes. Its auxiliary loss counts choices
as they were without the selection bias and groups. Its softmax gates are the plain scores of the chosen without any
division only. In 16 bits its weight and its counts are rounded.
"""

import dataclasses
import functools

import torch
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    get_tokens_per_expert_and_token_count,
    switch_load_balancing_loss_func,
    z_loss_func,
)
from megatron.core.transformer.moe.router import TopKRouter
from router_record import RouterRecord
from torch.nn import functional


class DefiniteRouter(TopKRouter):
    """Chooses experts for the tokens of this rank. experts: the case's.

    tokens, loss: of the micro-batches since `reset`, how many tokens chose each expert, and the sum of the losses that
    were added. Tensor-parallel ranks have different tokens of the same sequences, and each a part of their losses.
    """

    is_definite = True  # as mixture.routers_of finds it

    def __init__(self, config, pg_collection=None, *, experts):
        super().__init__(config=config, pg_collection=pg_collection)
        self.definition, self.record = experts.router, None
        self.reset()
        self.record = RouterRecord.of_this_process(experts)

    def reset(self):
        """Before the first micro-batch of a step."""
        self.tokens, self.loss = torch.zeros(self.num_experts, dtype=torch.int64), 0.0
        if self.record is not None:
            self.record.begin()

    def gating(self, input):
        """The logits, in float32 from float32."""
        return functional.linear(input.float(), self.weight.float())

    def routing(self, logits, padding_mask=None):
        """(gates, chosen), both [tokens, experts], of logits [sequence, batch, experts]."""
        length, experts = logits.shape[0], logits.shape[-1]
        logits = logits.view(-1, experts)
        scores = logits.sigmoid() if self.definition.scores == "sigmoid" else logits.softmax(-1)
        indices = self.choose(scores)
        if self.record is not None:
            indices = self.record.settled(self.ranking(scores), indices, length, self.layer_number - 1)
        gates = torch.zeros_like(scores).scatter(1, indices, self.gates(scores.gather(1, indices)))
        if self.record is not None:
            self.record.weighed(gates, self.layer_number - 1)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, indices, True)
        if torch.is_grad_enabled():  # not in the first of two forward passes under recomputation
            self.count(chosen)
            gates = self.attach(gates, self.losses(logits, scores, chosen, length))
        return gates, chosen

    def choose(self, scores):
        """The indices of each token's experts, the best first; of equal scores the lower index."""
        return best(self.within_groups(self.ranking(scores)), self.topk)

    def ranking(self, scores):
        return scores.detach() if self.expert_bias is None else scores.detach() + self.expert_bias

    def within_groups(self, ranking):
        """The same with minus infinity outside of each token's best groups, which are strong as the sum of their best
        topk / groups experts, as in Megatron's own."""
        groups = self.definition.groups
        if groups is None:
            return ranking
        split = ranking.unflatten(-1, (groups.count, -1))
        counted = max(1, self.topk // groups.chosen)
        strength = split.sort(dim=-1, descending=True).values[..., :counted].sum(-1)
        closed = torch.ones_like(strength, dtype=torch.bool).scatter(-1, best(strength, groups.chosen), False)
        return split.masked_fill(closed[..., None], -torch.inf).flatten(-2)

    def gates(self, scores):
        if self.definition.normalised:
            scores = scores / scores.sum(-1, keepdim=True)
        return scores * self.definition.scale

    def count(self, chosen):
        counts = chosen.sum(0)
        self.tokens = self.tokens.to(counts.device) + counts
        if self.expert_bias is not None:
            self.local_tokens_per_expert += counts  # which Megatron sums over the ranks, and moves the bias by

    def losses(self, logits, scores, chosen, length):
        """This rank's part of the losses of one micro-batch: of each sequence, and the mean over the sequences."""
        found, definition = torch.zeros((), device=scores.device), self.definition
        if definition.auxiliary_loss:
            found = found + self.auxiliary_loss(scores, chosen, length)
        if definition.z_loss:
            found = found + z_loss_func(logits, definition.z_loss / self.tp_cp_group.size())
        return found

    def auxiliary_loss(self, scores, chosen, length):
        """Megatron's, with the counts of the choices made; its tokens lie sequence first, so a row is a place in all
        of the batch's sequences. It divides the counts by the number of choices, as the definition does."""
        shares = scores / scores.sum(-1, keepdim=True) if self.definition.scores == "sigmoid" else scores
        chosen, batch = chosen.view(length, -1), chosen.shape[0] // length
        counts, _, places = get_tokens_per_expert_and_token_count(chosen, self.tp_cp_group)
        coefficient = self.definition.auxiliary_loss
        sizes = {"topk": self.topk, "num_experts": self.num_experts, "moe_aux_loss_coeff": coefficient}
        return switch_load_balancing_loss_func(shares.view(length, -1), counts, places, **sizes) / batch

    def attach(self, gates, loss):
        """The same gates, whose backward pass adds the gradient of `loss`, scaled as the tokens' loss is."""
        if not loss.requires_grad:
            return gates
        self.loss = self.loss + loss.detach()
        return MoEAuxLossAutoScaler.apply(gates, loss)


def best(scores, number):
    """The indices of the largest scores, the largest first; of equal ones the lower index first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :number]


def use_definite_router(block, experts):
    """Megatron's block spec with this router in each mixture."""
    layers = []
    for layer in block.layer_specs:
        mlp = layer.submodules.mlp
        if isinstance(mlp.submodules, MoESubmodules):
            made = functools.partial(DefiniteRouter, experts=experts)
            mlp = dataclasses.replace(mlp, submodules=dataclasses.replace(mlp.submodules, router=made))
            layer = dataclasses.replace(layer, submodules=dataclasses.replace(layer.submodules, mlp=mlp))
        layers.append(layer)
    return dataclasses.replace(block, layer_specs=layers)
