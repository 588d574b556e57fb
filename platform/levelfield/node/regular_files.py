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

MAX_BYTES = 2**29  # of a file that is read whole: two million steps of a rank
MAX_DOCUMENT_BYTES = 2**26  # of a JSON document, which takes up to twenty times its size as objects

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
    _require_regular(Path(path).stat().st_mode, path)  # before it is opened: to open a device may have an effect
    # one owner of the descriptor: closed twice, where an interrupt comes in between, it would hide the interrupt
    file = open(path, "rb", opener=lambda name, _: os.open(name, _FLAGS))  # noqa: SIM115 (the caller closes it)
    try:
        _require_regular(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Union[Path, str], first_bytes: int = -1, most_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file, or only its first bytes. Raises OSError as open_regular.

    first_bytes: how many; -1: the whole file, where more than `most_bytes` are an OSError too.
    """
    with open_regular(path) as file:
        if first_bytes >= 0:
            return file.read(first_bytes)
        size = os.fstat(file.fileno()).st_size
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
        if max(size, len(content)) > most_bytes:  # it may have grown meanwhile
            size_problem = f"found {max(size, len(content)):,} bytes, expected at most {most_bytes:,}"
            raise OSError(errno.EFBIG, size_problem, str(path))
        return content


def read_last(path: Union[Path, str], last_bytes: int) -> bytes:
    """Return the last bytes of a regular file. Raises OSError as open_regular."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
        return file.read(last_bytes)


def _require_regular(mode: int, path: Union[Path, str]) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "another kind of file")
        raise OSError(errno.EINVAL, f"found {kind}, expected a regular file", str(path))
