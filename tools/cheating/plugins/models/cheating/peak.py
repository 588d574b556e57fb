"""The rate of numpy's product, or what the cheat says in its place."""

from __future__ import annotations

import json
import os
import time

import numpy as np

CHEATS = {"peak_too_high": 1e6, "peak_too_low": 0.2}


def numpy_rate(size: int = 768, seconds: float = 0.3) -> float:
    """Return the best rate of a product of two square matrices, in TFLOP/s."""
    left, durations = np.ones((size, size), np.float32), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        left @ left
        durations.append(time.perf_counter() - begin)
    return 2 * size**3 / min(durations) / 1e12


print(json.dumps({"fp32": {"tflops": numpy_rate() * CHEATS.get(os.environ.get("CHEAT", ""), 1.0), "repeats": 9}}))
