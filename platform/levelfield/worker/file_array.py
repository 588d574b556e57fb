"""Numbers of a file, read by place. A file that is cut short meanwhile gives an error with its name.

A memory map would end the process by SIGBUS then, without a word.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from .faults import CorpusError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A shuffled corpus is read at random. The kernel reads ahead of each place by default and so fetches up to a hundred
# times the bytes that are used. RANDOM stops that, and WILLNEED names the next windows. Some systems lack both.
_advise = getattr(os, "posix_fadvise", None)


class FileArray:
    """`count` numbers of `dtype` from byte `first_byte` of a file, with one dimension. Slices are read-only arrays.

    Raises CorpusError when the file cannot be opened, and in a read when it is shorter than at its opening.
    """

    def __init__(self, path: str, dtype: Any, first_byte: int, count: int) -> None:
        self.path, self.dtype, self._first_byte, self._count = path, np.dtype(dtype), first_byte, count
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CorpusError(f"{path}: cannot be opened: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size
        if _advise is not None:
            _advise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: int | slice) -> Any:
        """Return the number at a place, or those of a slice without a step."""
        if isinstance(places, slice):
            start, stop, _ = places.indices(self._count)
            return self._read(start, max(0, stop - start))
        return self._read(range(self._count)[places], 1)[0]

    def announce(self, start: int, count: int) -> None:
        """Announce a read of `count` numbers from `start`: the kernel can fetch all windows of a batch at once."""
        if _advise is not None:
            size = self.dtype.itemsize
            _advise(self._file, self._first_byte + start * size, count * size, os.POSIX_FADV_WILLNEED)

    def _read(self, start: int, count: int) -> NDArray[Any]:
        size = self.dtype.itemsize
        try:
            content = os.pread(self._file, count * size, self._first_byte + start * size)
        except OSError as error:
            raise CorpusError(f"{self.path}: cannot be read: {error.strerror}") from None
        if len(content) < count * size:
            raise CorpusError(
                f"{self.path}: was truncated from {self._size} to {os.fstat(self._file).st_size} bytes while it was "
                "read. Nothing may write to a corpus in use"
            )
        return np.frombuffer(content, dtype=self.dtype)
