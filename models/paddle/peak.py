"""The best rate of Paddle's matrix products, for devices whose peak nobody publishes: see worker/product_rates.py."""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from levelfield.worker import best_product_rate, probe_options
from processor import processor_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def main() -> None:
    options = probe_options(DTYPES)
    os.environ.update(processor_environment(), OMP_NUM_THREADS=str(options.threads or 1))
    warnings.filterwarnings("ignore", "No ccache found")
    import paddle  # after the variables that its mathematical library reads

    paddle.set_device(options.device)
    print(json.dumps({name: measure(paddle, options.device, DTYPES[name], options.seconds) for name in options.dtypes}))


def measure(paddle: Any, device: str, dtype: str, seconds: float) -> dict[str, Any]:
    def ways(rows: int, inner: int, columns: int) -> Iterator[Callable[[], Any]]:
        left, right = (paddle.randn(size).astype(dtype) for size in ([rows, inner], [inner, columns]))
        yield lambda: paddle.matmul(left, right)

    wait = None if device == "cpu" else lambda _: paddle.device.synchronize()
    return best_product_rate(ways, device, seconds, wait)


if __name__ == "__main__":
    main()
