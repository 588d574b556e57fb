"""Which kernels of ../fused this process computes by. None on a processor: then nothing of that folder is imported.

Each stands for a few of torch's operations, which compute the same where it is not chosen:

| kernel | in place of | not chosen for |
|---|---|---|
| cross_entropy | loss and gradient of logits (head_on_accelerators.py) | |
| rotary | the rotation of queries and keys (attention.py) | learned positions, or a rotated part of heads |
| swiglu | the product of a gated MLP or expert (layers.py) | an MLP without gate |
| add_norm | a residual sum and the norm behind it (decoder.py) | other places of norms, or divided sequences |

With --compile only cross_entropy is chosen: torch.compile fuses the others' operations itself, and cannot see into a
kernel. They take every precision, and tensor-parallel ranks give them local tensors. Not yet run on a chip.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import torch
from levelfield.worker.architecture import GATED, part
from levelfield.worker.job import Job

MIN_CAPABILITY = (8, 0)  # what Triton has code for
MAX_COLUMNS = 2**14  # of a norm's row, which one program holds in registers

_chosen: dict[str, ModuleType] = {}


def choose(job: Job, device: torch.device) -> list[str]:
    """Take the kernels for the training `job` on `device` from now on. Returns their names."""
    _chosen.clear()
    if has_triton(device):
        _chosen.update({name: importlib.import_module(f"fused.{name}") for name in suitable_kernels(job)})
    return list(_chosen)


def chosen(name: str) -> ModuleType | None:
    """Return the module of fused/ that this process computes by; None: torch's operations."""
    return _chosen.get(name)


def has_triton(device: torch.device) -> bool:
    """Return whether Triton is here, and compiles for the device: NVIDIA's, whose build of torch brings it."""
    if device.type != "cuda" or torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY


def suitable_kernels(job: Job) -> list[str]:
    """Return the names of the kernels that fit the job."""
    model = job.model
    fits = {
        "rotary": model.positions == "rope" and part(model, "rotary_dim") is None,
        "swiglu": model.activation in GATED,
        "add_norm": part(model, "norm_place") == "before"
        and part(model, "parallel_residual") is None
        and part(model, "norm_bias")  # it takes a norm without bias for RMSNorm
        and not job.layout.sequence_parallel
        and model.hidden_size <= MAX_COLUMNS,
    }
    return ["cross_entropy"] + ([] if job.tuning.compile else [name for name, fit in fits.items() if fit])
