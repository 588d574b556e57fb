"""The choices of one mixture's layer, micro-batch by micro-batch: recorded, or replaced by those to follow.

levelfield.worker.choices says why a training follows the choices of another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.choices import choice_record
from routing import best, in_groups, strength_of_groups

if TYPE_CHECKING:
    from levelfield.worker.architecture import Experts
    from levelfield.worker.choices import ChoiceRecord


class ChosenLayer:
    """Records or replaces the choices of layer `layer`. Each layer runs the micro-batches of a step in their order.

    A forward pass that a backward pass repeats makes the same choices again, and is not recorded.
    """

    def __init__(self, record: ChoiceRecord, layer: int, experts: Experts) -> None:
        self.to_follow: torch.Tensor | None  # the choices to follow in this step; None: this layer's own count
        self.notes: list[Any]  # of each micro-batch so far: its choices, or what `difference` returns
        self.gates: list[torch.Tensor]
        self.record, self.layer, self.experts, self.accumulation = record, layer, experts, record.accumulation
        self.passes, self.repeated_passes = 0, 0
        self.to_follow, self.notes, self.gates = None, [], []

    def experts_to_take(self, ranking: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Return the experts to take, [batch, sequence, chosen].

        ranking: the scores that `choice` was made by, [batch, sequence, experts].
        """
        if in_backward_pass():
            micro = self.repeated_passes % self.accumulation
            self.repeated_passes += 1
            return choice if self.to_follow is None else self.to_follow[micro]
        step, micro = divmod(self.passes, self.accumulation)
        self.passes += 1
        if micro == 0:
            followed = self.record.known(step + 1, self.layer)
            self.to_follow = None if followed is None else torch.from_numpy(followed).to(choice.device)
            self.notes, self.gates = [], []
        if self.to_follow is None:
            self.notes.append(choice.detach().cpu())
        else:
            self.notes.append(difference(ranking, choice, self.to_follow[micro], self.experts))
        return choice if self.to_follow is None else self.to_follow[micro]

    def add_gates(self, gates: torch.Tensor) -> None:
        """Take note of the gates of the experts taken, [batch, sequence, chosen]. Call it after `experts_to_take`."""
        if in_backward_pass():
            return
        self.gates.append(gates.detach().double().sum(-1).mean())
        if len(self.gates) == self.accumulation:
            self.write(self.passes // self.accumulation)

    def write(self, step: int) -> None:
        if self.to_follow is None:
            if self.record.is_whole:  # this rank has the whole batch: others' choices are not recorded
                self.record.chosen(step, self.layer, torch.cat(self.notes).numpy())
        elif self.record.tensor_rank == 0:  # of ranks with equal tokens one records
            changed, margin = torch.stack([torch.stack(pair).double() for pair in self.notes]).unbind(1)
            gates = torch.stack(self.gates).mean().item()
            self.record.compared(
                step, self.layer, self.to_follow.numel(), int(changed.sum()), margin.max().item(), gates
            )


def in_backward_pass() -> bool:
    """Return whether this forward pass repeats another one; torch's own recomputation uses the same check."""
    return torch._C._current_graph_task_id() != -1


def difference(
    ranking: torch.Tensor, choice: torch.Tensor, followed: torch.Tensor, experts: Experts
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (how many of `choice` are not in `followed`, the widest margin of a token).

    The margin is what the own experts' scores have more than those of the followed ones, as a part of their sum. With
    groups it is that of the groups where they differ, and within the followed groups that of the experts.
    """
    changed = (choice[..., :, None] != followed[..., None, :]).all(-1).sum()
    groups = experts.router.groups
    if groups is None:
        return changed, margin(ranking, choice, followed)
    strength = strength_of_groups(ranking, experts)
    group_of = followed // (ranking.shape[-1] // groups.count)
    followed_groups = best(strength.scatter(-1, group_of, float("inf")), groups.chosen)
    own_choice = best(in_groups(ranking, followed_groups, groups.count), choice.shape[-1])
    group_margin = margin(strength, best(strength, groups.chosen), followed_groups)
    return changed, torch.maximum(group_margin, margin(ranking, own_choice, followed))


def margin(scores: torch.Tensor, choice: torch.Tensor, followed: torch.Tensor) -> torch.Tensor:
    """Return the widest margin between the scores of two choices, without a sign: to choose less is a fault, too."""
    choice_sum, followed_sum = (scores.gather(-1, experts).double().sum(-1) for experts in (choice, followed))
    return ((choice_sum - followed_sum).abs() / choice_sum.abs().clamp_min(1e-30)).max()


def chosen_layer(layer: int, experts: Experts) -> ChosenLayer | None:
    """Return the ChosenLayer of this process's training; None where it records no choices."""
    record = choice_record()
    return None if record is None else ChosenLayer(record, layer, experts)
