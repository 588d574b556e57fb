"""The parts of the canonical parameters that this rank holds: filled, reported and saved under their names."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import oneflow as flow


class Held(NamedTuple):
    """This rank's part of parameter `name`, whose whole shape is `shape`.

    local: a tensor of the part, in the parameter's own memory. replicas: the ranks that hold the same part.
    """

    name: str
    shape: tuple[int, ...]
    slices: tuple[slice, ...]
    parameter: Any
    local: Any
    replicas: int


def held_parts(model, job, place):
    """What this rank holds; other stages' parameters lie elsewhere."""
    here = [(name, value) for name, value in model.named_parameters() if job.rank in value.placement.ranks]
    return [_held(name, value, job.layout, place.tensor) for name, value in here]


def _held(name, parameter, layout, rank):
    local, shape = parameter.detach().to_local(), tuple(parameter.shape)
    slices = tuple(_part(whole, part, rank) for whole, part in zip(shape, local.shape, strict=True))
    replicas = layout.data * (layout.tensor if tuple(local.shape) == shape else 1)
    return Held(name, shape, slices, parameter, local, replicas)


def _part(whole, part, rank):
    return slice(0, whole) if part == whole else slice(rank * part, (rank + 1) * part)


def fill(parts, initializer):
    """Write the initial values into this rank's parts, generating nothing else."""
    for part in parts:
        part.local.copy_(flow.tensor(initializer.array(part.name, part.shape, part.slices)))


def as_arrays(parts):
    """(name, whole shape, slices, float32 values), read back from the model's own memory."""
    for part in parts:
        yield part.name, part.shape, part.slices, part.parameter.detach().to_local().numpy()


def save(model, folder, writes):
    """Gather each whole parameter and write it as <folder>/<name>.npy on the rank that `writes`."""
    for name, parameter in model.named_parameters():
        whole = parameter.detach().numpy()
        if writes:
            np.save(Path(folder) / f"{name}.npy", whole)
