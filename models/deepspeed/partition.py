"""The model's whole parameters and gradients, whatever part of them ZeRO keeps on this rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_set_full_fp32_param
from levelfield.worker import Initializer


def whole_shape(parameter):
    """ZeRO 3 leaves an empty tensor in a parameter's place and keeps its shape beside."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def fill(model, initializer: Initializer):
    """Write the initial values, before the engine is made: all of them, or the part of each that ZeRO 3 keeps."""
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_tensor"):
            parameter.ds_tensor.data.copy_(flat_part(name, parameter, initializer))
        else:
            parameter.data.copy_(torch.from_numpy(initializer.array(name, whole_shape(parameter))))


def flat_part(name, parameter, initializer: Initializer):
    """This rank's range of the flattened parameter, zeros after its end; only the rows that it touches are made."""
    shape, size = whole_shape(parameter), parameter.ds_tensor.numel()
    start = torch.distributed.get_rank() * size
    width = int(np.prod(shape[1:], dtype=int))
    stop = min(start + size, shape[0] * width)
    part = torch.zeros(size)
    if start < stop:
        first, last = start // width, -(-stop // width)
        rows = initializer.array(name, shape, (slice(first, last), *[None] * (len(shape) - 1)))
        part[: stop - start] = torch.from_numpy(rows.reshape(-1)[start - first * width : stop - first * width])
    return part


def fill_master_weights(engine, initializer: Initializer):
    """Give the optimizer's float32 copies the digits that 16 bits have lost. After the engine is made."""
    link_master_weights(engine.optimizer)
    for name, parameter in engine.module.named_parameters():
        values = torch.from_numpy(initializer.array(name, whole_shape(parameter))).to(parameter.device)
        if hasattr(parameter, "master"):
            parameter.master.data.copy_(values)
        else:
            safe_set_full_fp32_param(parameter, values)


def link_master_weights(optimizer):
    """Without ZeRO the copies are lists beside the parameters' lists, which DeepSpeed's accessors do not know."""
    for parameters, copies in zip(
        getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False
    ):
        for parameter, copy in zip(parameters, copies, strict=True):
            parameter.master = copy


def whole_parameters(model):
    """(name, float32 array) of every parameter, one at a time. All ranks must take them together."""
    for name, parameter in model.named_parameters():
        whole = safe_get_full_fp32_param(parameter)
        whole = getattr(parameter, "master", parameter) if whole is None else whole
        yield name, whole.detach().float().cpu().numpy()


def save(model, folder, writes):
    for name, whole in whole_parameters(model):
        if writes:
            np.save(Path(folder) / f"{name}.npy", whole)


def whole_gradients(model):
    """(name, gradient) of the global batch, between the last backward pass and the step; all ranks together."""
    for name, parameter in model.named_parameters():
        yield name, safe_get_full_grad(parameter)


def squared_norm(tensor):
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()


def exact_norm(tensors):
    """One norm over all tensors. On a processor torch's norm in float32 is wrong by 3e-5 for a million elements."""
    exact = torch.float64 if tensors[0].device.type == "cpu" else None
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2, exact)).double())
