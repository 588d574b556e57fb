"""Tokenised corpora on disk: Megatron's `.bin` and `.idx`, Paddle's `_ids.npy` and `_idx.npz`.

Opening costs the same for every size: it checks headers, file sizes and the two ends of the index. The
platform checks the whole index once (`levelfield.corpus.integrity`). Samples are windows of the flat tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Sequence

import numpy as np

from .faults import CorpusError
from .file_array import FileArray
from .job import Data
from .megatron import open_megatron
from .order import Order
from .paddle import open_paddle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .hashing import Words


class Corpus(NamedTuple):
    """An open corpus: its kind, its prefix, its number of documents, and all its tokens in the file's integer type."""

    kind: str
    prefix: str
    tokens: FileArray
    documents: int


def open_corpus(kind: str, prefix: str) -> Corpus:
    """Open the corpus of `kind` (megatron or paddle) at `prefix`. Raises CorpusError."""
    openers = {"megatron": open_megatron, "paddle": open_paddle}
    if kind not in openers:
        raise CorpusError(f"{prefix}: found corpus kind '{kind}', expected one of {', '.join(openers)}")
    tokens, documents = openers[kind](prefix)
    return Corpus(kind, prefix, tokens, documents)


class IndexedCorpus:
    """The training part of an open corpus, as samples of a run."""

    def __init__(self, corpus: Corpus, data: Data, vocab_size: int, sequence_length: int) -> None:
        self._corpus, self._vocab_size, self._length = corpus, vocab_size, sequence_length
        self._order = Order(_training_samples(corpus, data.split, sequence_length), data.seed, data.shuffle)

    def samples(self, numbers: Words) -> NDArray[np.int64]:
        """Return the samples of these run-sample numbers: int64 [n, sequence_length + 1].

        Raises CorpusError for a token that is not in the vocabulary.
        """
        places = self._order.places(numbers)
        tokens = np.empty((len(places), self._length + 1), dtype=np.int64)
        starts = [place * self._length for place in places.tolist()]
        for start in starts:
            self._corpus.tokens.announce(start, self._length + 1)
        for row, start in zip(tokens, starts):
            row[:] = self._corpus.tokens[start : start + self._length + 1]
        self._check_vocabulary(tokens, places)
        return tokens

    def _check_vocabulary(self, tokens: NDArray[np.int64], places: Words) -> None:
        # a negative number is large when it is read as unsigned: one comparison finds both faults
        if not tokens.size or int(tokens.view(np.uint64).max()) < self._vocab_size:
            return
        row, position = np.argwhere(tokens.view(np.uint64) >= np.uint64(self._vocab_size))[0].tolist()
        raise CorpusError(
            f"{self._corpus.prefix}: token {int(tokens[row, position])} in sample {int(places[row])}, position "
            f"{position} (token {int(places[row]) * self._length + position} of the corpus), "
            f"expected 0..{self._vocab_size - 1} (vocab_size {self._vocab_size})"
        )


def _training_samples(corpus: Corpus, split: Sequence[float], sequence_length: int) -> int:
    total = max(0, (len(corpus.tokens) - 1) // sequence_length)
    count = int(total * split[0] / sum(split))
    if count < 1:
        raise CorpusError(
            f"{corpus.prefix}: found {len(corpus.tokens)} tokens, which make {total} samples of {sequence_length} + 1 "
            f"tokens and {count} in the training part (split {', '.join(f'{part:g}' for part in split)}); "
            f"expected one at least"
        )
    return count
