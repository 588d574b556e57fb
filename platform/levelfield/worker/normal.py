"""Normal values from counters: the same bits on every machine, and only the requested ones are computed.

docs/decisions/initial-weights.md gives the reasons for a table and its limits.
"""

from __future__ import annotations

import functools
import hashlib
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from .faults import WorkerError
from .hashing import counters, keyed, lanes, mix_in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words

LEVELS = 65536
UNIT = 2**20  # table entries are whole multiples of 2**-20, exact in float32
TABLE_SHA256 = "7e27fb847e5ea7612eaaa0e2dbfd3118a4da8fa3feadbe2ca7dd619cb93e3d36"
_BLOCK = 8192  # words mixed at a time: they and their scratch stay in a core's cache


@functools.lru_cache(maxsize=None)
def standard_normal_table() -> NDArray[np.float32]:
    """Return the 65536 mid-quantiles of the standard normal, scaled to unit variance, in multiples of 2**-20.

    Raises WorkerError when this machine's arithmetic gives a table with another digest.
    """
    units = _quantile_units()
    digest = hashlib.sha256(units.astype("<i4").tobytes()).hexdigest()
    if digest != TABLE_SHA256:
        raise WorkerError(f"the table of normal values has sha256 {digest}, expected {TABLE_SHA256}")
    return units.astype(np.float32) / np.float32(UNIT)


def _quantile_units() -> NDArray[np.int64]:
    inverse = NormalDist().inv_cdf
    upper = [inverse((k + 0.5) / LEVELS) for k in range(LEVELS // 2, LEVELS)]
    scale = UNIT / math.sqrt(math.fsum(value * value for value in upper) / len(upper))
    half = np.array([round(value * scale) for value in upper], dtype=np.int64)
    return np.concatenate([-half[::-1], half])


def fill_normal(out: NDArray[np.float32], key: int, rows: Words, first_column: int, std: float) -> None:
    """Fill `out` [rows, columns] with N(0, std) values, which depend on key, row number and column only.

    rows: the row number of each row of `out`; first_column: the column number of its first column.
    """
    table = standard_normal_table() * np.float32(std)
    row_keys = keyed(key, rows)
    for start in range(0, out.shape[1], 4 * _BLOCK):
        stop = min(start + 4 * _BLOCK, out.shape[1])
        _fill_columns(out[:, start:stop], row_keys, first_column + start, table)


def _fill_columns(out: NDArray[np.float32], row_keys: Words, first: int, table: NDArray[np.float32]) -> None:
    groups = counters(first // 4, (first + out.shape[1] + 3) // 4)
    skip = first % 4
    height = max(1, _BLOCK // max(1, len(groups)))
    words = np.empty((height, len(groups)), dtype=np.uint64)
    scratch = np.empty_like(words)
    for start in range(0, len(out), height):
        keys = row_keys[start : start + height]
        block = np.add(keys[:, None], groups[None, :], out=words[: len(keys)])
        levels = lanes(mix_in_place(block, scratch[: len(keys)]))[:, skip : skip + out.shape[1]]
        np.take(table, levels, out=out[start : start + height], mode="clip")
