"""The kernel of attention's core that a program takes on a chip: the one that it states, or torch's own choice.

torch tries its kernels in the chip's order and takes the first that can do the work. What each cannot do is in torch
2.13's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
"""

from __future__ import annotations

from levelfield.predict.links import MachineRates
from levelfield.predict.setup import TrainingSetup
from levelfield.specs.architecture import Model
from levelfield.specs.constants import AttentionKernel, Pace

DROPOUT_PARTS = 16  # cuDNN's dropout is a multiple of 1/16
CUDNN_WIDTH, CUDNN_WIDTHS = 128, (192, 128)  # of query and value, backward pass included
FLASH_WIDTH = 256
FLASH: AttentionKernel = "flash2"  # of the package, and where torch's order on the chip is not known


def kernel_of(setup: TrainingSetup, machine: MachineRates, pace: Pace) -> AttentionKernel:
    """Return the kernel of a layout's attention."""
    if pace.attention != "sdpa":
        return pace.attention
    if setup.tuning.attention == "flash_attn" or not machine.sdpa:
        return FLASH
    return next((kernel for kernel in machine.sdpa if _can(kernel, setup)), "materialised")


def _can(kernel: AttentionKernel, setup: TrainingSetup) -> bool:
    widths = _head_widths(setup.model)
    if kernel == "cudnn":
        fits = widths == CUDNN_WIDTHS or (max(widths) <= CUDNN_WIDTH and not any(width % 8 for width in widths))
        return fits and (setup.model.attention_dropout * DROPOUT_PARTS).is_integer()
    if kernel == "flash2":
        is_masked = setup.model.sliding_window is not None or setup.layout.context > 1
        return not is_masked and len(set(widths)) == 1 and max(widths) <= FLASH_WIDTH
    return True


def _head_widths(model: Model) -> tuple[int, int]:
    """Return the widths of one head's query and value."""
    latent = model.latent_attention
    if latent is None:
        return model.head_size, model.head_size
    return latent.plain_size + latent.rotary_size, latent.value_size
