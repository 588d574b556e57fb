"""The ranks as a mesh: replicas of shards outermost, then shards, tensor-parallel ranks innermost.

The data-parallel ranks are replica * shard; ZeRO shards over `shard`. A step is one program for all ranks (shard_map):
each value in it is local, and its type says over which axes it varies. Where a value that is equal on an axis meets one
that varies, JAX's derivative sums over that axis. That is right for tensor parallelism. `vary` says where a gradient
must stay local.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh

if TYPE_CHECKING:
    from levelfield.worker.job import Job

REPLICA, SHARD, TENSOR = AXES = ("replica", "shard", "tensor")
DATA = (REPLICA, SHARD)


def make_mesh(job: Job) -> Mesh:
    layout = job.layout
    shards = layout.sharding_degree if layout.sharding_stage else 1
    devices = sorted(jax.devices(), key=lambda device: device.process_index)
    ranks = np.array(devices).reshape(layout.data // shards, shards, layout.tensor)
    return Mesh(ranks, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def vary(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return x with a type that varies over `axes` too: its gradient is not summed over them."""
    missing = tuple(axis for axis in axes if axis not in jax.typeof(x).mat.varying)
    return lax.pcast(x, missing, to="varying") if missing else x
