"""The best rate of torch's matrix products, for devices whose peak nobody publishes: see worker/product_rates.py.

For fp32 on a processor both of torch's libraries multiply, as both take part in a training, and "onednn_over_mkl" is
added: the rate of a layer's products by oneDNN, over that by MKL.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import best_product_rate, probe_options
from model import onednn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Product = Callable[[], torch.Tensor]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYERS = [(1024, 512, 512), (1024, 512, 2048), (1024, 2048, 512), (1024, 768, 3072)]  # tokens, inputs, outputs
LAYER_SHARE = 0.25  # of the seconds


def main() -> None:
    options = probe_options(DTYPES)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(json.dumps({name: measure(options.device, DTYPES[name], options.seconds) for name in options.dtypes}))


def measure(device: str, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """Return the best rate of one dtype, and on a processor how the two libraries compare."""
    wait = None if device == "cpu" else lambda _: torch.get_device_module(device).synchronize()
    rate = best_product_rate(lambda *shape: ways(device, dtype, *shape), device, seconds, wait)
    return {**rate, **({"onednn_over_mkl": onednn_over_mkl(seconds * LAYER_SHARE)} if has_both(device, dtype) else {})}


def has_both(device: str, dtype: torch.dtype) -> bool:
    return device == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()


def ways(device: str, dtype: torch.dtype, rows: int, inner: int, columns: int) -> Iterator[Product]:
    """Yield the ways to multiply [rows, inner] and [inner, columns]: torch's own, and oneDNN's where it differs."""
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(columns, inner, device=device).to(dtype)
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    yield lambda: torch.mm(left, right.t(), out=out)
    if has_both(device, dtype):
        yield lambda: onednn.product(left, right)


def onednn_over_mkl(seconds: float) -> float:
    """Return the best rate of oneDNN over that of MKL, for forward and input gradient of some layers. They take turns.

    Other programs slow single products down, so the best of each counts.
    """
    pairs = [pair for shape in LAYERS for pair in layer_products(*shape)]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in pairs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0][0]) < 2:  # the first one sets up kernels and memory
        for pair, measured in zip(pairs, times, strict=True):
            for run, durations in zip(pair, measured, strict=True):
                durations.append(duration(run))
    mkl_seconds, onednn_seconds = (sum(min(measured[i][1:]) for measured in times) for i in (0, 1))
    return mkl_seconds / onednn_seconds


def layer_products(tokens: int, inputs: int, outputs: int) -> Iterator[tuple[Product, Product]]:
    """Yield (by MKL, by oneDNN) for a layer's forward product and for its input's gradient."""
    x, weight, gradient = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
    yield (lambda: x @ weight.t()), (lambda: onednn.product(x, weight))
    yield (lambda: gradient @ weight), (lambda: onednn.product(gradient, weight.t()))


def duration(run: Product) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
