"""The canonical parameters that this rank holds, in float32: filled, reported, saved; and their gradients.

In 16 bits Megatron's optimizer keeps the float32 values, and its distributed form keeps a flat range of each
parameter on each data-parallel rank. The values here are always the optimizer's, not the rounded ones. Experts have an
optimizer of their own, and replicas only on the ranks that hold the same experts.
"""

from __future__ import annotations

import collections
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from canonical import Correspondence
from levelfield.worker import part as architecture_part
from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from canonical import Part
    from levelfield.worker import Initializer
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job
    from levelfield.worker.parameters import Parameters
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import MegatronOptimizer


class LocalParameter(NamedTuple):
    """One of Megatron's parameters on this rank and the canonical parts in it, in order of rows."""

    parameter: Any  # torch's, with Megatron's main_grad and main_param
    parts: list[Part]

    @property
    def replicas(self) -> dist.ProcessGroup:
        """The group of ranks that hold the same values and other tokens."""
        group: dist.ProcessGroup
        if getattr(self.parameter, "allreduce", True):  # Megatron's mark: its gradient is summed over all of them
            group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        else:
            group = parallel_state.get_expert_data_parallel_group()
        return group


class Weights:
    """This rank's parameters. optimizer: Megatron's, made from `chunks`. Every rank must call `local_arrays` and
    `save`."""

    def __init__(
        self,
        job: Job,
        place: Coordinates,
        chunks: Sequence[GPTModel],
        optimizer: MegatronOptimizer,
        specs: Parameters,
    ) -> None:
        self.job, self.place, self.optimizers = job, place, optimizer.chained_optimizers
        self.distributed = job.layout.sharding_stage == 1
        self.shapes = {name: tuple(spec.shape) for name, spec in specs.items()}
        self.parameters = [parameter for chunk in chunks for parameter in self.list_parameters(chunk)]

    def list_parameters(self, chunk: GPTModel) -> list[LocalParameter]:
        """Return the parameters of one model chunk, which numbers its layers anew from its first one."""
        model, first_layer = self.job.model, chunk.decoder.layers[0].layer_number - 1
        experts, first_expert = architecture_part(model, "experts"), 0
        if experts is not None:
            share = experts.count // self.job.layout.expert
            first_expert = parallel_state.get_expert_model_parallel_rank() * share
        ranks_and_offsets = self.job.layout.tensor, self.place.tensor, first_layer, first_expert
        correspondence = Correspondence(model, self.shapes, *ranks_and_offsets)
        return [LocalParameter(parameter, correspondence.parts(name)) for name, parameter in chunk.named_parameters()]

    @torch.no_grad()
    def fill(self, initializer: Initializer) -> None:
        """Write the initial values: exact ones into the optimizer's copy, in its precision into the model's."""
        for parameter, parts in self.parameters:
            whole = torch.empty(parameter.shape)
            for part in parts:
                view = part.view(whole)
                view.copy_(torch.from_numpy(initializer.array(part.name, part.shape, part.slices)).view(view.shape))
            parameter.copy_(whole)
            if getattr(parameter, "main_param", None) is not None:
                parameter.main_param.view(-1).copy_(whole.view(-1)[self.owned_range(parameter)])

    def local_arrays(self) -> Iterator[LocalArray]:
        """Yield (name, whole shape, slices, float32 values), read back from the optimizer."""
        for local in self.parameters:
            whole = self.gather_whole(local)
            for part in local.parts:
                yield part.name, part.shape, part.slices, part.values(whole).cpu().numpy()

    def save(self, folder: str) -> None:
        """Write <folder>/<name>.npy, whole: each rank its own part of files that the first one made."""
        files = {name: Path(folder) / f"{name}.npy" for name in self.shapes}
        if self.job.rank == 0:
            for name, path in files.items():
                np.lib.format.open_memmap(path, "w+", np.float32, self.shapes[name]).flush()
        dist.barrier()
        for local in self.parameters:
            whole = self.gather_whole(local)
            for part in local.parts if dist.get_rank(local.replicas) == 0 else ():
                np.lib.format.open_memmap(files[part.name], "r+")[part.slices] = part.values(whole).cpu().numpy()
        dist.barrier()

    def gather_whole(self, local: LocalParameter) -> torch.Tensor:
        """Return the float32 values of a parameter, in its shape, gathered from a distributed optimizer's ranks."""
        parameter = local.parameter
        main_parameter = getattr(parameter, "main_param", parameter)
        values: torch.Tensor
        if not self.distributed:
            values = main_parameter.detach()
            return values
        flat, owned_range = torch.zeros(parameter.numel(), device=parameter.device), self.owned_range(parameter)
        if main_parameter is not None:
            main_range = owned_range if main_parameter is parameter else slice(None)
            flat[owned_range] = main_parameter.detach().view(-1)[main_range]
        dist.all_reduce(flat, group=local.replicas)
        return flat.view(parameter.shape)

    def owned_range(self, parameter: torch.nn.Parameter) -> slice:
        """Return the range of the flat parameter that the optimizer of this rank keeps."""
        if not self.distributed:
            return slice(0, parameter.numel())
        for optimizer in self.optimizers:
            if parameter in optimizer.model_param_gbuf_map:
                parameter_range = optimizer._get_model_param_range_map(parameter)["param"]
                return slice(parameter_range.start, parameter_range.end)
        return slice(0, 0)

    def optimizer_states(self, parameter: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Return the float32 (values, means, squares) of a parameter that this rank's optimizer updates.

        Under a distributed optimizer they are of the range that it owns. None where there are none, or none yet.
        """
        main_parameter = getattr(parameter, "main_param", parameter)
        for optimizer in self.optimizers:
            if self.distributed:
                if parameter not in optimizer.model_param_group_index_map:
                    continue
                group, place = optimizer.model_param_group_index_map[parameter]
                main_parameter = optimizer.optimizer.param_groups[group]["params"][place]
            state = optimizer.optimizer.state.get(main_parameter, {})
            if "exp_avg" in state:
                return main_parameter, state["exp_avg"], state["exp_avg_sq"]
        return None

    # ---- gradients: valid between the schedule's end and the optimizer's step

    def gradient(self, parameter: Any) -> torch.Tensor:
        """Return this rank's share of a parameter's gradient, in its shape: zero where other ranks have the sum."""
        gradient: torch.Tensor = parameter.main_grad
        if not self.distributed:
            return gradient
        share, owned_range = torch.zeros_like(gradient), self.owned_range(parameter)
        share.view(-1)[owned_range] = gradient.view(-1)[owned_range]
        return share

    def squares(self, loss_scale: float) -> list[tuple[str, float]]:
        """Return (name, this rank's share of the squared norm of its gradient): all ranks' add up to the whole's."""
        parameter_parts = [(local, part) for local in self.parameters for part in local.parts]
        norms = []
        for local in self.parameters:
            gradient = self.gradient(local.parameter)  # a copy under a distributed optimizer: one at a time
            norms += [torch.linalg.vector_norm(part.view(gradient), dtype=torch.float64) for part in local.parts]
        totals: dict[str, float] = collections.defaultdict(float)
        for (local, part), square in zip(parameter_parts, torch.stack(norms).square().tolist(), strict=True):
            expert = f"[{part.slices[0].start}]" if len(part.shape) == 3 else ""  # each routed expert has its own
            totals[part.name + expert] += square / (loss_scale**2 * self.equal_shares(local, part))
        return list(totals.items())

    def equal_shares(self, local: LocalParameter, part: Part) -> int:
        """Return how many ranks give the same square. With a tied head both ends of the pipeline have the same sum."""
        layout = self.job.layout
        is_at_both_ends = layout.pipeline > 1 and self.job.model.tied_embeddings and part.name == "embedding.weight"
        stage_copies = 2 if is_at_both_ends else 1
        replicas = 1 if self.distributed else local.replicas.size()
        return stage_copies * (layout.tensor if part.is_whole else 1) * replicas

    def gradients(self, loss_scale: float) -> Iterable[tuple[str, np.ndarray]]:
        """Return (name, float32 gradient) of all parameters; for one process, which has them whole."""
        whole = {name: np.empty(shape, np.float32) for name, shape in self.shapes.items()}
        for parameter, parts in self.parameters:
            for part in parts:
                whole[part.name][part.slices] = (part.values(parameter.main_grad) / loss_scale).float().cpu().numpy()
        return whole.items()
