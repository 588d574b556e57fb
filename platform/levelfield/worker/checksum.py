"""Additive checksums: of a parameter over disjoint slices, and of a step's tokens over data-parallel ranks.

Both are sums modulo 2**64 with one term for each element. A term is the element's number times a random odd
word that depends on the element's place (a multilinear hash, Carter and Wegman, 1979). The sum changes when
one element changes, when any few change at random, or when two are exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from .hashing import MASK, key_of, keyed, mix_in_place
from .slices import Slices, bounds_of, extent, row_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words

_BLOCK = 32768  # elements at a time: the widened copy stays in a core's cache


def checksum_slice(name: str, array: NDArray[np.float32], shape: Sequence[int], slices: Slices) -> int:
    """Return the checksum, below 2**64, of `array`, which is the slice `slices` of parameter `name`.

    A term depends on the name, the element's place in the whole parameter and its float32 bits. So the sums
    of disjoint slices add up (modulo 2**64) to the sum of the whole. Raises ValueError when the array is not
    float32 or does not have the slice's shape.
    """
    bounds = bounds_of(shape, slices)
    if array.shape != extent(bounds) or array.dtype != np.float32:
        raise ValueError(f"{name}: found {array.dtype} {array.shape}, expected float32 {extent(bounds)}")
    if not len(shape):
        array, shape, bounds = array.reshape(1), (1,), ((0, 1),)
    rows = _odd(key_of("rows", name), row_numbers(shape, bounds))
    columns = _odd(key_of("columns", name), np.arange(*bounds[-1], dtype=np.uint64))
    return _weighted_sum(array.reshape(len(rows), len(columns)), rows, columns)


def checksum_samples(numbers: Words, tokens: NDArray[np.int64]) -> int:
    """Return the checksum, below 2**64, of samples: each term is a hash of a sample's number and its tokens.

    numbers: [n]; tokens: [n, sequence + 1], with the last target.
    """
    places = _odd(key_of("tokens"), np.arange(tokens.shape[1], dtype=np.uint64))
    sums = tokens.view(np.uint64) @ places
    terms = mix_in_place(sums ^ keyed(key_of("samples"), numbers))
    return int(terms.sum(dtype=np.uint64))


def _weighted_sum(array: NDArray[np.float32], rows: Words, columns: Words) -> int:
    total = 0
    height = max(1, _BLOCK // max(1, len(columns)))
    for start in range(0, len(rows), height):
        block = np.ascontiguousarray(array[start : start + height]).view(np.uint32)
        # plus one: a zero then changes the sum too, so the sum shows a missing element
        sums = (block.astype(np.uint64) + np.uint64(1)) @ columns
        total += int((sums * rows[start : start + height]).sum(dtype=np.uint64))
    return total & MASK


def _odd(key: int, numbers: Words) -> Words:
    return keyed(key, numbers) | np.uint64(1)
