"""A step's tokens on their way to the device, and its figures on their way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


def on_device(arrays: Iterable[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Return the arrays as tensors on the device. The host waits for no copy: CUDA reads pinned memory by itself."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cuda":
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensor.to(device, non_blocking=True) for tensor in tensors]


def numbers_at(tensor: torch.Tensor | Any, places: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor at `places` of its memory, in a tensor of their own."""
    return tensor.detach().reshape(-1)[places]


def on_host(tensor: torch.Tensor) -> NDArray[np.float32]:
    """Return a copy in float32: numpy's view of a parameter's memory would keep FSDP2 from freeing it."""
    return tensor.detach().to("cpu", torch.float32, copy=True).numpy()


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
