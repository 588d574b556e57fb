"""The time of a message as alpha + bytes / rate (Hockney, 1994), fitted to measured times.

Least squares of relative errors: over sizes from a kilobyte to megabytes, plain ones would be the largest size's alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def fit_messages(seconds_by_bytes: Mapping[int, float]) -> tuple[float, float]:
    """Alpha in seconds, and bytes per second.

    Raises ValueError for fewer than two sizes, for times that are none, and for times that no such message takes.
    """
    if len(seconds_by_bytes) < 2:
        raise ValueError(f"times of {len(seconds_by_bytes)} size(s), expected two or more")
    if wrong := [t for t in seconds_by_bytes.values() if not (t > 0 and math.isfinite(t))]:
        raise ValueError(f"a message took {wrong[0]} s")
    alpha, per_byte = _relative_least_squares(seconds_by_bytes)
    if not (alpha > 0 and per_byte > 0):
        raise ValueError(f"larger messages do not take longer: alpha {alpha:.3g} s, {per_byte:.3g} s/byte")
    return alpha, 1 / per_byte


def _relative_least_squares(seconds_by_bytes: Mapping[int, float]) -> tuple[float, float]:
    """Minimises the sum of ((alpha + n b) / t - 1)^2: with u = 1 / t and v = n / t, alpha u + b v is near 1."""
    u = [1 / t for t in seconds_by_bytes.values()]
    v = [n / t for n, t in seconds_by_bytes.items()]
    uu, vv = sum(x * x for x in u), sum(y * y for y in v)
    uv, su, sv = sum(x * y for x, y in zip(u, v, strict=True)), sum(u), sum(v)
    determinant = uu * vv - uv * uv
    return (su * vv - sv * uv) / determinant, (sv * uu - su * uv) / determinant
