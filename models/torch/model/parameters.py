"""The parts of the canonical parameters that this rank holds: filled, reported and saved under their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from levelfield.worker import Initializer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from parallelism.model_chunks import ModelChunks


class LocalParameter(NamedTuple):
    """A part of parameter `name`, whose whole shape is `shape`; `local` is its memory on this rank."""

    name: str
    shape: tuple  # type: ignore[type-arg]  # of int
    slices: tuple  # type: ignore[type-arg]  # of slice
    local: torch.Tensor


def local_parameters(model: torch.nn.Module | ModelChunks) -> list[LocalParameter]:
    """Return what this rank holds of each parameter. Under FSDP only between steps, when parameters are sharded."""
    return [_local_parameter(name, parameter.detach()) for name, parameter in model.named_parameters()]


def fill(model: torch.nn.Module | ModelChunks, initializer: Initializer) -> None:
    """Write the initial values into this rank's parts, generating nothing else."""
    for part in local_parameters(model):
        values = initializer.array(part.name, part.shape, part.slices)
        part.local.copy_(torch.from_numpy(values))


def local_arrays(
    model: torch.nn.Module | ModelChunks,
) -> Iterator[tuple[str, tuple[int, ...], tuple[slice, ...], NDArray[np.float32]]]:
    """Yield (name, whole shape, slices, float32 values), read back from the model's own memory."""
    for part in local_parameters(model):
        if part.local.numel():
            yield part.name, part.shape, part.slices, part.local.float().cpu().numpy()


def save(model: torch.nn.Module | ModelChunks, folder: str, is_writer: bool) -> None:
    """Gather each whole parameter and write it as <folder>/<name>.npy on the ranks that `is_writer`."""
    for name, parameter in model.named_parameters():
        whole = parameter.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        if is_writer:
            np.save(Path(folder) / f"{name}.npy", whole.float().cpu().numpy())


def local_memory(tensor: torch.Tensor | Any) -> torch.Tensor:
    """Return this rank's part of a tensor, as plain memory: torchao wraps the weights that FSDP2 gathers in 8 bits."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return getattr(local, "_tensor", local)


def _local_parameter(name: str, parameter: torch.Tensor) -> LocalParameter:
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return LocalParameter(name, shape, tuple(slice(0, size) for size in shape), parameter)
    sizes, offsets = compute_local_shape_and_global_offset(shape, parameter.device_mesh, parameter.placements)
    slices = tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
    return LocalParameter(name, shape, slices, local_memory(parameter))
