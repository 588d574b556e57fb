"""The router of a mixture of experts by the case's definition (specs/architecture.py: Router), inside Megatron's layer.

Megatron's own differs from it. Its topk leaves open which of equal scores it takes. Its auxiliary loss counts choices
as they were without the selection bias and groups. Its softmax gates are the plain scores of the chosen without any
division only. In 16 bits its weight and its counts are rounded.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.moe.moe_utils import (
    MoEAuxLossAutoScaler,
    get_tokens_per_expert_and_token_count,
    switch_load_balancing_loss_func,
    z_loss_func,
)
from megatron.core.transformer.moe.router import TopKRouter
from router_record import open_router_record
from torch.nn import functional

if TYPE_CHECKING:
    from levelfield.worker.architecture import Experts
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig
    from router_record import RouterRecord


class DefiniteRouter(TopKRouter):
    """Chooses experts for the tokens of this rank. experts: the case's.

    tokens, loss: of the micro-batches since `reset`, how many tokens chose each expert, and the sum of the losses that
    were added. Tensor-parallel ranks have different tokens of the same sequences, and each a part of their losses.
    """

    tokens: torch.Tensor
    loss: torch.Tensor | float
    record: RouterRecord | None

    def __init__(
        self, config: TransformerConfig, pg_collection: ProcessGroupCollection | None = None, *, experts: Experts
    ) -> None:
        super().__init__(config=config, pg_collection=pg_collection)
        self.definition, self.record = experts.router, None
        self.reset()
        self.record = open_router_record(experts)

    def reset(self) -> None:
        """Forget the tokens and losses of the step before. Called before the first micro-batch of a step."""
        self.tokens, self.loss = torch.zeros(self.num_experts, dtype=torch.int64), 0.0
        if self.record is not None:
            self.record.begin_step()

    def gating(self, input: torch.Tensor) -> torch.Tensor:
        """Return the logits [..., experts], in float32 from float32."""
        return functional.linear(input.float(), self.weight.float())

    def routing(
        self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (gates, chosen), both [tokens, experts], of logits [sequence, batch, experts]."""
        length, experts = logits.shape[0], logits.shape[-1]
        logits = logits.view(-1, experts)  # [tokens, experts], sequence first
        scores = logits.sigmoid() if self.definition.scores == "sigmoid" else logits.softmax(-1)
        indices = self.choose(scores)  # [tokens, topk]
        if self.record is not None:
            indices = self.record.experts_to_take(self.ranking(scores), indices, length, self.layer_number - 1)
        gates = torch.zeros_like(scores).scatter(1, indices, self.gates(scores.gather(1, indices)))
        if self.record is not None:
            self.record.add_gates(gates, self.layer_number - 1)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, indices, True)
        if torch.is_grad_enabled():  # not in the first of two forward passes under recomputation
            self.count(chosen)
            gates = self.attach(gates, self.losses(logits, scores, chosen, length))
        return gates, chosen

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the indices of each token's experts, the best first; of equal scores the lower index."""
        return best(self.within_groups(self.ranking(scores)), self.topk)

    def ranking(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.detach() if self.expert_bias is None else scores.detach() + self.expert_bias

    def within_groups(self, ranking: torch.Tensor) -> torch.Tensor:
        """Return the ranking with minus infinity outside of each token's best groups.

        A group is as strong as the sum of its best topk / groups experts, as in Megatron's own.
        """
        groups = self.definition.groups
        if groups is None:
            return ranking
        split: torch.Tensor = ranking.unflatten(-1, (groups.count, -1))  # [tokens, groups, experts of a group]
        experts_counted = max(1, self.topk // groups.chosen)
        strength = split.sort(dim=-1, descending=True).values[..., :experts_counted].sum(-1)  # [tokens, groups]
        is_closed = torch.ones_like(strength, dtype=torch.bool).scatter(-1, best(strength, groups.chosen), False)
        return split.masked_fill(is_closed[..., None], -torch.inf).flatten(-2)

    def gates(self, scores: torch.Tensor) -> torch.Tensor:
        if self.definition.normalised:
            scores = scores / scores.sum(-1, keepdim=True)
        return scores * self.definition.scale

    def count(self, chosen: torch.Tensor) -> None:
        counts = chosen.sum(0)
        self.tokens = self.tokens.to(counts.device) + counts
        if self.expert_bias is not None:
            self.local_tokens_per_expert += counts  # which Megatron sums over the ranks, and moves the bias by

    def losses(self, logits: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor, length: int) -> torch.Tensor:
        """Return this rank's part of one micro-batch's losses: of each sequence, and the mean over the sequences."""
        total, definition = torch.zeros((), device=scores.device), self.definition
        if definition.auxiliary_loss:
            total = total + self.auxiliary_loss(scores, chosen, length)
        if definition.z_loss:
            total = total + z_loss_func(logits, definition.z_loss / self.tp_cp_group.size())
        return total

    def auxiliary_loss(self, scores: torch.Tensor, chosen: torch.Tensor, length: int) -> torch.Tensor:
        """Return Megatron's auxiliary loss, with the counts of the choices made.

        Its tokens lie sequence first, so a row is a place in all of the batch's sequences. It divides the counts by the
        number of choices, as the definition does.
        """
        shares = scores / scores.sum(-1, keepdim=True) if self.definition.scores == "sigmoid" else scores
        chosen, batch = chosen.view(length, -1), chosen.shape[0] // length  # [sequence, batch * experts]
        counts, _, token_count = get_tokens_per_expert_and_token_count(chosen, self.tp_cp_group)
        coefficient = self.definition.auxiliary_loss
        sizes = {"topk": self.topk, "num_experts": self.num_experts, "moe_aux_loss_coeff": coefficient}
        loss: torch.Tensor = switch_load_balancing_loss_func(shares.view(length, -1), counts, token_count, **sizes)
        return loss / batch

    def attach(self, gates: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        """Return the same gates, whose backward pass adds the gradient of `loss`, scaled as the tokens' loss is."""
        if not loss.requires_grad:
            return gates
        self.loss = self.loss + loss.detach()
        gates_with_loss: torch.Tensor = MoEAuxLossAutoScaler.apply(gates, loss)
        return gates_with_loss


def best(scores: torch.Tensor, number: int) -> torch.Tensor:
    """Return the indices of the largest scores, the largest first; of equal ones the lower index first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :number]


def use_definite_router(block: TransformerBlockSubmodules, experts: Experts) -> TransformerBlockSubmodules:
    """Return Megatron's block spec with this router in each mixture."""
    layers = []
    for layer in block.layer_specs:
        mlp = layer.submodules.mlp
        if isinstance(mlp.submodules, MoESubmodules):
            router = functools.partial(DefiniteRouter, experts=experts)
            mlp = dataclasses.replace(mlp, submodules=dataclasses.replace(mlp.submodules, router=router))
            layer = dataclasses.replace(layer, submodules=dataclasses.replace(layer.submodules, mlp=mlp))
        layers.append(layer)
    return dataclasses.replace(block, layer_specs=layers)
