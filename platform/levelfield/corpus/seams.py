"""Tokens of a text that is too long to be encoded at once: from overlapping windows, the same as from the whole text.

A tokenizer decides by what is near. So two windows that overlap give the same tokens there, but near their ends. They
are joined in the middle of the overlap, if they agree on every token of its middle half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

WINDOW = 1 << 20  # characters
OVERLAP = 1 << 14
_AT_ONCE = 4  # windows, which the tokenizers library spreads over the cores


class Tokens(NamedTuple):
    """The token numbers of a text, and the character at which each token starts, both as arrays."""

    numbers: Any
    starts: Any

    def between(self, first: int, stop: int) -> Tokens:
        """Return the tokens that start in a range of characters, counted from its first one."""
        low, high = np.searchsorted(self.starts, [first, stop])
        return Tokens(self.numbers[low:high], self.starts[low:high] - first)

    def behind(self, first: int) -> Tokens:
        """Return the tokens from a character on, whose starts stay counted from the text's."""
        low = np.searchsorted(self.starts, first)
        return Tokens(self.numbers[low:], self.starts[low:])


Encode = Callable[[list[str]], list[Tokens]]


class LongText:
    """Encodes long texts by an `encode` for lists of short ones. cuts: joints at which two windows did not agree.

    There the text was cut, and its tokens may differ from those of the whole text.
    """

    def __init__(self, encode: Encode, window: int = WINDOW, overlap: int = OVERLAP) -> None:
        self._encode, self._window, self._overlap = encode, window, overlap
        self.cuts = 0

    def tokens(self, parts: Iterable[str]) -> Iterator[Any]:
        """Yield the token numbers of the text whose parts are given, in order. Memory: some windows."""
        windows = self._windows(parts)
        before, length = self._encode([text := next(windows)])[0], len(text)
        while texts := list(islice(windows, _AT_ONCE)):
            for text, found in zip(texts, self._encode(texts), strict=True):
                done, before = self._joined(before, length, text, found)
                length = len(text)
                yield done
        yield before.numbers

    def _windows(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield windows of the text; each starts with the last `overlap` characters of the one before it."""
        rest = ""
        for part in parts:
            rest += part
            while len(rest) > self._window + self._overlap:
                yield rest[: self._window]
                rest = rest[self._window - self._overlap :]
        yield rest

    def _joined(self, before: Tokens, length: int, text: str, found: Tokens) -> tuple[Any, Tokens]:
        """Return the tokens up to the joint, and the tokens of `text` after it.

        before: of the previous window, whose text has `length` characters. found: of `text`.
        """
        overlap, start = self._overlap, length - self._overlap
        middle, margin = overlap // 2, overlap // 4
        ours = before.between(start + margin, start + overlap - margin)
        theirs = found.between(margin, overlap - margin)
        if len(ours.numbers) and all(map(np.array_equal, ours, theirs)):
            return before.between(0, start + middle).numbers, found.behind(middle)
        self.cuts += 1
        alone = self._encode([text[overlap:]])[0]
        return before.numbers, Tokens(alone.numbers, alone.starts + overlap)
