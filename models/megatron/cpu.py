"""What Megatron-Core lacks to run on a processor: it knows CUDA only. On any other device this does nothing.

No file of the package is changed. Megatron asks torch.cuda in five ways, and each gets a processor's answer:
which device is current, random numbers' states, tensors made or moved by the word "cuda", the names of tensor types,
which it compares with "torch.cuda.FloatTensor" and its like, and streams, on which a mixture copies its counts. One
more answer is its own and inexact: the gradient's norm.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.models.common.embeddings import rotary_pos_embedding
from megatron.core.optimizer import clip_grads
from megatron.core.tensor_parallel import random
from megatron.core.transformer.moe import token_dispatcher
from sequence import Sequence
from torch.overrides import TorchFunctionMode
from uneven_parts import exchange_uneven_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import torch.distributed as dist
    from numpy.typing import NDArray


def stand_in_for_cuda(device: torch.device) -> None:
    """Let Megatron-Core 0.16 run on `device` where that is the processor, until the process ends."""
    if device.type != "cpu":
        return
    cuda: Any = torch.cuda
    cuda.current_device = lambda: device
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.Stream = cuda.current_stream = NoStream
    cuda.stream = contextlib.nullcontext
    # its own moves tensors of other devices only, and leaves a processor's where numbers are needed
    token_dispatcher.maybe_move_tensor_to_cpu = stay_on_processor
    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = context_positions  # its own needs memory that CUDA pins
    clip_grads.l2_norm_impl = exact_norm
    exchange_uneven_parts()
    # it warns when the processor's random numbers move inside the device's, which are the same here
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
    OnProcessor().__enter__()


def exact_norm(
    _chunk: int, _overflow: torch.Tensor, lists: list[list[torch.Tensor]], _per_tensor: bool
) -> tuple[torch.Tensor, None]:
    """Return the norm of all tensors together. Megatron's own is torch's in float32, which a processor adds up in few
    lanes: wrong by 2e-5 for a million elements."""
    norms = torch._foreach_norm(lists[0], 2, torch.float64)
    return torch.linalg.vector_norm(torch.stack(norms)).float().reshape(1), None


def stay_on_processor(
    tensor: torch.Tensor, as_numpy: bool = False, record_stream: bool = False
) -> torch.Tensor | NDArray[np.generic]:
    """Return the tensor, which is on the processor already, as Megatron's function in this place does."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def context_positions(embedding: torch.Tensor, _dimension: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Return this context-parallel rank's part of rotary embeddings [sequence, ...]."""
    return embedding[Sequence(len(embedding), group.size(), group.rank(), embedding.device).places]


class NoStream:
    """A stream, and its events, where every call has ended when it returns."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoStream)

    __hash__ = None  # type: ignore[assignment]  # all are equal, and none is a key

    def record_event(self) -> NoStream:
        return self

    def synchronize(self) -> None:
        pass


class OnProcessor(TorchFunctionMode):
    """Every call into torch, with "cuda" read as the processor."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        _types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        if function is torch.Tensor.cuda:
            return args[0]
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result
