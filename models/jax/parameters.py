"""Which parameters there are, how each lies over the ranks, and its values by canonical name.

A parameter of the layers is one array for all of them, [layers, ...], named `layers.attention.query.weight`. The
program runs over the layers with lax.scan, so it is compiled once and not once for each layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from grid import SHARD, TENSOR
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jax.sharding import Mesh
    from levelfield.worker import Initializer
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Job, Layout
    from numpy.typing import NDArray

SPLIT_BY_ROWS = (  # over the tensor-parallel ranks: whole heads, parts of the MLP and of the vocabulary
    "embedding", "head", "attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up",
)  # fmt: skip
SPLIT_BY_COLUMNS = ("attention.output.weight", "mlp.down.weight")


class Kind(NamedTuple):
    """One array of parameters.

    shape: of one layer's. layers: how many, or None outside of the layers. tensor_axis, shard_axis: the axis of
    `shape` that lies over the tensor-parallel ranks, or over the shards of ZeRO; None where every rank has it whole.
    """

    name: str
    shape: tuple[int, ...]
    layers: int | None
    tensor_axis: int | None
    shard_axis: int | None

    @property
    def spec(self) -> PartitionSpec:
        mesh_axes = [
            tuple(name for name, axis in ((TENSOR, self.tensor_axis), (SHARD, self.shard_axis)) if axis == dimension)
            for dimension in range(len(self.shape))
        ]
        return PartitionSpec(*([None] if self.layers else []), *mesh_axes)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        return (*([self.layers] if self.layers else []), *self.shape)

    @property
    def decays(self) -> bool:
        return len(self.shape) >= 2

    def canonical_names(self) -> list[str]:
        """Return the canonical names of what the array holds, by layer."""
        if self.layers is None:
            return [self.name]
        return [self.name.replace("layers.", f"layers.{layer}.", 1) for layer in range(self.layers)]


def list_kinds(job: Job, initializer: Initializer) -> dict[str, Kind]:
    """Return every array of parameters, by name, in the order of the forward pass."""
    kinds: dict[str, Kind] = {}
    for name, spec in initializer.parameters(job.model).items():
        is_in_layers = name.startswith("layers.")
        shared_name = "layers." + name.split(".", 2)[2] if is_in_layers else name
        if shared_name not in kinds:
            tensor_axis = find_tensor_axis(shared_name)
            shard_axis = find_shard_axis(spec.shape, tensor_axis, job.layout)
            layers = job.model.layers if is_in_layers else None
            kinds[shared_name] = Kind(shared_name, spec.shape, layers, tensor_axis, shard_axis)
    return kinds


def find_tensor_axis(name: str) -> int | None:
    layer_name = name.replace("layers.", "", 1)
    if layer_name.rpartition(".")[0] in SPLIT_BY_ROWS:
        return 0
    return 1 if layer_name in SPLIT_BY_COLUMNS else None


def find_shard_axis(shape: tuple[int, ...], tensor_axis: int | None, layout: Layout) -> int | None:
    """Return the first axis that ZeRO's shards divide; None where there is none, or no ZeRO."""
    shards = layout.sharding_degree if layout.sharding_stage else 1
    local = [size // (layout.tensor if axis == tensor_axis else 1) for axis, size in enumerate(shape)]
    return next((axis for axis, size in enumerate(local) if size % shards == 0), None) if shards > 1 else None


def fill(kinds: Mapping[str, Kind], mesh: Mesh, initializer: Initializer) -> dict[str, jax.Array]:
    """Return the initial values: each rank computes its own slices only."""

    def make_array(kind: Kind) -> jax.Array:
        def compute_slice(index: tuple[slice, ...]) -> NDArray[np.float32]:
            layers = kind.canonical_names()[index[0]] if kind.layers else [kind.name]
            slices = index[1:] if kind.layers else index
            arrays = [initializer.array(name, kind.shape, slices) for name in layers]
            return np.stack(arrays) if kind.layers else arrays[0]

        return jax.make_array_from_callback(kind.whole_shape, NamedSharding(mesh, kind.spec), compute_slice)

    return {name: make_array(kind) for name, kind in kinds.items()}


def local_arrays(kinds: Mapping[str, Kind], arrays: Mapping[str, jax.Array]) -> Iterator[LocalArray]:
    """Yield (canonical name, whole shape, slices, float32 values) of what this rank holds."""
    for name, kind in kinds.items():
        shard = arrays[name].addressable_shards[0]
        values, index = np.asarray(shard.data), shard.index
        if kind.layers is None:
            yield name, kind.shape, index, values
            continue
        for layer, canonical in enumerate(kind.canonical_names()):
            yield canonical, kind.shape, index[1:], values[layer]


def save(kinds: Mapping[str, Kind], arrays: Mapping[str, jax.Array], mesh: Mesh, folder: str, is_writer: bool) -> None:
    """Gather each whole array and write it as <folder>/<canonical name>.npy on the rank that `is_writer`."""
    for name, kind in kinds.items():
        replicate = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
        array = np.asarray(replicate(arrays[name]).addressable_data(0))
        for layer, canonical in enumerate(kind.canonical_names() if is_writer else ()):
            np.save(Path(folder) / f"{canonical}.npy", array if kind.layers is None else array[layer])
