"""The time of a message as alpha + bytes / rate (Hockney, 1994), fitted to measured times.

The fit minimises the squares of relative errors. Absolute errors would fit only the largest of the sizes, which go
from a kilobyte to megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def fit_messages(seconds_by_bytes: Mapping[int, float]) -> tuple[float, float]:
    """Return alpha in seconds, and bytes per second.

    Raises ValueError for fewer than two sizes, for invalid times, and for times that do not grow with the size.
    """
    if len(seconds_by_bytes) < 2:
        raise ValueError(f"found times of {len(seconds_by_bytes)} message size(s), expected two or more")
    if wrong := [t for t in seconds_by_bytes.values() if not (t > 0 and math.isfinite(t))]:
        raise ValueError(f"found a message of {wrong[0]} s, expected a positive time")
    alpha, per_byte = _relative_least_squares(seconds_by_bytes)
    if not (alpha > 0 and per_byte > 0):
        raise ValueError(f"larger messages do not take longer: alpha {alpha:.3g} s, {per_byte:.3g} s/byte")
    return alpha, 1 / per_byte


def _relative_least_squares(seconds_by_bytes: Mapping[int, float]) -> tuple[float, float]:
    """Return alpha, b for the least sum of ((alpha + n b) / t - 1)^2: alpha u + b v is near 1, u = 1/t, v = n/t."""
    u = [1 / t for t in seconds_by_bytes.values()]
    v = [n / t for n, t in seconds_by_bytes.items()]
    uu, vv = sum(x * x for x in u), sum(y * y for y in v)
    uv, su, sv = sum(x * y for x, y in zip(u, v, strict=True)), sum(u), sum(v)
    determinant = uu * vv - uv * uv
    return (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
