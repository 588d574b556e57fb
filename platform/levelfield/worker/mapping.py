"""The tokens of a file, memory-mapped for reading windows at random places."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import CorpusError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A shuffled corpus is read at random. The kernel reads ahead of each page by default and so fetches up to a hundred
# times the bytes that are used. MADV_RANDOM stops that, and MADV_WILLNEED names the next windows. Some systems lack
# both.
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
        """Announce a read of the tokens start..start+count-1: the kernel can fetch all windows of a batch at once."""
        if _WILL_NEED is None:
            return
        size = self.tokens.itemsize
        first = self._first_byte + start * size
        page = first - first % mmap.PAGESIZE
        self._map.madvise(_WILL_NEED, page, first + count * size - page)
