"""The canonical parameters that this rank holds, in float32: filled, reported, saved; and their gradients.

In 16 bits Megatron's optimizer keeps the float32 values, and its distributed form keeps a flat range of each
parameter on each data-parallel rank. The values here are always the optimizer's, not the rounded ones. Experts have an
optimizer of their own, and replicas only on the ranks that hold the same experts.
"""

import collections
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from canonical import Correspondence
from levelfield.worker import part as part_of
from megatron.core import parallel_state


class Held(NamedTuple):
    """One of Megatron's parameters on this rank and the canonical parts in it, in order of rows."""

    parameter: torch.nn.Parameter
    parts: list

    @property
    def replicas(self):
        """The group of ranks that hold the same values and other tokens."""
        if getattr(self.parameter, "allreduce", True):  # Megatron's mark: its gradient is summed over all of them
            return parallel_state.get_data_parallel_group(with_context_parallel=True)
        return parallel_state.get_expert_data_parallel_group()


class Weights:
    """This rank's parameters. optimizer: Megatron's, made from `chunks`. Every rank must call `arrays` and `save`."""

    def __init__(self, job, place, chunks, optimizer, known):
        self.job, self.place, self.optimizers = job, place, optimizer.chained_optimizers
        self.distributed = job.layout.sharding_stage == 1
        self.shapes = {name: tuple(spec.shape) for name, spec in known.items()}
        self.held = [held for chunk in chunks for held in self.held_in(chunk)]

    def held_in(self, chunk):
        """The parameters of one model chunk, which numbers its layers anew from its first one."""
        model, first_layer = self.job.model, chunk.decoder.layers[0].layer_number - 1
        first_expert = first_expert_of(model, parallel_state.get_expert_model_parallel_rank(), self.job.layout.expert)
        place = self.job.layout.tensor, self.place.tensor, first_layer, first_expert
        table = Correspondence(model, self.shapes, *place)
        return [Held(parameter, table.parts(name)) for name, parameter in chunk.named_parameters()]

    @torch.no_grad()
    def fill(self, initializer):
        """Write the initial values: exact ones into the optimizer's copy, in its precision into the model's."""
        for parameter, parts in self.held:
            whole = torch.empty(parameter.shape)
            for part in parts:
                view = part.view(whole)
                view.copy_(torch.from_numpy(initializer.array(part.name, part.shape, part.slices)).view(view.shape))
            parameter.copy_(whole)
            if getattr(parameter, "main_param", None) is not None:
                parameter.main_param.view(-1).copy_(whole.view(-1)[self.owned(parameter)])

    def arrays(self):
        """(name, whole shape, slices, float32 values), read back from the optimizer."""
        for held in self.held:
            whole = self.whole(held)
            for part in held.parts:
                yield part.name, part.shape, part.slices, part.values(whole).cpu().numpy()

    def save(self, folder):
        """Write <folder>/<name>.npy, whole: each rank its own part of files that the first one made."""
        files = {name: Path(folder) / f"{name}.npy" for name in self.shapes}
        if self.job.rank == 0:
            for name, path in files.items():
                np.lib.format.open_memmap(path, "w+", np.float32, self.shapes[name]).flush()
        dist.barrier()
        for held in self.held:
            whole = self.whole(held)
            for part in held.parts if dist.get_rank(held.replicas) == 0 else ():
                np.lib.format.open_memmap(files[part.name], "r+")[part.slices] = part.values(whole).cpu().numpy()
        dist.barrier()

    def whole(self, held):
        """The float32 values of a parameter, in its shape; of a distributed optimizer gathered from its ranks."""
        parameter = held.parameter
        main = getattr(parameter, "main_param", parameter)
        if not self.distributed:
            return main.detach()
        flat, owned = torch.zeros(parameter.numel(), device=parameter.device), self.owned(parameter)
        if main is not None:
            flat[owned] = main.detach().view(-1)[owned if main is parameter else slice(None)]
        dist.all_reduce(flat, group=held.replicas)
        return flat.view(parameter.shape)

    def owned(self, parameter):
        """The range of the flat parameter that the optimizer of this rank keeps."""
        if not self.distributed:
            return slice(0, parameter.numel())
        for optimizer in self.optimizers:
            if parameter in optimizer.model_param_gbuf_map:
                kept = optimizer._get_model_param_range_map(parameter)["param"]
                return slice(kept.start, kept.end)
        return slice(0, 0)

    # ---- gradients: valid between the schedule's end and the optimizer's step

    def gradient(self, parameter):
        """This rank's share of a parameter's gradient, in its shape: zero where other ranks have the sum."""
        if not self.distributed:
            return parameter.main_grad
        share, owned = torch.zeros_like(parameter.main_grad), self.owned(parameter)
        share.view(-1)[owned] = parameter.main_grad.view(-1)[owned]
        return share

    def squares(self, loss_scale):
        """[(name, this rank's share of the squared norm of its gradient)]: all ranks' add up to the whole's."""
        found, norms = [(held, part) for held in self.held for part in held.parts], []
        for held in self.held:
            gradient = self.gradient(held.parameter)  # a copy under a distributed optimizer: one at a time
            norms += [torch.linalg.vector_norm(part.view(gradient), dtype=torch.float64) for part in held.parts]
        norms = torch.stack(norms)
        totals = collections.defaultdict(float)
        for (held, part), square in zip(found, norms.square().tolist(), strict=True):
            expert = f"[{part.slices[0].start}]" if len(part.shape) == 3 else ""  # each routed expert has its own
            totals[part.name + expert] += square / (loss_scale**2 * self.times(held, part))
        return list(totals.items())

    def times(self, held, part):
        """How many ranks give the same square: with a tied head both ends of the pipeline have the sum of both."""
        layout = self.job.layout
        ends = 2 if layout.pipeline > 1 and self.job.model.tied_embeddings and part.name == "embedding.weight" else 1
        replicas = 1 if self.distributed else held.replicas.size()
        return ends * (layout.tensor if part.whole else 1) * replicas

    def gradients(self, loss_scale):
        """(name, float32 gradient) of all parameters; for one process, which has them whole."""
        whole = {name: np.empty(shape, np.float32) for name, shape in self.shapes.items()}
        for parameter, parts in self.held:
            for part in parts:
                whole[part.name][part.slices] = (part.values(parameter.main_grad) / loss_scale).float().cpu().numpy()
        return whole.items()


def first_expert_of(model, rank, ranks):
    """The number of the first expert that an expert-parallel rank holds."""
    experts = part_of(model, "experts")
    return 0 if experts is None else rank * (experts.count // ranks)
