"""fp8 by transformer-engine, with its Float8CurrentScaling."""

from __future__ import annotations

import contextlib

import torch
from levelfield.worker.job import Job
from own_cudnn import load_own_cudnn
from step.fp8 import replace_each

load_own_cudnn()
with contextlib.redirect_stdout(None):
    import transformer_engine.pytorch as engine
    from transformer_engine.common.recipe import Float8CurrentScaling


def replace_linears(model, _job: Job):
    replace_each(model, lambda *shape, **options: _by_engine(engine.Linear(*shape, **options)))
    for block in model.layers.values():
        block.forward = _in_fp8(block.forward)


def _by_engine(made):
    made = made.float()
    made.forward = _in_half(made.forward)
    return made


def _in_half(forward):
    """Weights that FSDP2 does not gather are float32: transformer-engine takes such weights under autocast only, which
    must not reach the block's norms."""

    def run(x: torch.Tensor):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return forward(x)

    return run


def _in_fp8(forward):
    recipe = Float8CurrentScaling()

    def run(*inputs):
        with engine.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return forward(*inputs)

    return run
