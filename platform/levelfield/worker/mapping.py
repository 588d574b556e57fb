"""A file's tokens, memory-mapped for reading windows of it here and there."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import CorpusError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A shuffled corpus is read at random: reading ahead of each page, the kernel's habit, fetches up to a hundred times
# what is used. So it is told not to, and told instead which windows come next. Not every system knows the advice.
_RANDOM = getattr(mmap, "MADV_RANDOM", None)
_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)


class TokenMap:
    """`tokens`: `count` integers of `dtype`, flat and read-only, from byte `first_byte` of the file.

    Raises CorpusError when the file cannot be mapped.
    """

    def __init__(self, path: str, dtype: Any, first_byte: int, count: int) -> None:
        try:
            with Path(path).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CorpusError(f"{path}: cannot be mapped: {error}") from None
        if _RANDOM is not None:
            self._map.madvise(_RANDOM)
        self.tokens: NDArray[Any] = np.frombuffer(self._map, dtype=dtype, count=count, offset=first_byte)
        self._first_byte = first_byte

    def announce(self, start: int, count: int) -> None:
        """The tokens start..start+count-1 will be read soon: all windows of a batch can be fetched at once."""
        if _WILL_NEED is None:
            return
        size = self.tokens.itemsize
        first = self._first_byte + start * size
        page = first - first % mmap.PAGESIZE
        self._map.madvise(_WILL_NEED, page, first + count * size - page)
