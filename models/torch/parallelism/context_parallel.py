"""Context parallelism: the ranks of a group share each sequence (Llama team, 2024, section 3.3.2).

A sequence is cut into two pieces for each rank: rank r has piece r from the front and piece r from the back, so that
the causal mask leaves all ranks equal work. Before attention each rank gathers the keys and values of all. Everything
else is computed for each token by itself; so gradients are those of more data-parallel ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from levelfield.worker.job import Coordinates, Job
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # of query, key and value


class SequenceShare:
    """One rank's share of each sequence: two pieces of equal length.

    positions: of its tokens in the sequence; embedded: of those that it embeds, which are fewer under sequence
    parallelism. ends: where its pieces end. group: the ranks that share the sequence.
    """

    def __init__(
        self,
        length: int,
        ranks: int,
        rank: int,
        group: ProcessGroup,
        embedding_ranks: int = 1,
        embedding_rank: int = 0,
    ) -> None:
        size = length // (2 * ranks)
        self.ranks, self.rank, self.group = ranks, rank, group
        self.ends = [(rank + 1) * size, length - rank * size]
        self.positions = torch.cat([torch.arange(end - size, end) for end in self.ends])
        self.embedded = self.positions.chunk(embedding_ranks)[embedding_rank]

    def of(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of [..., sequence]."""
        return sequences[..., self.positions.to(sequences.device)]

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Gather [batch, part, ...] of every rank -> [batch, sequence, ...] in the order of the sequence.

        Its gradient is the sum of those of all ranks.
        """
        return in_order(all_gather_single_autograd(part.contiguous(), 0, self.group), self.ranks)


def in_order(gathered: torch.Tensor, ranks: int) -> torch.Tensor:
    """Sort [ranks * batch, part, ...] -> [batch, sequence, ...] in the order of the sequence."""
    fronts, backs = gathered.unflatten(0, (ranks, -1)).chunk(2, dim=2)
    return torch.cat((*fronts, *reversed(backs.unbind())), dim=1)


def open_share(job: Job, place: Coordinates) -> SequenceShare | None:
    """Return the SequenceShare of this rank; None where it has whole sequences.

    Every rank must call this at the same time.
    """
    layout = job.layout
    if layout.context == 1:
        return None
    shape = (layout.pipeline * layout.data, layout.context, layout.tensor)
    mesh = init_device_mesh(job.device, shape, mesh_dim_names=("outer", "context", "tensor"))["context"]
    embedding = (layout.tensor, place.tensor) if layout.sequence_parallel else (1, 0)
    return SequenceShare(job.training.sequence_length, layout.context, place.context, mesh.get_group(), *embedding)


def shared_attention(attend: Attend, share: SequenceShare) -> Attend:
    """Return `attend` for queries of this rank's share, over the keys and values of the whole sequence.

    attend: of queries that are the last positions of the keys.
    """

    def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        width = key.shape[-1]
        key, value = share.whole(torch.cat((key, value), dim=-1)).split((width, value.shape[-1]), dim=-1)
        pieces = zip(query.chunk(2, dim=1), share.ends, strict=True)
        return torch.cat([attend(piece, key[:, :end], value[:, :end]) for piece, end in pieces], dim=1)

    return attended
