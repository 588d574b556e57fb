"""One micro-batch's activations and one step's gradients, kept whole for a comparison with another framework's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from levelfield.worker import Capture
    from model.decoder import Decoder
    from torch import nn


@contextlib.contextmanager
def capture_activations(model: Decoder, capture: Capture) -> Iterator[None]:
    """Keep what enters and leaves each block, and the logits, of the one forward pass for which the context lasts."""

    def capture_as(name: str) -> Callable[[nn.Module, object, torch.Tensor], None]:
        return lambda _module, _inputs, output: capture_tensor(capture, name, output)

    def capture_embedding(_block: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        capture_tensor(capture, "embedding", inputs[0])

    def capture_logits(_norm: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        capture_tensor(capture, "logits", model.scores(output))

    hooks = [next(iter(model.layers.values())).register_forward_pre_hook(capture_embedding)]
    hooks += [block.register_forward_hook(capture_as(f"layers.{index}")) for index, block in model.layers.items()]
    hooks += [model.final_norm.register_forward_hook(hook) for hook in (capture_as("final_norm"), capture_logits)]
    yield
    for hook in hooks:
        hook.remove()


def capture_gradients(capture: Capture, gradients: Iterable[tuple[str, torch.Tensor]], scale: float) -> None:
    """Keep the gradients of the loss. gradients: (canonical name, whole gradient of the loss times `scale`)."""
    for name, gradient in gradients:
        capture_tensor(capture, f"gradient.{name}", gradient / scale)


def capture_tensor(capture: Capture, name: str, tensor: torch.Tensor) -> None:
    capture.keep(name, tensor.detach().float().cpu().numpy())
