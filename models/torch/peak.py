"""The best rate of matrix products that this machine reaches, for devices whose peak nobody publishes.

    peak.py --device cpu --dtype fp32,bf16 --threads 2 --seconds 2

prints one line of JSON: {"fp32": {"tflops": best, "median": of the best shape, "shape": [m, k, n], "repeats": n}}.
A product of [m, k] and [k, n] is 2 m k n operations. Shapes take turns, so that a slow moment hits none alone.
For fp32 on a processor "onednn_over_mkl" is added: the rate of a layer's products by oneDNN, over that by MKL.
"""

import argparse
import json
import statistics
import time

import onednn
import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = {
    "cpu": [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2048, 512, 2048), (2048, 768, 3072)],
    "accelerator": [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096), (8192, 4096, 16384)],
}
LAYERS = [(1024, 512, 512), (1024, 512, 2048), (1024, 2048, 512), (1024, 768, 3072)]  # tokens, inputs, outputs
LAYER_SHARE = 0.25  # of the seconds


def main():
    options = parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    names = options.dtype.split(",")
    print(json.dumps({name: measure(options.device, DTYPES[name], options.seconds) for name in names}))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", help="torch's name of the device")
    parser.add_argument("--dtype", default="fp32,bf16", help=f"comma-separated, of {', '.join(DTYPES)}")
    parser.add_argument("--threads", type=int, help="processor threads; torch's own choice without it")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each dtype")
    options = parser.parse_args()
    unknown = [name for name in options.dtype.split(",") if name not in DTYPES]
    if unknown:
        parser.error(f"--dtype: unknown {', '.join(unknown)}; known: {', '.join(DTYPES)}")
    return options


def measure(device, dtype, seconds):
    """The best rate over the shapes, in 10^12 operations a second, with the median and number of its repeats."""
    shapes = SHAPES["cpu" if device == "cpu" else "accelerator"]
    runs = {shape: product(device, dtype, shape) for shape in shapes}
    for run in runs.values():
        duration(device, run)  # the first call sets up kernels and memory
    rates = {shape: [] for shape in shapes}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rates[shapes[-1]]:
        for shape, run in runs.items():
            rates[shape].append(2 * shape[0] * shape[1] * shape[2] / duration(device, run) / 1e12)
    shape = max(rates, key=lambda key: max(rates[key]))
    best = rates[shape]
    found = {"tflops": max(best), "median": statistics.median(best), "shape": list(shape), "repeats": len(best)}
    is_chosen = device == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
    return {**found, **({"onednn_over_mkl": onednn_over_mkl(seconds * LAYER_SHARE)} if is_chosen else {})}


def onednn_over_mkl(seconds):
    """The best rate of oneDNN over that of MKL, for forward and input gradient of some layers. They take turns.

    Other programs slow single products down, so the best of each counts.
    """
    pairs = [pair for shape in LAYERS for pair in layer_products(*shape)]
    times = [([], []) for _ in pairs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0][0]) < 2:  # the first one sets up kernels and memory
        for pair, measured in zip(pairs, times, strict=True):
            for run, durations in zip(pair, measured, strict=True):
                durations.append(duration("cpu", run))
    by_mkl, by_onednn = (sum(min(measured[i][1:]) for measured in times) for i in (0, 1))
    return by_mkl / by_onednn


def layer_products(tokens, inputs, outputs):
    """(by MKL, by oneDNN) for a layer's forward product and for its input's gradient."""
    x, weight, gradient = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
    yield (lambda: x @ weight.t()), (lambda: onednn.product(x, weight))
    yield (lambda: gradient @ weight), (lambda: onednn.product(gradient, weight.t()))


def product(device, dtype, shape):
    rows, inner, columns = shape
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(columns, inner, device=device).to(dtype).t()
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    return lambda: torch.mm(left, right, out=out)


def duration(device, run):
    """Seconds of one product, on an accelerator as the mean of ten that are waited for together."""
    repeats = 1 if device == "cpu" else 10
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if device != "cpu":
        torch.get_device_module(device).synchronize()
    return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    main()
