"""Numbers and documents as few bytes, without loss.

Step times are whole nanoseconds and losses often single floats: each list is stored in the smallest form that gives the
same numbers back. Its bytes are grouped by their place in the number, so that equal leading bytes compress. A result is
compressed with an earlier result of the same series as its dictionary: mostly its numbers are left.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RAW_DEFLATE = -15
MOST_BYTES = 64 * 2**20  # of one unpacked value
_NS = 1e9
Numbers = Sequence[float | None]
Array = NDArray[Any]


def packed_numbers(values: Numbers) -> bytes:
    """Return the numbers as bytes; null is kept as null. Raises ValueError for a number that is not finite."""
    if not values:
        return b""
    lacking = values.count(None)
    known = [np.nan if value is None else value for value in values] if lacking else values
    array = np.array(known, dtype="<f8")
    if np.count_nonzero(np.isfinite(array)) != len(values) - lacking:
        raise ValueError("found a number that is not finite")
    form, found = _smallest(array)
    size = found.dtype.itemsize
    return form + _deflated(found.view(np.uint8).reshape(-1, size).T.tobytes())


def unpacked_numbers(data: bytes) -> tuple[float | None, ...]:
    """Return the numbers of `packed_numbers`. Raises ValueError for damaged bytes."""
    if not data:
        return ()
    if data[:1] not in _FORMS:
        raise ValueError(f"damaged bytes: found the form {data[:1]!r}")
    kind, back = _FORMS[data[:1]]
    content = np.frombuffer(inflated(data[1:]), dtype=np.uint8)
    size = np.dtype(kind).itemsize
    array = back(np.ascontiguousarray(content.reshape(size, -1).T).view(kind).ravel())
    return tuple(None if value != value else value for value in array.tolist())


def packed_json(content: Any, dictionary: bytes = b"") -> bytes:
    """Return JSON as bytes. The same dictionary unpacks it."""
    return _deflated(
        json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(), dictionary
    )


def unpacked_json(data: bytes, dictionary: bytes = b"") -> Any:
    return json.loads(inflated(data, dictionary))


def _smallest(array: Array) -> tuple[bytes, Array]:
    with np.errstate(over="ignore"):  # a number that is too large is kept as it is
        whole, single = np.rint(array * _NS), array.astype("<f4")
    if np.all(np.abs(whole) < 2**53) and np.array_equal(whole / _NS, array):
        return b"n", whole.astype("<i8")
    if np.array_equal(single.astype("<f8"), array, equal_nan=True):
        return b"f", single
    return b"d", array


def _doubles(array: Array) -> Array:
    return array.astype("<f8")


_FORMS: dict[bytes, tuple[str, Callable[[Array], Array]]] = {
    b"n": ("<i8", lambda array: _doubles(array) / _NS),
    b"f": ("<f4", _doubles),
    b"d": ("<f8", _doubles),
}


def _deflated(data: bytes, dictionary: bytes = b"") -> bytes:
    maker = zlib.compressobj(6, zlib.DEFLATED, _RAW_DEFLATE, 8, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return maker.compress(data) + maker.flush()


def inflated(data: bytes, dictionary: bytes = b"") -> bytes:
    """Return the bytes of packed JSON. Raises ValueError for damaged ones, and for more than MOST_BYTES."""
    try:
        reader = zlib.decompressobj(_RAW_DEFLATE, dictionary)
        content = reader.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"damaged bytes: {error}") from None
    if not reader.eof:
        raise ValueError(f"damaged bytes: cut off, or more than {MOST_BYTES:,} bytes")
    return content
