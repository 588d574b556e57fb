"""The streams of a command: no character that a terminal obeys, and no traceback for a reader that has left."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

from levelfield.report.escapes import printable

HARMLESS = (errno.EPIPE, errno.EBADF)  # a reader such as `head` has left, or nobody wants the output


class Streams:
    """The standard streams of this process, protected from here on. Make it once, before anything is printed.

    run_benchmarks.py has put the null device in place of a closed one.
    """

    def __init__(self) -> None:
        self._output = _DroppingFile(1)
        sys.stdout = _text(self._output, line_buffering=os.isatty(1))
        sys.stderr = _text(_DroppingFile(2), line_buffering=True)

    def lost(self) -> str | None:
        """Return why standard output was not written, or None. A closed pipe loses nothing that somebody wants."""
        sys.stdout.flush()
        failure = self._output.failure
        if failure is None or failure.errno in HARMLESS:
            return None
        return f"standard output could not be written: {failure.strerror}"


def _text(file: _DroppingFile, line_buffering: bool) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__ or sys.__stderr__, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(file)
    return _PrintableText(buffered, encoding, errors="backslashreplace", line_buffering=line_buffering)


class _DroppingFile(io.RawIOBase):
    """A descriptor that drops what it cannot write. failure: the first error, None without one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write the bytes and return their number, also when they were dropped."""
        while self.failure is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.failure = error
        return len(data)


class _PrintableText(io.TextIOWrapper):
    """A text stream that writes control characters as `\\u001b`. Only a carriage return that stands alone is sent.

    The line of progress is redrawn by it. A text from elsewhere is always part of a longer one.
    """

    def write(self, text: str) -> int:
        super().write(text if text == "\r" else printable(text))
        return len(text)
