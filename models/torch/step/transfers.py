"""A step's tokens on their way to the device, and its figures on their way back."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


def on_device(arrays: Iterable[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays as tensors on the device. The host waits for no copy: CUDA reads pinned memory by itself."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cuda":
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensor.to(device, non_blocking=True) for tensor in tensors]


def indices_on_device(lists: Sequence[Sequence[int]], device: torch.device) -> Sequence[torch.Tensor]:
    """Return each list as a tensor on the device, by one copy."""
    (indices,) = on_device([np.array([index for places in lists for index in places], np.int64)], device)
    parts: Sequence[torch.Tensor] = indices.split([len(places) for places in lists])
    return parts


def numbers_at(tensor: torch.Tensor | Any, places: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor at `places` of its memory, in a tensor of their own."""
    return tensor.detach().reshape(-1)[places]


def slices_at(tensor: torch.Tensor, places: Sequence[int], dim: int = 0) -> torch.Tensor:
    """Return the slices of a tensor at `places` of `dim`. No index goes to the device, so the host waits for none."""
    if not places:
        return tensor.narrow(dim, 0, 0).clone()  # a view would keep all of it
    return torch.stack([tensor.select(dim, place) for place in places], dim)


class PinnedMemory:
    """Parts of a few large blocks that CUDA writes to by itself: to ask it for each small one would take longer."""

    BLOCK_BYTES = 2**22
    ALIGNMENT = 16  # bytes

    def __init__(self) -> None:
        self.block = torch.empty(0, dtype=torch.uint8)
        self.used_bytes = 0  # of the block

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        size = like.numel() * like.element_size()
        if self.used_bytes + size > len(self.block):
            self.block = torch.empty(max(size, self.BLOCK_BYTES), dtype=torch.uint8, pin_memory=True)
            self.used_bytes = 0
        part = self.block[self.used_bytes : self.used_bytes + size]
        self.used_bytes += -(-size // self.ALIGNMENT) * self.ALIGNMENT
        return part.view(like.dtype).view(like.shape)


_pinned = PinnedMemory()


class Copied:
    """A copy of some numbers for levelfield's SpotCheck. With CUDA no step waits until it is on the host.

    Elsewhere it stays on its device until then. A view of a parameter's memory would keep FSDP2 from freeing it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.is_on_its_way = tensor.device.type == "cuda"
        tensor = tensor.detach()
        self.copy = _pinned.empty(tensor).copy_(tensor, non_blocking=True) if self.is_on_its_way else tensor.clone()

    def numbers(self) -> NDArray[Any]:
        """Wait for the numbers and return them: float32, or integers."""
        if self.is_on_its_way:
            torch.cuda.synchronize()
        copy = self.copy.cpu()
        copy = copy.float() if copy.is_floating_point() else copy
        numbers: NDArray[Any] = copy.numpy()
        return numbers


class CopiedPart(NamedTuple):
    """One of the tensors that `copied_together` copied."""

    whole: Copied
    start: int  # of this tensor's numbers in `whole`
    shape: torch.Size

    def numbers(self) -> NDArray[Any]:
        return self.whole.numbers()[self.start : self.start + self.shape.numel()].reshape(self.shape)


def copied_together(tensors: Sequence[torch.Tensor]) -> Sequence[CopiedPart]:
    """Return copies of small tensors, at least one, by one transfer."""
    whole = Copied(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    ends = accumulate(tensor.numel() for tensor in tensors)
    return [CopiedPart(whole, end - x.numel(), x.shape) for end, x in zip(ends, tensors, strict=True)]


class FiguresOnTheirWay:
    """A few numbers of the device, copied behind all that was launched before; the host waits for no more than that."""

    def __init__(self, figures: torch.Tensor) -> None:
        self.arrival: torch.cuda.Event | None
        self.figures, self.arrival = figures, None
        if figures.device.type == "cuda":
            self.figures = torch.empty_like(figures, device="cpu", pin_memory=True).copy_(figures, non_blocking=True)
            self.arrival = torch.cuda.Event()
            self.arrival.record()

    def values(self) -> list[float]:
        """Wait for the numbers and return them."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.figures.tolist()
