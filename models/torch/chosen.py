"""The choices of one mixture's layer, micro-batch by micro-batch: recorded, or known ones in their place.

levelfield.worker.choices says why a training follows the choices of another one.
"""

import torch
from levelfield.worker.choices import choice_record
from routing import best, in_groups, strength_of_groups


class ChosenLayer:
    """Of layer `layer`. Every stage and every layer runs the micro-batches of a step in their order.

    A forward pass that a backward pass repeats makes the same choices again, and is not recorded.
    """

    def __init__(self, record, layer, experts):
        self.record, self.layer, self.experts, self.accumulation = record, layer, experts, record.accumulation
        self.passes, self.repeated = 0, 0
        self.known, self.found, self.gates = None, [], []

    def settled(self, ranking, choice):
        """The experts to take, [batch, sequence, chosen]. ranking: what was chosen by, [batch, sequence, experts]."""
        if in_backward_pass():
            micro = self.repeated % self.accumulation
            self.repeated += 1
            return choice if self.known is None else self.known[micro]
        step, micro = divmod(self.passes, self.accumulation)
        self.passes += 1
        if micro == 0:
            followed = self.record.known(step + 1, self.layer)
            self.known = None if followed is None else torch.from_numpy(followed).to(choice.device)
            self.found, self.gates = [], []
        if self.known is None:
            self.found.append(choice.detach().cpu())
        else:
            self.found.append(difference(ranking, choice, self.known[micro], self.experts))
        return choice if self.known is None else self.known[micro]

    def weighed(self, gates):
        """After `settled`: the gates that the choices are weighed by, [batch, sequence, chosen]."""
        if in_backward_pass():
            return
        self.gates.append(gates.detach().double().sum(-1).mean())
        if len(self.gates) == self.accumulation:
            self.write(self.passes // self.accumulation)

    def write(self, step):
        if self.known is None:
            if self.record.is_whole:
                self.record.chosen(step, self.layer, torch.cat(self.found).numpy())
        elif self.record.tensor_rank == 0:  # of ranks with equal tokens one records
            changed, margin = torch.stack([torch.stack(pair).double() for pair in self.found]).unbind(1)
            gates = torch.stack(self.gates).mean().item()
            self.record.compared(step, self.layer, self.known.numel(), int(changed.sum()), margin.max().item(), gates)


def in_backward_pass():
    """Whether this forward pass repeats another one, as torch's own recomputation finds out."""
    return torch._C._current_graph_task_id() != -1


def difference(ranking, choice, followed, experts):
    """(those of `choice` that are not in `followed`, the widest margin of a token).

    The margin is what the own experts' scores have more than the known ones', as a part of their sum. With groups it is
    that of the groups where they differ, and within the known groups that of the experts.
    """
    changed = (choice[..., :, None] != followed[..., None, :]).all(-1).sum()
    groups = experts.router.groups
    if groups is None:
        return changed, margin(ranking, choice, followed)
    strength = strength_of_groups(ranking, experts)
    group_of = followed // (ranking.shape[-1] // groups.count)
    their = best(strength.scatter(-1, group_of, float("inf")), groups.chosen)
    ours = best(in_groups(ranking, their, groups.count), choice.shape[-1])
    between = margin(strength, best(strength, groups.chosen), their)
    return changed, torch.maximum(between, margin(ranking, ours, followed))


def margin(scores, choice, followed):
    """Without a sign: own choices that are not the best ones are a fault, too."""
    best_sum, known_sum = (scores.gather(-1, experts).double().sum(-1) for experts in (choice, followed))
    return ((best_sum - known_sum).abs() / best_sum.abs().clamp_min(1e-30)).max()


def chosen_layer(layer, experts):
    """The ChosenLayer of this process's training; None where it records no choices."""
    record = choice_record()
    return None if record is None else ChosenLayer(record, layer, experts)
