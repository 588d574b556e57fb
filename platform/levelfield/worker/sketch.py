"""A few numbers that stand for a parameter's values: the sum of squares, and projections on random signs.

Both add up over disjoint slices. The sum of squares gives the norm. A projection is the sum of the values, each with a
random sign. Two parameters that are apart by a vector of length d have projections that are apart by about d. So
projections show a change that keeps the norm, for example two exchanged rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from .hashing import key_of, keyed
from .slices import Slices, bounds_of, extent, row_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words

PROJECTIONS = 4
_BLOCK = 32768  # values at a time: their float64 copy stays in a core's cache


def sketch_slice(name: str, array: NDArray[np.float32], shape: Sequence[int], slices: Slices) -> list[float]:
    """Return [sum of squares, projections...] of `array`, which is the slice `slices` of parameter `name`.

    The sign of a value is the sign of its row times the sign of its column. Both depend on the name and on the place in
    the whole parameter. Raises ValueError when the array does not have the slice's shape.
    """
    bounds = bounds_of(shape, slices)
    if array.shape != extent(bounds):
        raise ValueError(f"{name}: found shape {array.shape}, expected {extent(bounds)}")
    if not len(shape):
        array, shape, bounds = array.reshape(1), (1,), ((0, 1),)
    rows = _signs(key_of("row signs", name), row_numbers(shape, bounds))
    columns = _signs(key_of("column signs", name), np.arange(*bounds[-1], dtype=np.uint64))
    return _sums(array.reshape(len(rows), len(columns)), rows, columns)


def _sums(array: NDArray[np.float32], rows: NDArray[np.float64], columns: NDArray[np.float64]) -> list[float]:
    square, projections = 0.0, np.zeros(PROJECTIONS)
    height = max(1, _BLOCK // max(1, len(columns)))
    for start in range(0, len(rows), height):
        block = array[start : start + height].astype(np.float64)
        square += float(np.vdot(block, block))
        projections += ((block @ columns) * rows[start : start + height]).sum(axis=0)
    return [square, *projections.tolist()]


def _signs(key: int, numbers: Words) -> NDArray[np.float64]:
    """Return -1 or 1 for each number and projection: [numbers, PROJECTIONS]."""
    bits = keyed(key, numbers)[:, None] >> np.arange(PROJECTIONS, dtype=np.uint64)
    return (bits & np.uint64(1)).astype(np.float64) * 2 - 1
