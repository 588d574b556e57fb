"""Student's t distribution: tail probabilities and quantiles, in closed form for whole degrees of freedom.

The sums are Abramowitz and Stegun (1964), 26.7.3 for odd and 26.7.4 for even degrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

_MAX_DEGREES = 200  # with more, the normal distribution's quantiles are the same within 1 %


def t_tail_probability(t: float, degrees: int) -> float:
    """Return the probability that a Student's t variable exceeds t. Raises ValueError below one degree of freedom."""
    if degrees < 1:
        raise ValueError(f"found {degrees} degrees of freedom, expected at least 1")
    if degrees > _MAX_DEGREES:
        return 1 - NormalDist().cdf(t)
    angle = math.atan(abs(t) / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees % 2:
        series = _nested_sum(cosine, cosine**2, range(2, degrees - 1, 2)) if degrees > 1 else 0.0
        central_probability = 2 / math.pi * (angle + sine * series)  # between -t and t
    else:
        central_probability = sine * _nested_sum(1.0, cosine**2, range(1, degrees - 2, 2))
    return (1 - math.copysign(central_probability, t)) / 2


@lru_cache(maxsize=4096)
def t_quantile(tail: float, degrees: int) -> float:
    """Return the t that is exceeded with probability `tail`, between 1e-9 and 0.5, by bisection."""
    if not 1e-9 <= tail <= 0.5:
        raise ValueError(f"found a tail of {tail}, expected 1e-9 to 0.5")
    low, high = 0.0, 1.0
    while t_tail_probability(high, degrees) > tail:
        low, high = high, 2 * high
    return bisect_threshold(lambda t: t_tail_probability(t, degrees) > tail, low, high, 60)


def bisect_threshold(is_below: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Return the number between `low` and `high` below which a condition holds, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def normal_tail(z: float) -> float:
    """Return the probability that a standard normal variable exceeds z."""
    return math.erfc(z / math.sqrt(2)) / 2


def _nested_sum(first: float, square: float, numerators: range) -> float:
    """Return first (1 + n1/(n1+1) square + n1 n2/((n1+1)(n2+1)) square^2 + ...)."""
    total = term = first
    for numerator in numerators:
        term *= numerator / (numerator + 1) * square
        total += term
    return total
