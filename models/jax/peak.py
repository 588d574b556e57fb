"""The best rate of JAX's matrix products, for devices whose peak nobody publishes: see worker/product_rates.py."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from levelfield.worker import best_product_rate, probe_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    options = probe_options(DTYPES)
    if options.threads:
        os.environ["NPROC"] = str(options.threads)  # XLA's only limit on a processor
    import jax  # after the variable that it reads when it starts

    print(json.dumps({name: measure(jax, options.device, DTYPES[name], options.seconds) for name in options.dtypes}))


def measure(jax: Any, device: str, dtype: str, seconds: float) -> dict[str, Any]:
    multiply, place = jax.jit(jax.numpy.matmul), jax.devices(device)[0]

    def ways(rows: int, inner: int, columns: int) -> Iterator[Callable[[], Any]]:
        sizes = ((rows, inner), (inner, columns))
        left, right = (jax.device_put(jax.random.normal(jax.random.key(0), size, dtype), place) for size in sizes)
        yield lambda: multiply(left, right)

    return best_product_rate(ways, device, seconds, jax.block_until_ready)


if __name__ == "__main__":
    main()
