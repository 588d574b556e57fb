"""Tensors between interleaved stages, kept until they have been sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.pipeline_parallel import p2p_communication

if TYPE_CHECKING:
    import torch


def keep_sent_memory() -> None:
    """Have every send that goes on while its stage computes hold its memory, until the process ends.

    Megatron frees a stage's output as soon as its sending has begun, by giving the tensor other memory. A send holds
    the tensor, but no longer the memory that it still reads, which the next values are written to: the next stage then
    trains on these, or on what is no number. Here a send gets a tensor of its own over the same memory.
    """
    start = p2p_communication._p2p_ops

    def start_with_alias(
        *, tensor_send_prev: torch.Tensor | None, tensor_send_next: torch.Tensor | None, **other_options: Any
    ) -> Any:
        sent = {"tensor_send_prev": _alias(tensor_send_prev), "tensor_send_next": _alias(tensor_send_next)}
        return start(**sent, **other_options)

    p2p_communication._p2p_ops = start_with_alias


def _alias(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()
