"""JSON that is plainly harmless, read fast. A text that is not is left to a slower reader, which says what is wrong.

Plain is a text without keys that are there twice, NaN, infinities, deep nesting, endless digits and escapes by number.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

MOST_LEVELS = 32
MOST_DIGITS = 25  # of a whole number; 2**64 has 20
_DEEP = b"\n" + b" " * MOST_LEVELS
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * (MOST_DIGITS + 1)


def plain_json(content: bytes) -> Any:
    """Return the value of a JSON text that clearly holds nothing refused, in half the time of json's.

    The value is written again, with a blank for each level. Each key has one colon in both texts, and so has each colon
    of a string, for no escape can write one. So a key that is there twice leaves fewer colons in the new text.
    Raises ValueError for any other text.
    """
    if b"\\u" in content or _LONG in content.translate(_DIGITS):
        raise ValueError
    found = from_json(content, allow_inf_nan=False)
    again = to_json(found, indent=1, inf_nan_mode="constants")  # a number such as 1e999 was read as an infinity
    if again.count(b":") != content.count(b":") or _DEEP in again or b"Infinity" in again:
        raise ValueError
    return found
