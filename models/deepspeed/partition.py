"""The model's whole parameters and gradients, whatever part of them ZeRO keeps on this rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_set_full_fp32_param
from levelfield.worker import Initializer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import deepspeed
    from numpy.typing import NDArray


def whole_shape(parameter: torch.nn.Parameter) -> tuple[int, ...]:
    """Return the whole parameter's shape, which ZeRO 3 keeps beside the empty tensor that it leaves in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def fill(model: torch.nn.Module, initializer: Initializer) -> None:
    """Write the initial values, before the engine is made: all of them, or the part of each that ZeRO 3 keeps."""
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_tensor"):
            parameter.ds_tensor.data.copy_(flat_part(name, parameter, initializer))
        else:
            parameter.data.copy_(torch.from_numpy(initializer.array(name, whole_shape(parameter))))


def flat_part(name: str, parameter: torch.nn.Parameter, initializer: Initializer) -> torch.Tensor:
    """Return this rank's range of the flattened parameter, with zeros after its end.

    Only the rows that it touches are made.
    """
    shape, size = whole_shape(parameter), parameter.ds_tensor.numel()  # type: ignore[attr-defined]
    start = torch.distributed.get_rank() * size
    width = int(np.prod(shape[1:], dtype=int))
    stop = min(start + size, shape[0] * width)
    part = torch.zeros(size)
    if start < stop:
        first, last = start // width, -(-stop // width)
        rows = initializer.array(name, shape, (slice(first, last), *[None] * (len(shape) - 1)))
        part[: stop - start] = torch.from_numpy(rows.reshape(-1)[start - first * width : stop - first * width])
    return part


def fill_master_weights(engine: deepspeed.DeepSpeedEngine, initializer: Initializer) -> None:
    """Give the optimizer's float32 copies the digits that 16 bits have lost. After the engine is made."""
    link_master_weights(engine.optimizer)
    for name, parameter in engine.module.named_parameters():
        values = torch.from_numpy(initializer.array(name, whole_shape(parameter))).to(parameter.device)
        if hasattr(parameter, "master"):
            parameter.master.data.copy_(values)
        else:
            safe_set_full_fp32_param(parameter, values)


def link_master_weights(optimizer: deepspeed.DeepSpeedOptimizer) -> None:
    """Give each parameter its float32 copy as `master`.

    Without ZeRO the copies are lists beside the parameters' lists, which DeepSpeed's accessors do not know.
    """
    for parameters, copies in zip(
        getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False
    ):
        for parameter, copy in zip(parameters, copies, strict=True):
            parameter.master = copy


def whole_parameters(model: torch.nn.Module) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, float32 array) of every parameter, one at a time. All ranks must take them together."""
    for name, parameter in model.named_parameters():
        whole = safe_get_full_fp32_param(parameter)
        whole = getattr(parameter, "master", parameter) if whole is None else whole
        yield name, whole.detach().float().cpu().numpy()


def save(model: torch.nn.Module, folder: str, is_writer: bool) -> None:
    for name, whole in whole_parameters(model):
        if is_writer:
            np.save(Path(folder) / f"{name}.npy", whole)


def whole_gradients(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, gradient) of the global batch, between the last backward pass and the step; all ranks together."""
    for name, parameter in model.named_parameters():
        yield name, safe_get_full_grad(parameter)


def squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()  # type: ignore[no-any-return]


def exact_norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return one norm over all tensors.

    On a processor torch's norm in float32 is wrong by 3e-5 for a million elements.
    """
    norm_dtype = torch.float64 if tensors[0].device.type == "cpu" else None
    return torch.linalg.vector_norm(  # type: ignore[no-any-return]
        torch.stack(torch._foreach_norm(tensors, 2, norm_dtype)).double()
    )
