"""One micro-batch's activations and one step's gradients, kept whole for a comparison with another framework's."""

from __future__ import annotations

import contextlib

import torch


@contextlib.contextmanager
def kept_activations(model, capture):
    """While the context lasts, around one forward pass, keep what enters and leaves each block, and the logits."""

    def keep(name):
        return lambda _module, _inputs, output: keep_tensor(capture, name, output)

    def keep_embedding(_block, inputs: torch.Tensor):
        keep_tensor(capture, "embedding", inputs[0])

    def keep_logits(_norm, _inputs, output):
        keep_tensor(capture, "logits", model.scores(output))

    hooks = [next(iter(model.layers.values())).register_forward_pre_hook(keep_embedding)]
    hooks += [block.register_forward_hook(keep(f"layers.{index}")) for index, block in model.layers.items()]
    hooks += [model.final_norm.register_forward_hook(hook) for hook in (keep("final_norm"), keep_logits)]
    yield
    for hook in hooks:
        hook.remove()


def keep_gradients(capture, gradients, scale):
    """gradients: (canonical name, whole gradient of the loss times `scale`)."""
    for name, gradient in gradients:
        keep_tensor(capture, f"gradient.{name}", gradient / scale)


def keep_tensor(capture, name, tensor):
    capture.keep(name, tensor.detach().float().cpu().numpy())
