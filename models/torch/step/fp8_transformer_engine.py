"""fp8 by transformer-engine, with its Float8CurrentScaling."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.job import Job
from own_cudnn import load_own_cudnn
from step.fp8 import replace_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from model.decoder import Decoder
    from torch import nn

load_own_cudnn()
with contextlib.redirect_stdout(None):
    import transformer_engine.pytorch as engine
    from transformer_engine.common.recipe import Float8CurrentScaling


def replace_linears(model: Decoder, _job: Job) -> None:
    replace_each(model, lambda *shape, **options: _wrap_engine_layer(engine.Linear(*shape, **options)))
    for block in model.layers.values():
        block.forward = _fp8_forward(block.forward)


def _wrap_engine_layer(layer: nn.Module) -> nn.Module:
    layer = layer.float()
    layer.forward = _autocast_forward(layer.forward)
    return layer


def _autocast_forward(forward: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
    """Return the forward pass of a layer under autocast, which must not reach the block's norms.

    Weights that FSDP2 does not gather are float32, and transformer-engine takes such weights under autocast only.
    """

    def run(x: torch.Tensor) -> Any:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return forward(x)

    return run


def _fp8_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    recipe = Float8CurrentScaling()

    def run(*inputs: Any) -> Any:
        with engine.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return forward(*inputs)

    return run
