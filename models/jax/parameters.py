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
    from levelfield.worker.events import Held
    from levelfield.worker.job import Job, Layout
    from numpy.typing import NDArray

OUTPUTS = (  # split by rows over the tensor-parallel ranks: whole heads, parts of the MLP and of the vocabulary
    "embedding", "head", "attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up",
)  # fmt: skip
INPUTS = ("attention.output.weight", "mlp.down.weight")  # split by columns


class Kind(NamedTuple):
    """One array of parameters.

    shape: of one layer's. layers: how many, or None outside of the layers. split, sharded: the axis of `shape` that
    lies over the tensor-parallel ranks, or over the shards of ZeRO; None where every rank has it whole.
    """

    name: str
    shape: tuple[int, ...]
    layers: int | None
    split: int | None
    sharded: int | None

    @property
    def spec(self) -> PartitionSpec:
        over = [
            tuple(axis for axis, place in ((TENSOR, self.split), (SHARD, self.sharded)) if place == dimension)
            for dimension in range(len(self.shape))
        ]
        return PartitionSpec(*([None] if self.layers else []), *over)

    @property
    def whole(self) -> tuple[int, ...]:
        return (*([self.layers] if self.layers else []), *self.shape)

    @property
    def decays(self) -> bool:
        return len(self.shape) >= 2

    def names(self) -> list[str]:
        """Return the canonical names of what the array holds, by layer."""
        if self.layers is None:
            return [self.name]
        return [self.name.replace("layers.", f"layers.{layer}.", 1) for layer in range(self.layers)]


def list_kinds(job: Job, initializer: Initializer) -> dict[str, Kind]:
    """Return every array of parameters, by name, in the order of the forward pass."""
    kinds: dict[str, Kind] = {}
    for name, spec in initializer.parameters(job.model).items():
        inside = name.startswith("layers.")
        common = "layers." + name.split(".", 2)[2] if inside else name
        if common not in kinds:
            split = split_axis(common)
            sharded = shard_axis(spec.shape, split, job.layout)
            kinds[common] = Kind(common, spec.shape, job.model.layers if inside else None, split, sharded)
    return kinds


def split_axis(name: str) -> int | None:
    plain = name.replace("layers.", "", 1)
    if plain.rpartition(".")[0] in OUTPUTS:
        return 0
    return 1 if plain in INPUTS else None


def shard_axis(shape: tuple[int, ...], split: int | None, layout: Layout) -> int | None:
    """Return the first axis that ZeRO's shards divide; None where there is none, or no ZeRO."""
    shards = layout.sharding_degree if layout.sharding_stage else 1
    local = [size // (layout.tensor if axis == split else 1) for axis, size in enumerate(shape)]
    return next((axis for axis, size in enumerate(local) if size % shards == 0), None) if shards > 1 else None


def fill(kinds: Mapping[str, Kind], mesh: Mesh, initializer: Initializer) -> dict[str, jax.Array]:
    """Return the initial values: each rank computes its own slices only."""

    def make_array(kind: Kind) -> jax.Array:
        def compute_slice(index: tuple[slice, ...]) -> NDArray[np.float32]:
            layers = kind.names()[index[0]] if kind.layers else [kind.name]
            slices = index[1:] if kind.layers else index
            arrays = [initializer.array(name, kind.shape, slices) for name in layers]
            return np.stack(arrays) if kind.layers else arrays[0]

        return jax.make_array_from_callback(kind.whole, NamedSharding(mesh, kind.spec), compute_slice)

    return {name: make_array(kind) for name, kind in kinds.items()}


def as_arrays(kinds: Mapping[str, Kind], arrays: Mapping[str, jax.Array]) -> Iterator[Held]:
    """Yield (canonical name, whole shape, slices, float32 values) of what this rank holds."""
    for name, kind in kinds.items():
        shard = arrays[name].addressable_shards[0]
        values, index = np.asarray(shard.data), shard.index
        if kind.layers is None:
            yield name, kind.shape, index, values
            continue
        for layer, canonical in enumerate(kind.names()):
            yield canonical, kind.shape, index[1:], values[layer]


def save(kinds: Mapping[str, Kind], arrays: Mapping[str, jax.Array], mesh: Mesh, folder: str, writes: bool) -> None:
    """Gather each whole array and write it as <folder>/<canonical name>.npy on the rank that `writes`."""
    for name, kind in kinds.items():
        everywhere = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
        whole = np.asarray(everywhere(arrays[name]).addressable_data(0))
        for layer, canonical in enumerate(kind.names() if writes else ()):
            np.save(Path(folder) / f"{canonical}.npy", whole if kind.layers is None else whole[layer])
