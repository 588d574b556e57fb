"""The parts of the canonical parameters that this rank holds: filled, reported and saved under their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import oneflow as flow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from levelfield.worker import Initializer
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job, Layout
    from oneflow import nn


class LocalParameter(NamedTuple):
    """This rank's part of parameter `name`, whose whole shape is `shape`.

    local: a tensor of the part, in the parameter's own memory. replicas: the ranks that hold the same part.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    parameter: flow.Tensor
    local: flow.Tensor
    replicas: int


def local_parameters(model: nn.Module, job: Job, place: Coordinates) -> list[LocalParameter]:
    """Return this rank's parameters; other stages' lie elsewhere."""
    pairs = [(name, value) for name, value in model.named_parameters() if job.rank in value.placement.ranks]
    return [_locate(name, value, job.layout, place.tensor) for name, value in pairs]


def _locate(name: str, parameter: flow.Tensor, layout: Layout, rank: int) -> LocalParameter:
    local, shape = parameter.detach().to_local(), tuple(parameter.shape)
    slices = tuple(_part(whole, part, rank) for whole, part in zip(shape, local.shape, strict=True))
    replicas = layout.data * (layout.tensor if tuple(local.shape) == shape else 1)
    return LocalParameter(name, shape, slices, parameter, local, replicas)


def _part(whole: int, part: int, rank: int) -> slice:
    return slice(0, whole) if part == whole else slice(rank * part, (rank + 1) * part)


def fill(parts: Sequence[LocalParameter], initializer: Initializer) -> None:
    """Write the initial values into this rank's parts, generating nothing else."""
    for part in parts:
        part.local.copy_(flow.tensor(initializer.array(part.name, part.shape, part.slices)))


def local_arrays(parts: Sequence[LocalParameter]) -> Iterator[LocalArray]:
    """Yield (name, whole shape, slices, float32 values), read back from the model's own memory."""
    for part in parts:
        yield part.name, part.shape, part.slices, part.parameter.detach().to_local().numpy()


def save(model: nn.Module, folder: str, is_writer: bool) -> None:
    """Gather each whole parameter and write it as <folder>/<name>.npy on the rank that `is_writer`."""
    for name, parameter in model.named_parameters():
        whole = parameter.detach().numpy()
        if is_writer:
            np.save(Path(folder) / f"{name}.npy", whole)
