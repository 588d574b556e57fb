"""A mixture of experts in place of a block's MLP (Shazeer et al., 2017; DeepSeek-AI, 2024)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from chosen import chosen_layer
from model.experts import Collect, Dispatch, Experts, in_slot_order, rows_by_expert, sorted_choices
from model.layers import Linear
from routing import Router, RouterLoss, Tally, choose, router_loss, scores_of
from torch import nn
from torch.distributed.tensor import DTensor, Partial

if TYPE_CHECKING:
    from chosen import ChosenLayer
    from levelfield.worker.architecture import Experts as ExpertSettings
    from levelfield.worker.architecture import Model
    from parallelism.context_parallel import SequenceShare
    from routing import Choice
    from torch.distributed.tensor import Placement


class Mixture(nn.Module):
    """The sum, over the experts that a token chose, of gate x expert(x), best expert first; then the shared experts,
    times the sigmoid of shared_gate(x) where a model has it (Qwen2-MoE).

    layer: its number in the whole model. shared: the MLP that every token uses, or None. between: how tensor-parallel
    ranks want the output, a placement.
    """

    def __init__(self, model: Model, layer: int, sequence_length: int, shared: nn.Module | None) -> None:
        super().__init__()
        self.settings: ExpertSettings
        self.tally: Tally  # after `prepare`
        self.between: Placement
        self.share: SequenceShare | None
        self.record: ChosenLayer | None
        self.settings, self.layer = model.experts, layer  # type: ignore[assignment]
        self.router = Router(model.hidden_size, model.experts.count)  # type: ignore[union-attr]
        self.experts = Experts(model)
        self.shared = shared
        self.shared_gate = Linear(model.hidden_size, 1, bias=False) if self.settings.shared_gate else None
        self.capacity = capacity_of(model.experts, sequence_length)  # type: ignore[arg-type]
        self.tally = self.between = self.share = self.record = None  # type: ignore[assignment]

    def prepare(self, device: torch.device, share: SequenceShare | None = None) -> None:
        """Make what is counted, and the selection bias, on `device`. share: this rank's share of each sequence
        (context_parallel.py); None: all."""
        self.share, self.tally = share, Tally(self.settings.count, device)
        self.record = chosen_layer(self.layer, self.settings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mixture's output.

        x: [batch, sequence, hidden], whole sequences; under tensor parallelism a replicated DTensor.
        """
        shared = None if self.shared is None else self.shared(x)  # before: recomputation repeats up to the last product
        if shared is not None and self.shared_gate is not None:
            shared = shared * torch.sigmoid(self.shared_gate(x))
        if isinstance(x, DTensor):
            # each rank computes a part of every expert, so all gradients in here are parts, to be summed over ranks
            routed = self.routed(x.to_local(grad_placements=[Partial()]))
            routed = DTensor.from_local(routed, x.device_mesh, [Partial()], run_check=False)
            routed = routed.redistribute(placements=[self.between]).to_local()
        else:
            routed = self.routed(x)
        return routed if shared is None else routed + shared

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the experts that the tokens choose, [batch, sequence, hidden]."""
        logits = self.router(x)  # [batch, sequence, experts]
        scores = scores_of(logits, self.settings.router)
        choice = choose(scores, self.tally.bias, self.settings, self.capacity, self.record)
        if self.record is not None:
            self.record.add_gates(choice.gates)
        mixed = self.mixed(x.flatten(0, 1), choice).view(x.shape).to(x.dtype)
        loss = router_loss(logits, scores, self.of_whole_sequences(choice.counts), self.settings)
        return RouterLoss.apply(mixed, loss, choice.counts.sum(0), self.tally)  # type: ignore[no-any-return]

    def of_whole_sequences(self, counts: torch.Tensor) -> torch.Tensor:
        """Return the counts of each sequence, as the mean over the ranks that share it.

        Their number of tokens is equal. The scores need no such mean: the loss is linear in them, and its mean over
        ranks is taken anyway.
        """
        if self.share is None:
            return counts
        total = counts.float()
        dist.all_reduce(total, group=self.share.group)
        return total / self.share.ranks

    def mixed(self, tokens: torch.Tensor, choice: Choice) -> torch.Tensor:
        """Return the gated sum of the experts' outputs, [tokens, hidden] like `tokens`, in the gates' float32."""
        chosen = self.settings.chosen
        counts = rows_by_expert(choice, self.settings.count)
        order = sorted_choices(choice)
        rows = self.experts(Dispatch.apply(tokens, order, chosen), counts)
        slots = Collect.apply(rows, order, tokens.shape[0], chosen)
        return in_slot_order(slots * choice.gates.flatten(0, 1)[..., None])


def shared_experts(model: Model) -> SimpleNamespace | None:
    """Return the model with the width of its shared experts as that of its MLP; None without shared experts."""
    experts: ExpertSettings = model.experts  # type: ignore[assignment]
    if not experts.shared:
        return None
    return SimpleNamespace(**{**vars(model), "ffn_hidden_size": experts.shared * experts.ffn_hidden_size})


def capacity_of(experts: ExpertSettings, sequence_length: int) -> int | None:
    """Return the tokens of one sequence that an expert takes; None: all."""
    if experts.capacity_factor is None:
        return None
    return math.ceil(experts.capacity_factor * sequence_length * experts.chosen / experts.count)


def mixtures(model: nn.Module) -> list[tuple[int, Mixture]]:
    """Return (layer, its Mixture) of this rank's layers. model: a Decoder."""
    blocks = (
        (int(layer), block.mlp)
        for layer, block in model.layers.items()  # type: ignore[operator, union-attr]
    )
    return [(layer, mlp) for layer, mlp in blocks if isinstance(mlp, Mixture)]
