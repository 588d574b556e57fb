"""Files that others may have put there, opened for reading: regular files only.

A pipe would hold its reader for ever, and a device may answer without an end. A file that is read whole has a largest
size: one of 1 TB takes no room on a disk and all memory of its reader. Links are followed.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Union

MOST_BYTES = 2**29  # of a file that is read whole: two million steps of a rank
MOST_DOCUMENT_BYTES = 2**26  # of a JSON document, which takes up to twenty times its size as objects

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # it may have become a pipe meanwhile


def open_regular(path: Union[Path, str]) -> BufferedReader:
    """Return a regular file, opened for its bytes. Raises OSError with what was found instead."""
    _refuse(Path(path).stat().st_mode, path)  # before it is opened: to open a device may have an effect
    # one owner of the descriptor: closed twice, where an interrupt comes in between, it would hide the interrupt
    file = open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115 (the caller closes it)
    try:
        _refuse(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Union[Path, str], first: int = -1, largest: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, or its `first` bytes where that is given. Raises OSError as open_regular.

    A file of more than `largest` bytes is an OSError too, unless only its first bytes are read.
    """
    with open_regular(path) as file:
        if first >= 0:
            return file.read(first)
        size = os.fstat(file.fileno()).st_size
        content = file.read(largest + 1) if size <= largest else b""
        if max(size, len(content)) > largest:  # it may have grown meanwhile
            status = f"found {max(size, len(content)):,} bytes, expected at most {largest:,}"
            raise OSError(errno.EFBIG, status, str(path))
        return content


def read_last(path: Union[Path, str], last: int) -> bytes:
    """Return the last bytes of a regular file. Raises OSError as open_regular."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - last))
        return file.read(last)


def _refuse(mode: int, path: Union[Path, str]) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "another kind of file")
        raise OSError(errno.EINVAL, f"found {kind}, expected a regular file", str(path))
