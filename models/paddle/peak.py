"""The best rate of matrix products that Paddle reaches on this machine, for devices whose peak nobody publishes.

    peak.py --device cpu --dtype fp32 --threads 2 --seconds 2

prints one line of JSON: {"fp32": {"tflops": best, "median": of the best shape, "shape": [m, k, n], "repeats": n}}.
A product of [m, k] and [k, n] is 2 m k n operations. Shapes take turns, so that a slow moment hits none alone.
"""

import argparse
import json
import os
import statistics
import time
import warnings

from processor import processor_environment

SHAPES = {
    "cpu": [(512, 512, 512), (1024, 1024, 1024), (2048, 512, 2048), (2048, 768, 3072)],
    "gpu": [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 16384)],
}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def main():
    options = parse_arguments()
    os.environ.update(processor_environment(), OMP_NUM_THREADS=str(options.threads))
    warnings.filterwarnings("ignore", "No ccache found")
    import paddle  # after the variables that its mathematical library reads

    paddle.set_device(options.device)
    names = options.dtype.split(",")
    print(json.dumps({name: measure(paddle, options.device, DTYPES[name], options.seconds) for name in names}))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=sorted(SHAPES))
    parser.add_argument("--dtype", default="fp32", help=f"comma-separated, of {', '.join(DTYPES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each dtype")
    return parser.parse_args()


def measure(paddle, device, dtype, seconds):
    """The best rate over the shapes, in 10^12 operations a second."""
    factors = {(m, k, n): (random(paddle, [m, k], dtype), random(paddle, [k, n], dtype)) for m, k, n in SHAPES[device]}
    rates = {shape: [] for shape in factors}
    for pair in factors.values():
        duration(paddle, device, pair)  # the first call sets up kernels and memory
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for (m, k, n), pair in factors.items():
            rates[m, k, n].append(2 * m * k * n / duration(paddle, device, pair) / 1e12)
    shape = max(rates, key=lambda key: max(rates[key]))
    best = rates[shape]
    return {"tflops": max(best), "median": statistics.median(best), "shape": list(shape), "repeats": len(best)}


def random(paddle, shape, dtype):
    return paddle.randn(shape).astype(dtype)


def duration(paddle, device, pair):
    """Seconds of one product, on an accelerator as the mean of ten that are waited for together."""
    repeats = 1 if device == "cpu" else 10
    start = time.perf_counter()
    for _ in range(repeats):
        paddle.matmul(*pair)
    if device != "cpu":
        paddle.device.synchronize()
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main()
