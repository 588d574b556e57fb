"""Bounds of whole numbers in documents, far above what exists.

The platform takes steps, ranks, layers and experts one after another. A slip of the finger, or a document of somebody
else, ends with the key's name instead of hours, or of all memory.
"""

from __future__ import annotations

_MOST_DIGITS = 20  # of a number in a text; Python refuses to read one of 5,000
MOST_STEPS = 10_000_000
MOST_GRADIENT_STEPS = 10_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 10_000  # of one layer
MOST_NODES = 100_000
MOST_DEVICES = 1_024  # of one node
MOST_RANKS = 2**20  # of one run
MOST_REPEATS = 1_000  # of one command
MOST_SIZE = 10**12  # of a width, a vocabulary, a length or a batch: only computed with


def number_of(digits: str) -> int:
    """Return the number that a text of digits is. Raises ValueError for one that is far above every bound."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"found a number of {len(digits):,} digits, expected at most {_MOST_DIGITS}")
    return int(digits)
