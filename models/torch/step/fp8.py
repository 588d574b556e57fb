"""fp8 (Micikevicius et al., 2022): the blocks' products in 8 bits, all else as in bf16.

On NVIDIA devices of compute capability 8.9 or newer by transformer-engine, or where that cannot be imported by torchao.
A processor computes the same numbers slowly, for references.
Each tensor's scale is that of its largest value now. With transformer-engine's default, the scale of steps before and 1
in the first, an H200 trained llama3_8b's width with gradients of exactly 0 in all blocks: those of 65,536 tokens are
below 2^-16, the least value of E5M2 (docs/verified/chip.md).
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from levelfield.worker import Unsupported
from levelfield.worker.job import Job
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from model.decoder import Decoder

LIBRARIES = {"cuda": ("transformer_engine", "torchao"), "cpu": ("rounded",)}  # the first that can be imported


def check_fp8(job: Job) -> None:
    """Check that this training can use fp8.

    Raises Unsupported for another device than cuda and cpu, for tensor parallelism, and for cuda without a library.
    """
    if job.training.precision != "fp8":
        return
    if job.layout.tensor > 1:
        raise Unsupported(f"precision fp8 with tensor parallel {job.layout.tensor}: not written; use data or pipeline")
    fp8_library(job.device)


@functools.cache
def fp8_library(device: str) -> tuple[str, ModuleType]:
    """Return (name, module) of what computes in fp8 on such a device. Raises Unsupported where nothing does."""
    if device not in LIBRARIES:
        raise Unsupported(f"precision fp8 needs an NVIDIA device and transformer-engine or torchao; this is '{device}'")
    faults = []
    for name in LIBRARIES[device]:
        try:
            return name, importlib.import_module(f"step.fp8_{name}")
        except (ImportError, OSError) as error:
            faults.append(str(error))
    raise Unsupported(
        f"precision fp8: neither transformer-engine nor torchao can be imported ({'; '.join(faults)}); install torchao"
    )


def use_fp8(model: Decoder, job: Job) -> None:
    """Replace every Linear of the blocks, on the meta device, by one in fp8, of the same names and shapes."""
    _name, library = fp8_library(job.device)
    library.replace_linears(model, job)


def renewal_of_scales(job: Job) -> Callable[[nn.Module], None] | None:
    """Return what to call with the model before each step where FSDP2 gathers its weights in 8 bits; None elsewhere."""
    _name, library = fp8_library(job.device)
    return getattr(library, "renew_scales", None) if job.layout.sharding_degree > 1 else None


def replace_each(model: Decoder, kind: Callable[..., nn.Module]) -> None:
    """Replace every Linear of the blocks by `kind(in, out, bias, device)`."""
    block: Any
    for block in model.layers.values():
        for parent in (block.attention, block.mlp):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.Linear):
                    shape = layer.in_features, layer.out_features
                    setattr(parent, name, kind(*shape, bias=layer.bias is not None, device="meta"))
