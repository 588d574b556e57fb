"""Counter-based random bits: the finaliser of splitmix64 (Steele, Lea and Flood, 2014), on ints and in arrays.

A hash of a counter needs no state, so each element of a parameter or a corpus is computed on its own. The
result is the same on every machine, because unsigned integers overflow in the same way on all of them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: steps of it visit all 64-bit words
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(*parts: Any) -> int:
    """Return a 64-bit key of names and numbers: the first eight bytes of their text's sha256, little-endian."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def mix(word: int) -> int:
    """Return the finaliser's value for one word."""
    word = ((word ^ (word >> 30)) * _FIRST) & MASK
    word = ((word ^ (word >> 27)) * _SECOND) & MASK
    return word ^ (word >> 31)


def mix_in_place(words: Words, scratch: Words | None = None) -> Words:
    """Replace every word by the finaliser's value. `scratch`, of the same shape, saves an allocation."""
    spare = np.empty_like(words) if scratch is None else scratch
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        np.right_shift(words, np.uint64(shift), out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.right_shift(words, np.uint64(31), out=spare)
    return np.bitwise_xor(words, spare, out=words)


def counters(first: int, last: int) -> Words:
    """Return GAMMA times each of first..last-1, modulo 2**64. Add a key and mix to get independent words."""
    return np.arange(first, last, dtype=np.uint64) * np.uint64(GAMMA)


def keyed(key: int, numbers: Words) -> Words:
    """Return one independent word for each number under `key`."""
    return mix_in_place(numbers * np.uint64(GAMMA) + np.uint64(key & MASK))


def lanes(words: Words) -> NDArray[np.uint16]:
    """Return each word as four 16-bit numbers along the last dimension, low bits first on every machine."""
    return words.astype("<u8", copy=False).view("<u2")
