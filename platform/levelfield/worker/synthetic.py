"""The synthetic corpus: the same bytes on every machine, random access by sample number, a known entropy.

docs/decisions/synthetic-corpus.md defines the process and derives its entropy floor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .faults import CorpusError
from .hashing import GAMMA, counters, key_of, keyed, lanes, mix_in_place
from .job import Data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words


def synthetic_entropy(branching: int) -> float:
    """Return the floor of the loss in nats per token: the entropy of a token, given the two tokens before it."""
    return -math.fsum(p * math.log(p) for p in choice_probabilities(branching))


def choice_probabilities(branching: int) -> list[float]:
    """Return P(k) = 2**-(k+1), and for the last choice 2**-(branching-1)."""
    return [2.0 ** -(k + 1) for k in range(branching - 1)] + [2.0 ** -(branching - 1)]


class SyntheticCorpus:
    """Samples of the synthetic process. Raises CorpusError for an alphabet too small for `branching`, or too large."""

    def __init__(self, data: Data, vocab_size: int, sequence_length: int) -> None:
        alphabet, branching = data.alphabet, data.branching
        if not 2 * branching <= alphabet <= vocab_size:
            raise CorpusError(
                f"synthetic corpus: data.alphabet is {alphabet}, expected at least {2 * branching} (twice "
                f"data.branching) and at most {vocab_size} (vocab_size)"
            )
        self._alphabet, self._branching, self._length = alphabet, branching, sequence_length
        self._key = key_of("synthetic", data.seed)
        self._choices = _trailing_zeros(branching - 1)
        self._tokens = np.arange(alphabet, dtype=np.int64) * _stride(vocab_size) % vocab_size

    def samples(self, numbers: Words) -> NDArray[np.int64]:
        """Return the samples of these numbers: int64 [n, sequence_length + 1]."""
        keys = keyed(self._key, numbers)
        states = np.empty((len(keys), self._length + 1), dtype=np.int64)
        states[:, 0] = mix_in_place(keys + np.uint64(GAMMA >> 1)) % np.uint64(self._alphabet)
        states[:, 1:] = self._steps(keys)
        np.cumsum(states, axis=1, out=states)
        np.remainder(states, self._alphabet, out=states)
        return np.take(self._tokens, states)

    def _steps(self, keys: Words) -> NDArray[np.uint8]:
        words = mix_in_place(keys[:, None] + counters(0, (self._length + 3) // 4)[None, :])
        choices = np.take(self._choices, lanes(words)[:, : self._length])
        steps = choices + np.uint8(1)
        # by definition the choice before the first step is even: the floor then holds for the first step too
        steps[:, 1:] += (choices[:, :-1] & np.uint8(1)) * np.uint8(self._branching)
        return steps


def _trailing_zeros(most: int) -> NDArray[np.uint8]:
    """Return, for each 16-bit number, its count of trailing zero bits, at most `most`."""
    zeros = np.zeros(65536, dtype=np.uint8)
    for bits in range(1, most + 1):
        zeros[:: 2**bits] = bits
    return zeros


def _stride(vocab_size: int) -> int:
    """Return the first number, from vocab_size / golden ratio up, that shares no factor with vocab_size."""
    stride = max(1, vocab_size * 618034 // 1000000)
    while math.gcd(stride, vocab_size) != 1:
        stride += 1
    return stride
