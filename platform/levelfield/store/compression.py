"""Packs numbers and documents into few bytes, without loss.

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

from pydantic_core import from_json, to_json

MAX_VALUE_BYTES = 64 * 2**20  # an unpacked value has at most these
_LEVEL = 6  # with Z_FILTERED, which does not link three equal digits of two numbers: a sixth fewer bytes
_RAW_DEFLATE = -15
_NS_PER_SECOND = 1e9
_MAX_NS = 2**53  # up to here a double holds every whole number
# By the letter that begins the packed bytes (nanoseconds, floats, doubles): the type code of `array`, and its bytes.
_ARRAY_FORMS = {b"n": ("q", 8), b"f": ("f", 4), b"d": ("d", 8)}
Numbers = Sequence[float | None]


def pack_numbers(values: Numbers) -> bytes:
    """Return the numbers as bytes; null is kept as null. Raises ValueError for a number that is not finite."""
    if not values:
        return b""
    non_null = [value for value in values if value is not None]
    if not all(map(math.isfinite, non_null)):
        raise ValueError("found a number that is not finite")
    # The smallest form that gives exactly these values back. NaN stands for null, which whole nanoseconds do not have.
    fits_nanoseconds = len(non_null) == len(values) and max(map(abs, non_null)) * _NS_PER_SECOND < _MAX_NS
    nanoseconds = [round(value * _NS_PER_SECOND) for value in non_null] if fits_nanoseconds else []
    numbers: array[Any]
    if fits_nanoseconds and [number / _NS_PER_SECOND for number in nanoseconds] == non_null:
        form, numbers = b"n", array("q", nanoseconds)
    else:
        letter = "f" if array("f", non_null).tolist() == non_null else "d"
        form, numbers = letter.encode(), array(letter, [math.nan if value is None else value for value in values])
    if sys.byteorder == "big":
        numbers.byteswap()
    content, (_, size) = numbers.tobytes(), _ARRAY_FORMS[form]
    return form + _deflate(b"".join(content[byte::size] for byte in range(size)))


def unpack_numbers(data: bytes) -> tuple[float | None, ...]:
    """Return the numbers that `pack_numbers` packed. Raises ValueError for damaged bytes."""
    if not data:
        return ()
    form = bytes(data[:1])
    if form not in _ARRAY_FORMS:
        raise ValueError(f"damaged bytes: found the form {form!r}")
    content, (letter, size) = inflate(data[1:]), _ARRAY_FORMS[form]
    count, excess = divmod(len(content), size)
    if excess:
        raise ValueError(f"damaged bytes: found {len(content)}, expected a multiple of {size}")
    ungrouped = bytearray(len(content))
    for byte in range(size):
        ungrouped[byte::size] = content[byte * count : (byte + 1) * count]
    numbers: array[Any] = array(letter, bytes(ungrouped))
    if sys.byteorder == "big":
        numbers.byteswap()
    if form == b"n":
        return tuple([value / _NS_PER_SECOND for value in numbers])
    return tuple([None if value != value else value for value in numbers])


def pack_json(content: Any, dictionary: bytes = b"") -> bytes:
    """Return JSON as bytes. The same dictionary unpacks it."""
    text = to_json(content, inf_nan_mode="constants")
    if b"NaN" in text or b"Infinity" in text:
        json.dumps(content, allow_nan=False)  # raises where it is a number, and no part of a text
    return _deflate(text, dictionary)


def unpack_json(data: bytes, dictionary: bytes = b"") -> Any:
    return from_json(inflate(data, dictionary))


def _deflate(data: bytes, dictionary: bytes = b"") -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE, 8, zlib.Z_FILTERED, dictionary)
    return compressor.compress(data) + compressor.flush()


def inflate(data: bytes, dictionary: bytes = b"") -> bytes:
    """Return the decompressed bytes. Raises ValueError for damaged ones, and for more than MAX_VALUE_BYTES."""
    try:
        decompressor = zlib.decompressobj(_RAW_DEFLATE, dictionary)
        content = decompressor.decompress(data, MAX_VALUE_BYTES)
    except zlib.error as error:
        raise ValueError(f"damaged bytes: {error}") from None
    if not decompressor.eof:
        raise ValueError(f"damaged bytes: cut off, or more than {MAX_VALUE_BYTES:,} bytes")
    if decompressor.unused_data:
        raise ValueError(f"damaged bytes: found {len(decompressor.unused_data)} after the end")
    return content
