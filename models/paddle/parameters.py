"""The parts of the canonical parameters that this rank holds: filled, reported and saved under their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import paddle
import paddle.distributed as dist
from decoder import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from levelfield.worker import Initializer, ParameterSpec
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Layout
    from numpy.typing import NDArray
    from paddle import nn
    from paddle.distributed.collective import Group


class LocalParameter(NamedTuple):
    """A part of canonical parameter `name`, whose whole shape is `shape`.

    turned: the canonical order is [out, in], Paddle's [in, out]. axis: the canonical dimension that is split over
    the tensor-parallel ranks, or None. stage_count: in how many pipeline stages the
    parameter lies.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    parameter: paddle.Tensor
    turned: bool
    axis: int | None
    stage_count: int

    def canonical(self, tensor: paddle.Tensor) -> NDArray[np.float32]:
        """Return a tensor of the parameter's shape as float32 array in canonical order."""
        array = tensor.detach().astype("float32").numpy()
        return np.ascontiguousarray(array.T) if self.turned else array


def local_parameters(
    model: nn.Layer, specs: Mapping[str, ParameterSpec], layout: Layout, tensor_rank: int
) -> list[LocalParameter]:
    """Return this rank's parameters, each once. specs: the worker's list of parameters, for their shapes."""
    pieces = [layer for layer in model.sublayers() if isinstance(layer, Piece)]
    pairs = [(piece.prefix + name, value) for piece in pieces for name, value in piece.named_parameters()]
    is_shared_by_stages = "head.weight" not in specs and layout.pipeline > 1
    ranks = layout.tensor, tensor_rank
    return [_locate(name, value, specs[name].shape, *ranks, is_shared_by_stages) for name, value in pairs]


def _locate(
    name: str, parameter: paddle.Tensor, shape: tuple[int, ...], ranks: int, rank: int, is_shared_by_stages: bool
) -> LocalParameter:
    turned = len(shape) == 2 and name not in ("embedding.weight", "position.weight")
    axis = None
    if getattr(parameter, "is_distributed", False):
        axis = 1 - parameter.split_axis if turned else parameter.split_axis
    whole = [slice(0, size) for size in shape]
    slices = tuple(
        _part(size, ranks, rank) if dimension == axis else whole[dimension] for dimension, size in enumerate(shape)
    )
    stage_count = 2 if is_shared_by_stages and name == "embedding.weight" else 1
    return LocalParameter(name, tuple(shape), slices, parameter, turned, axis, stage_count)


def _part(size: int, ranks: int, rank: int) -> slice:
    return slice(size // ranks * rank, size // ranks * (rank + 1))


def fill(parts: Sequence[LocalParameter], initializer: Initializer) -> None:
    """Write the initial values into this rank's parts, generating nothing else."""
    for part in parts:
        values = initializer.array(part.name, part.shape, part.slices)
        part.parameter.set_value(np.ascontiguousarray(values.T) if part.turned else values)


def local_arrays(parts: Sequence[LocalParameter]) -> Iterator[LocalArray]:
    """Yield (name, whole shape, slices, float32 values), read back from the model's own memory."""
    for part in parts:
        yield part.name, part.shape, part.slices, part.canonical(part.parameter)


def save(parts: Sequence[LocalParameter], folder: str, group: Group | None, is_writer: bool) -> None:
    """Gather each whole parameter and write it as <folder>/<name>.npy on the ranks that `is_writer`."""
    for part in parts:
        local = part.canonical(part.parameter)
        whole = local if part.axis is None else np.concatenate(_gather(local, group), axis=part.axis)
        if is_writer:
            np.save(Path(folder) / f"{part.name}.npy", whole)


def _gather(array: NDArray[np.float32], group: Group | None) -> list[NDArray[np.float32]]:
    tensors: list[paddle.Tensor] = []
    dist.all_gather(tensors, paddle.to_tensor(array), group=group)
    return [tensor.numpy() for tensor in tensors]
