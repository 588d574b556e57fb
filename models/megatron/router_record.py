"""The choices of one of Megatron's routers, micro-batch by micro-batch: recorded, or known ones in their place.

levelfield.worker.choices says why a training follows the choices of another one.
"""

import collections

import torch
from chosen import difference
from levelfield.worker.choices import choice_record


class RouterRecord:
    """Of one router. Every stage and every model chunk runs the micro-batches of a step in their order.

    Under full recomputation Megatron's first forward pass has no gradients and its second one has. So each kind counts
    its own micro-batches, and the passes with gradients are recorded.
    """

    @classmethod
    def of_this_process(cls, experts):
        """The record of one router in this process's training; None where it records no choices."""
        record = choice_record()
        return None if record is None else cls(record, experts)

    def __init__(self, record, experts):
        self.record, self.experts, self.step = record, experts, 0

    def begin(self):
        """Before the first micro-batch of a step."""
        self.step += 1
        self.passes, self.known, self.found, self.gates = collections.Counter(), None, [], []

    def settled(self, ranking, own, length, layer):
        """The experts to take, [tokens, chosen], as `own`; tokens lie sequence first. length: of this rank's part of
        the sequence. ranking: what was chosen by, [tokens, experts]."""
        if not self.passes:
            self.known = self.known_of(self.record.known(self.step, layer), length, own.device)
        final = torch.is_grad_enabled()
        micro = self.passes[final]
        self.passes[final] += 1
        known = None if self.known is None else self.known[micro]
        if final:
            self.keep(ranking, own, known, length)
        return own if known is None else known

    def weighed(self, gates, layer):
        """After `settled`: the gates of the tokens, [tokens, experts]."""
        if torch.is_grad_enabled():
            self.gates.append(gates.detach().double().sum(-1).mean())
            if len(self.gates) == self.record.accumulation:
                self.write(layer)

    def known_of(self, known, length, device):
        """[accumulation, tokens of this rank, chosen], sequence first."""
        if known is None:
            return None
        first = self.record.tensor_rank * length if known.shape[2] > length else 0
        part = torch.from_numpy(known)[:, :, first : first + length]
        return part.transpose(1, 2).flatten(1, 2).to(device)

    def keep(self, ranking, own, known, length):
        if known is not None:
            self.found.append(torch.stack(difference(ranking, own, known, self.experts)).double())
        elif self.record.is_whole:
            self.found.append(own.detach().cpu().view(length, -1, own.shape[-1]).transpose(0, 1))

    def write(self, layer):
        if self.known is not None:
            changed, margin = torch.stack(self.found).unbind(1)
            gates = torch.stack(self.gates).mean().item()
            self.record.compared(self.step, layer, self.known.numel(), int(changed.sum()), margin.max().item(), gates)
        elif self.record.is_whole:
            self.record.chosen(self.step, layer, torch.cat(self.found).numpy())
