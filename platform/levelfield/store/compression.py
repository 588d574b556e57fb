"""Numbers and documents as few bytes, without loss.

Step times are whole nanoseconds and losses often single floats: each list is stored in the smallest form that gives the
same numbers back. Its bytes are grouped by their place in the number, so that equal leading bytes compress. A result is
compressed with an earlier result of the same series as its dictionary: mostly its numbers are left.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 64 * 2**20  # of one unpacked value
_LEVEL = 6
_RAW_DEFLATE = -15
_NS = 1e9
_MOST_NS = 2**53  # up to here a double holds every whole number
# By the letter that begins the bytes: whole nanoseconds, single floats, doubles. The letter of `array`, and the size.
_FORMS = {b"n": ("q", 8), b"f": ("f", 4), b"d": ("d", 8)}
Numbers = Sequence[float | None]


def packed_numbers(values: Numbers) -> bytes:
    """Return the numbers as bytes; null is kept as null. Raises ValueError for a number that is not finite."""
    if not values:
        return b""
    if not all(value is None or math.isfinite(value) for value in values):
        raise ValueError("found a number that is not finite")
    form, found = _smallest([math.nan if value is None else value for value in values])
    if sys.byteorder == "big":
        found.byteswap()
    content, (_, size) = found.tobytes(), _FORMS[form]
    return form + _deflated(b"".join(content[place::size] for place in range(size)))


def unpacked_numbers(data: bytes) -> tuple[float | None, ...]:
    """Return the numbers of `packed_numbers`. Raises ValueError for damaged bytes."""
    if not data:
        return ()
    form = bytes(data[:1])
    if form not in _FORMS:
        raise ValueError(f"damaged bytes: found the form {form!r}")
    content, (letter, size) = inflated(data[1:]), _FORMS[form]
    count, rest = divmod(len(content), size)
    if rest:
        raise ValueError(f"damaged bytes: found {len(content)}, expected a multiple of {size}")
    found: array[Any] = array(letter, b"".join(content[place::count] for place in range(count)))
    if sys.byteorder == "big":
        found.byteswap()
    if form == b"n":
        return tuple(value / _NS for value in found)
    return tuple(None if math.isnan(value) else value for value in found)


def packed_json(content: Any, dictionary: bytes = b"") -> bytes:
    """Return JSON as bytes. The same dictionary unpacks it."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _deflated(text.encode(), dictionary)


def unpacked_json(data: bytes, dictionary: bytes = b"") -> Any:
    return json.loads(inflated(data, dictionary))


def _smallest(values: list[float]) -> tuple[bytes, array[Any]]:
    """Return the letter and the numbers of the smallest form that gives exactly these values back; NaN is one."""
    if all(abs(value) * _NS < _MOST_NS for value in values):
        whole = [round(value * _NS) for value in values]
        if all(number / _NS == value for number, value in zip(whole, values, strict=True)):
            return b"n", array("q", whole)
    single = array("f", values)
    if all(found == value or value != value for found, value in zip(single, values, strict=True)):
        return b"f", single
    return b"d", array("d", values)


def _deflated(data: bytes, dictionary: bytes = b"") -> bytes:
    maker = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE, 8, zlib.Z_DEFAULT_STRATEGY, dictionary)
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
