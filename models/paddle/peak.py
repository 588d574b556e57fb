"""The best rate of Paddle's matrix products, for devices whose peak nobody publishes: see worker/product_rates.py."""

import json
import os
import warnings

from levelfield.worker import best_product_rate, probe_options
from processor import processor_environment

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def main():
    options = probe_options(DTYPES)
    os.environ.update(processor_environment(), OMP_NUM_THREADS=str(options.threads or 1))
    warnings.filterwarnings("ignore", "No ccache found")
    import paddle  # after the variables that its mathematical library reads

    paddle.set_device(options.device)
    print(json.dumps({name: measure(paddle, options.device, DTYPES[name], options.seconds) for name in options.dtypes}))


def measure(paddle, device, dtype, seconds):
    def ways(rows, inner, columns):
        left, right = (paddle.randn(size).astype(dtype) for size in ([rows, inner], [inner, columns]))
        yield lambda: paddle.matmul(left, right)

    wait = None if device == "cpu" else lambda _: paddle.device.synchronize()
    return best_product_rate(ways, device, seconds, wait)


if __name__ == "__main__":
    main()
