"""fp8 by transformer-engine (Micikevicius et al., 2022): the blocks' products in 8 bits, all else as in bf16.

For NVIDIA devices of compute capability 8.9 or newer; a processor computes the same numbers slowly, for references.
Each tensor's scale is that of its largest value now. With transformer-engine's default, the scale of steps before and 1
in the first, an H200 trained llama3_8b's width with gradients of exactly 0 in all blocks: those of 65,536 tokens are
below 2^-16, the least value of E5M2 (docs/verified/chip.md).
"""

import contextlib

import torch
from levelfield.worker import Unsupported
from own_cudnn import load_own_cudnn
from torch import nn


def check_fp8(job):
    """Raises Unsupported for fp8 on another device than cuda and cpu, with tensor parallelism, and on cuda without the
    package."""
    if job.training.precision != "fp8":
        return
    if job.device not in ("cuda", "cpu"):
        raise Unsupported(f"precision fp8 needs an NVIDIA device and transformer-engine; this is '{job.device}'")
    if job.layout.tensor > 1:
        raise Unsupported(f"precision fp8 with tensor parallel {job.layout.tensor}: not written; use data or pipeline")
    if job.device == "cuda":
        _engine()


def use_fp8(model, device):
    """Replace every Linear of the blocks, on the meta device, by one in fp8, of the same names and shapes."""
    if device.type == "cpu":
        from step.fp8_rounded import RoundedLinear

        _replace(model, RoundedLinear)
        return
    engine = _engine()
    _replace(model, lambda *shape, **options: _by_engine(engine.Linear(*shape, **options)))
    for block in model.layers.values():
        block.forward = _in_fp8(engine, block.forward)


def _replace(model, kind):
    for block in model.layers.values():
        for parent in (block.attention, block.mlp):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, nn.Linear):
                    shape = layer.in_features, layer.out_features
                    setattr(parent, name, kind(*shape, bias=layer.bias is not None, device="meta"))


def _by_engine(made):
    made = made.float()
    made.forward = _in_half(made.forward)
    return made


def _in_half(forward):
    """Weights that FSDP2 does not gather are float32: transformer-engine takes such weights under autocast only, which
    must not reach the block's norms."""

    def run(x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return forward(x)

    return run


def _in_fp8(engine, forward):
    from transformer_engine.common.recipe import Float8CurrentScaling

    recipe = Float8CurrentScaling()

    def run(*inputs):
        with engine.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return forward(*inputs)

    return run


def _engine():
    try:
        load_own_cudnn()
        with contextlib.redirect_stdout(None):
            import transformer_engine.pytorch as engine
    except (ImportError, OSError) as error:
        raise Unsupported(f"precision fp8: transformer-engine cannot be imported ({error})") from None
    return engine
