"""The choices of one of Megatron's routers, micro-batch by micro-batch: recorded, or replaced by those to follow.

levelfield.worker.choices says why a training follows the choices of another one.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import torch
from chosen import difference
from levelfield.worker.choices import choice_record

if TYPE_CHECKING:
    from levelfield.worker.architecture import Experts
    from levelfield.worker.choices import ChoiceRecord, Chosen


class RouterRecord:
    """Of one router. Every stage and every model chunk runs the micro-batches of a step in their order.

    Under full recomputation Megatron's first forward pass has no gradients and its second one has. So each kind counts
    its own micro-batches, and the passes with gradients are recorded.
    """

    def __init__(self, record: ChoiceRecord, experts: Experts) -> None:
        self.record, self.experts, self.step = record, experts, 0  # the record of this rank, of all its routers
        self.passes: collections.Counter[bool] = collections.Counter()  # micro-batches, by whether there are gradients
        self.to_follow: torch.Tensor | None = None  # [accumulation, tokens, chosen]
        self.notes: list[torch.Tensor] = []  # of each micro-batch: the choices, or (changed, margin) of `difference`
        self.gates: list[torch.Tensor] = []

    def begin_step(self) -> None:
        """Start a step, before its first micro-batch."""
        self.step += 1
        self.passes, self.to_follow, self.notes, self.gates = collections.Counter(), None, [], []

    def experts_to_take(self, ranking: torch.Tensor, choices: torch.Tensor, length: int, layer: int) -> torch.Tensor:
        """Return the experts to take, [tokens, chosen], which are `choices` where none are to be followed.

        ranking: the scores to choose by, [tokens, experts]. Tokens lie sequence first. length: of this rank's part of
        the sequence.
        """
        if not self.passes:
            recorded = self.record.known(self.step, layer)  # those to follow; None where the router makes its own
            self.to_follow = self.arrange_choices(recorded, length, choices.device)
        has_gradients = torch.is_grad_enabled()
        micro = self.passes[has_gradients]
        self.passes[has_gradients] += 1
        followed = None if self.to_follow is None else self.to_follow[micro]
        if has_gradients:
            self.add_note(ranking, choices, followed, length)
        return choices if followed is None else followed

    def add_gates(self, gates: torch.Tensor, layer: int) -> None:
        """Note the gates of the tokens, [tokens, experts]. Called after `experts_to_take`."""
        if torch.is_grad_enabled():
            self.gates.append(gates.detach().double().sum(-1).mean())
            if len(self.gates) == self.record.accumulation:
                self.write(layer)

    def arrange_choices(self, choices: Chosen | None, length: int, device: torch.device) -> torch.Tensor | None:
        """Return recorded choices as this router takes them: [accumulation, tokens of this rank, chosen], sequence
        first."""
        if choices is None:
            return None
        first_token = self.record.tensor_rank * length if choices.shape[2] > length else 0
        # [accumulation, micro-batch, part of the sequence, chosen]
        part = torch.from_numpy(choices)[:, :, first_token : first_token + length]
        return part.transpose(1, 2).flatten(1, 2).to(device)

    def add_note(
        self, ranking: torch.Tensor, choices: torch.Tensor, followed: torch.Tensor | None, length: int
    ) -> None:
        if followed is not None:
            self.notes.append(torch.stack(difference(ranking, choices, followed, self.experts)).double())
        elif self.record.is_whole:  # this rank has the whole batch: others' choices are not recorded
            # [batch, sequence, chosen]
            self.notes.append(choices.detach().cpu().view(length, -1, choices.shape[-1]).transpose(0, 1))

    def write(self, layer: int) -> None:
        if self.to_follow is not None:
            changed, margin = torch.stack(self.notes).unbind(1)
            gates = torch.stack(self.gates).mean().item()
            count = self.to_follow.numel()
            self.record.compared(self.step, layer, count, int(changed.sum()), margin.max().item(), gates)
        elif self.record.is_whole:
            self.record.chosen(self.step, layer, torch.cat(self.notes).numpy())


def open_router_record(experts: Experts) -> RouterRecord | None:
    """Return the record of one router in this process's training; None where it records no choices."""
    record = choice_record()
    return None if record is None else RouterRecord(record, experts)
