"""The order of samples: a seeded permutation that is computed when needed and never stored.

A Feistel network (Luby and Rackoff, 1988) permutes the smallest even number of bits that holds the count.
A number outside the range is permuted again until it falls inside (cycle walking, Black and Rogaway, 2002).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .hashing import key_of, mix, mix_in_place

if TYPE_CHECKING:
    from .hashing import Words

_ROUNDS = 8


def permute(numbers: Words, count: int, key: int) -> Words:
    """Return the place of each of `numbers`, all below `count`, in the permutation of range(count) for `key`."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = [np.uint64(mix(key + turn)) for turn in range(_ROUNDS)]
    placed = _network(numbers, half, keys)
    outside = np.flatnonzero(placed >= np.uint64(count))
    while len(outside):
        placed[outside] = _network(placed[outside], half, keys)
        outside = outside[placed[outside] >= np.uint64(count)]
    return placed


def _network(numbers: Words, half: int, keys: list[np.uint64]) -> Words:
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (mix_in_place(right + key) & mask)
    return (left << shift) | right


class Order:
    """The map from a run's n-th sample to one of `count` samples. Epoch n // count has its own permutation."""

    def __init__(self, count: int, seed: int, shuffle: bool) -> None:
        self._count, self._seed, self._shuffle = count, seed, shuffle

    def places(self, numbers: Words) -> Words:
        """Return the corpus sample, below count, of each run-sample number. Unshuffled: the number modulo count."""
        count = np.uint64(self._count)
        places = numbers % count
        if not self._shuffle:
            return places
        epochs = numbers // count
        for epoch in sorted(set(epochs.tolist())):
            members = epochs == np.uint64(epoch)
            places[members] = permute(places[members], self._count, key_of("order", self._seed, epoch))
        return places
