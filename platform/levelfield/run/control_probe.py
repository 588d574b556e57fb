"""The control of a machine: a fixed matrix product and a fixed copy by numpy, beside what is under test.

No build changes it. So a control out of line shows the machine, and never a regression. It never divides a figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

PART_SECONDS = 1.0
PRODUCT_SIZE = 768
COPY_BYTES = 64 * 2**20


def control_rates(seconds: float = PART_SECONDS) -> dict[str, float]:
    """Return the host's rates: `matmul_flops_per_second` in float32 and `copy_bytes_per_second`."""
    left = np.ones((PRODUCT_SIZE, PRODUCT_SIZE), np.float32)
    product = np.empty_like(left)
    source = np.ones(COPY_BYTES // 4, np.float32)
    target = np.empty_like(source)
    return {
        "matmul_flops_per_second": 2.0 * PRODUCT_SIZE**3 * _rate(lambda: np.matmul(left, left, out=product), seconds),
        "copy_bytes_per_second": 2.0 * COPY_BYTES * _rate(lambda: np.copyto(target, source), seconds),
    }


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Return how often a second the work is done, by the fastest tenth: a short pause is not the machine's rate."""
    work()  # the first call loads code and touches memory
    durations, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return 1.0 / float(np.quantile(durations, 0.1))
