"""The best rate of OneFlow's matrix products, for devices whose peak nobody publishes: see worker/product_rates.py."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from levelfield.worker import best_product_rate, probe_options
from processor import choose_products

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"fp32": "float32", "fp16": "float16"}


def main() -> None:
    options = probe_options(DTYPES)
    choose_products()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import oneflow  # after the variables that its mathematical library reads

    dtypes = {name: getattr(oneflow, DTYPES[name]) for name in options.dtypes}
    print(json.dumps({name: measure(oneflow, options.device, dtypes[name], options.seconds) for name in dtypes}))


def measure(flow: Any, device: str, dtype: Any, seconds: float) -> dict[str, Any]:
    def ways(rows: int, inner: int, columns: int) -> Iterator[Callable[[], Any]]:
        left, right = (flow.randn(*size).to(device).to(dtype) for size in ((rows, inner), (inner, columns)))
        yield lambda: flow.matmul(left, right)

    # an operation is computed after it has returned: one element of the result waits for all before it
    return best_product_rate(ways, device, seconds, lambda result: result[0, 0].numpy())


if __name__ == "__main__":
    main()
