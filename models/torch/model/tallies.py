"""What a rank's routers did in one step: their losses, the experts' tokens, and the selection bias that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from levelfield.worker import part
from levelfield.worker.job import Coordinates, Job
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from model.decoder import Decoder
    from parallelism.model_chunks import ModelChunks
    from routing import Tally


class Tallies:
    """The tallies of this rank's mixtures; there are none in a model without experts."""

    def __init__(self, job: Job, model: Decoder | ModelChunks, place: Coordinates, device: torch.device) -> None:
        self.layers: list[tuple[int, Tally]]
        self.job, self.device = job, device
        self.counts_tokens = place.tensor == 0  # of ranks with equal tokens one counts them
        experts, self.layers = part(job.model, "experts"), []
        if experts is not None:
            from model.mixture import mixtures

            # interleaved stages have no experts, so the model is a Decoder
            self.layers = [(layer, mixture.tally) for layer, mixture in mixtures(model)]  # type: ignore[arg-type]
        self.has_experts, self.rate = experts is not None, experts.router.bias_rate if experts is not None else 0.0
        self.group = data_group(job) if self.rate else None

    def begin(self, scale: float) -> None:
        """Begin a step, before its first forward pass. scale: of the loss of one micro-batch.

        Under tensor parallelism each rank adds an equal part of the gradient, as the parts are summed.
        """
        for _, tally in self.layers:
            tally.begin(scale / self.job.layout.tensor)

    def loss(self) -> torch.Tensor:
        """Return the sum of this rank's layers, the mean over its micro-batches: a float64 scalar."""
        losses = [tally.loss.double() for _, tally in self.layers]
        return sum(losses, torch.zeros((), dtype=torch.float64, device=self.device)) / self.job.accumulation

    def expert_tokens(self) -> list[tuple[int, list[int]]]:
        """Return (layer, the tokens that chose each expert) of this rank's share."""
        return [(layer, tally.counts.tolist()) for layer, tally in self.layers if self.counts_tokens]

    def move_biases(self) -> None:
        """Move the selection biases, after the optimizer's step: they follow from the load over the global batch."""
        if not self.rate or not self.layers:
            return
        counts = torch.stack([tally.counts for _, tally in self.layers])
        if self.group is not None:
            dist.all_reduce(counts, group=self.group)
        for (_, tally), count in zip(self.layers, counts, strict=True):
            tally.move_bias(count, self.rate)


def data_group(job: Job) -> dist.ProcessGroup | None:
    """Return the group of this rank's pipeline and tensor place, whose ranks hold other tokens.

    None where it is alone.
    """
    layout = job.layout
    ranks = layout.data * layout.context
    if ranks == 1:
        return None
    shape = (layout.pipeline, ranks, layout.tensor)
    return init_device_mesh(job.device, shape, mesh_dim_names=("pipeline", "data", "tensor"))["data"].get_group()
