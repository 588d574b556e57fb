"""A slice of a parameter: the rows and columns of the whole that it holds.

All leading dimensions together are the rows; the last dimension is the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from .hashing import Words

Bounds = Tuple[Tuple[int, int], ...]
Slices = Optional[Sequence[Optional[slice]]]


def bounds_of(shape: Sequence[int], slices: Slices) -> Bounds:
    """Return (start, stop) for each dimension. None, instead of all slices or of one, means the whole.

    Raises ValueError when slices and dimensions differ in number, or for a slice with a step.
    """
    parts = [None] * len(shape) if slices is None else list(slices)
    if len(parts) != len(shape):
        raise ValueError(f"found {len(parts)} slices, expected one for each dimension of shape {tuple(shape)}")
    return tuple(_bound(size, part) for size, part in zip(shape, parts))


def extent(bounds: Bounds) -> tuple[int, ...]:
    """Return the shape of the slice."""
    return tuple(stop - start for start, stop in bounds)


def row_numbers(shape: Sequence[int], bounds: Bounds) -> Words:
    """Return the row numbers, in the whole parameter, of the rows of the slice, in order."""
    rows = np.zeros(1, dtype=np.uint64)
    for size, (start, stop) in zip(shape[:-1], bounds[:-1]):
        part = np.arange(start, stop, dtype=np.uint64)
        rows = (rows[:, None] * np.uint64(size) + part[None, :]).reshape(-1)
    return rows


def _bound(size: int, part: slice | None) -> tuple[int, int]:
    start, stop, step = (slice(None) if part is None else part).indices(size)
    if step != 1:
        raise ValueError(f"slice {part} has a step; expected contiguous slices")
    return start, max(start, stop)
