"""One step's activations by canonical name, for a comparison between frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from megatron.core.models.gpt.gpt_model import GPTModel
    from numpy.typing import NDArray
    from torch import nn


def observe(model: GPTModel, keep: Callable[[str, NDArray[np.float32]], None]) -> None:
    """Have `keep(name, array)` called with what the next micro-batch makes of the first one's modules, once each.

    model: the GPTModel of one process. Arrays: float32 [micro-batch, sequence, ...]; Megatron's are sequence first.
    """
    modules = {"embedding": model.embedding, "final_norm": model.decoder.final_layernorm, "logits": model.output_layer}
    modules.update({f"layers.{index}": layer for index, layer in enumerate(model.decoder.layers)})
    for name, module in modules.items():
        _hook_once(name, module, keep)


def _hook_once(name: str, module: nn.Module, keep: Callable[[str, NDArray[np.float32]], None]) -> None:
    def hook(_module: nn.Module, _inputs: tuple[Any, ...], output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        handle.remove()
        tensor = output[0] if isinstance(output, tuple) else output
        keep(name, tensor.detach().transpose(0, 1).float().cpu().numpy())

    handle = module.register_forward_hook(hook)
