"""fp8 by torchao's tensorwise recipe: E4M3 forward and E5M2 for gradients, each scale from the tensor as it is now.

Weights are rounded from their float32 values. FSDP2 gathers them in 8 bits, with a scale that its ranks agree on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from levelfield.worker.job import Job
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    float8_linear,
    precompute_float8_dynamic_scale_for_fsdp,
)

if TYPE_CHECKING:
    from model.decoder import Decoder
    from torch import nn

MAX_SHAPES = 64  # that one function is compiled for; beyond torch's own 8 it would run uncompiled


def replace_linears(model: Decoder, job: Job) -> None:
    config = Float8LinearConfig(enable_fsdp_float8_all_gather=job.layout.sharding_degree > 1)
    for block in model.layers.values():
        convert_to_float8_training(block, config=config)
    if not job.tuning.compile:
        compile_casts(model, job.tuning.recompute)


def compile_casts(model: nn.Module, recompute: str) -> None:
    """Compile each layer, or under selective recomputation, which has to see the products, each cast in it.

    A cast is ten kernels that each read the whole tensor, many with float32 results; compiled it is three.
    """
    torch._dynamo.config.recompile_limit = MAX_SHAPES
    if recompute == "selective":
        cast = torch.compile(float8_linear.hp_tensor_to_float8_dynamic, dynamic=False)
        float8_linear.hp_tensor_to_float8_dynamic = cast
        return
    for layer in model.modules():
        if isinstance(layer, float8_linear.Float8Linear):
            layer.forward = torch.compile(layer.forward, dynamic=False)


def renew_scales(model: nn.Module) -> None:
    """Renew the scales of all weights that FSDP2 gathers, by one exchange. Otherwise each weight has its own."""
    precompute_float8_dynamic_scale_for_fsdp(model)
