"""A step's tokens on their way to the device."""

import torch


def on_device(arrays, device):
    """The NumPy arrays as tensors on the device. The host waits for no copy: CUDA reads pinned memory by itself."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cuda":
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensor.to(device, non_blocking=True) for tensor in tensors]
