"""The best rate of matrix products: what the peak probe of a framework measures.

    peak.py --device cpu --dtype fp32,bf16 --threads 2 --seconds 2

prints one line of JSON: {"fp32": {"tflops": best, "median": of the best shape, "shape": [m, k, n], "repeats": n}}.
A product of [m, k] and [k, n] is 2 m k n operations. The seconds are for each dtype.
"""

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

Shape = Tuple[int, int, int]  # m, k, n
Product = Callable[[], Any]

ON_PROCESSOR = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2048, 512, 2048), (2048, 768, 3072))
ON_ACCELERATOR = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 4096, 4096), (8192, 4096, 16384))
TOGETHER = 10  # products of an accelerator that are waited for together


def probe_options(names: Iterable[str], argv: Optional[Sequence[str]] = None) -> SimpleNamespace:
    """Return device, dtypes, threads (None: the framework's own choice) and seconds of a probe's command line.

    names: of the dtypes that the framework has. An unknown one ends the program with code 2.
    """
    names = list(names)
    parser = argparse.ArgumentParser(description="Measure the best rate of matrix products on one device.")
    parser.add_argument("--device", default="cpu", help="the framework's name of the device")
    parser.add_argument("--dtype", default=names[0], help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--threads", type=int, help="processor threads; the framework's own choice without it")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each dtype")
    options = parser.parse_args(argv)
    dtypes = options.dtype.split(",")
    unknown = [name for name in dtypes if name not in names]
    if unknown:
        parser.error(f"--dtype: unknown {', '.join(unknown)}; known: {', '.join(names)}")
    return SimpleNamespace(device=options.device, dtypes=dtypes, threads=options.threads, seconds=options.seconds)


def best_product_rate(
    arrange: Callable[[int, int, int], Iterable[Product]],
    device: str,
    seconds: float,
    wait: Optional[Callable[[Any], Any]] = None,
) -> Dict[str, Any]:
    """Return the best rate over all shapes and ways, in 10^12 operations a second, with the median of its repeats.

    arrange: gives for m, k, n every way to multiply [m, k] and [k, n], such as one for each library. wait: waits for a
    product, given the result, where the framework returns it earlier. Shapes and ways take turns, so that a slow
    moment hits none of them alone.
    """
    shapes, together = (ON_PROCESSOR, 1) if device == "cpu" else (ON_ACCELERATOR, TOGETHER)
    runs = [(shape, product) for shape in shapes for product in arrange(*shape)]
    for _, product in runs:
        _seconds_of(product, together, wait)  # the first call sets up kernels and memory
    rates: List[List[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not rates[-1]:
        for (shape, product), measured in zip(runs, rates):
            measured.append(2 * shape[0] * shape[1] * shape[2] / _seconds_of(product, together, wait) / 1e12)
    best, (shape, _) = max(zip(rates, runs), key=lambda pair: max(pair[0]))
    return {"tflops": max(best), "median": statistics.median(best), "shape": list(shape), "repeats": len(best)}


def _seconds_of(product: Product, repeats: int, wait: Optional[Callable[[Any], Any]]) -> float:
    """Return the mean time of products that are waited for together."""
    start = time.perf_counter()
    for _ in range(repeats):
        result = product()
    if wait:
        wait(result)
    return (time.perf_counter() - start) / repeats
