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

from levelfield.node.file_sizes import MAX_BYTES_BY_KIND, size_problem

_OTHER_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # it may have become a pipe meanwhile


def open_regular(path: Union[Path, str]) -> BufferedReader:
    """Return a regular file, opened for its bytes. Raises OSError with what was found instead."""
    _require_regular(Path(path).stat().st_mode, path)  # before it is opened: to open a device may have an effect
    # one owner of the descriptor: closed twice, where an interrupt comes in between, it would hide the interrupt
    file = open(path, "rb", opener=lambda name, _: os.open(name, _OPEN_FLAGS))  # noqa: SIM115 (the caller closes it)
    try:
        _require_regular(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Union[Path, str], kind: str) -> bytes:
    """Return the content of a regular file. Raises OSError as open_regular, and for one that is too large.

    kind: a key of MAX_BYTES_BY_KIND.
    """
    max_bytes = MAX_BYTES_BY_KIND[kind]
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
        if problem := size_problem(kind, max(size, len(content))):  # it may have grown meanwhile
            raise OSError(errno.EFBIG, problem, str(path))
        return content


def read_first(path: Union[Path, str], first_bytes: int) -> bytes:
    """Return the first bytes of a regular file. Raises OSError as open_regular."""
    with open_regular(path) as file:
        return file.read(first_bytes)


def read_last(path: Union[Path, str], last_bytes: int) -> bytes:
    """Return the last bytes of a regular file. Raises OSError as open_regular."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
        return file.read(last_bytes)


def _require_regular(mode: int, path: Union[Path, str]) -> None:
    if not stat.S_ISREG(mode):
        kind = _OTHER_KINDS.get(stat.S_IFMT(mode), "another kind of file")
        raise OSError(errno.EINVAL, f"found {kind}, expected a regular file", str(path))
