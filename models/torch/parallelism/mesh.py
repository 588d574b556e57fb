"""The ranks as a grid: pipeline outermost, tensor innermost, and between them data and context as one dimension, of
replicas of shards, then shards.

PP2, DP4 with ZeRO over 2 of them, TP2: rank = ((pipeline * 2 + replicate) * 2 + shard) * 2 + tensor. Ranks 0 and 1 are
one tensor-parallel group, 0 and 2 shard the same parameters, 0 and 4 hold the same shard, 0 and 8 are two stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from levelfield.worker.job import Coordinates, Job
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Grid:
    """Named dimensions of the device mesh; `grid[name]` is this rank's part of one, or None where its size is 1.

    replicate, shard: the ranks that sum gradients, data * context = replicate * shard. ZeRO shards over `shard`.
    """

    def __init__(self, job: Job) -> None:
        layout = job.layout
        shard = layout.sharding_degree if layout.sharding_stage else 1
        self.sizes = {
            "pipeline": layout.pipeline,
            "replicate": layout.data * layout.context // shard,
            "shard": shard,
            "tensor": layout.tensor,
        }
        names = tuple(name for name, size in self.sizes.items() if size > 1)
        shape = tuple(self.sizes[name] for name in names)
        self.mesh = init_device_mesh(job.device, shape, mesh_dim_names=names) if names else None

    def __getitem__(self, name: str) -> DeviceMesh | None:
        return self.mesh[name] if self.sizes[name] > 1 else None  # type: ignore[index]  # then there is a mesh

    def data_mesh(self) -> DeviceMesh | None:
        """Return the mesh of the ranks that sum gradients: (replicate, shard) without sizes of 1; None for one rank."""
        names = tuple(name for name in ("replicate", "shard") if self.sizes[name] > 1)
        return self.mesh[names if len(names) > 1 else names[0]] if names else None  # type: ignore[index]

    def ends_group(self, coordinates: Coordinates) -> dist.ProcessGroup | None:
        """Return the group of the first and the last pipeline stage's ranks at this rank's place within them.

        Every rank must call this at the same time. None on the stages between.
        """
        stage_size = self.sizes["replicate"] * self.sizes["shard"] * self.sizes["tensor"]
        last = (self.sizes["pipeline"] - 1) * stage_size
        groups = [dist.new_group([place, last + place]) for place in range(stage_size)]
        is_end_stage = coordinates.pipeline in (0, self.sizes["pipeline"] - 1)
        return groups[dist.get_rank() % stage_size] if is_end_stage else None
