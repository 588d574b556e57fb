"""The output streams of a command: without control characters, and without a traceback when a pipe is closed."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import Any

from levelfield.report.escapes import printable

HARMLESS_ERRNOS = (errno.EPIPE, errno.EBADF)  # a reader such as `head` has ended, or the descriptor is closed


class Streams:
    """The standard output and error of this process, replaced by safe ones. Create it once, before any output.

    run_benchmarks.py has already opened the null device in place of a closed descriptor.
    """

    def __init__(self) -> None:
        self._output = _DroppingFile(1)
        sys.stdout = _printable_text(self._output, line_buffering=os.isatty(1))
        sys.stderr = _printable_text(_DroppingFile(2), line_buffering=True)

    def output_failure(self) -> str | None:
        """Return why standard output was not written, or None. A closed pipe is no failure."""
        sys.stdout.flush()
        failure = self._output.failure
        if failure is None or failure.errno in HARMLESS_ERRNOS:
            return None
        return f"standard output could not be written: {failure.strerror}"


def _printable_text(file: _DroppingFile, line_buffering: bool) -> io.TextIOWrapper:
    encoding = getattr(sys.__stdout__ or sys.__stderr__, "encoding", None) or "utf-8"
    buffered = io.BufferedWriter(file)
    return _PrintableText(buffered, encoding, errors="backslashreplace", line_buffering=line_buffering)


class _DroppingFile(io.RawIOBase):
    """A descriptor that drops what it cannot write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failure: OSError | None = None  # the first error

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write the bytes and return their number, even if they were dropped."""
        while self.failure is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.failure = error
        return len(data)


class _PrintableText(io.TextIOWrapper):
    """A text stream that writes control characters as `\\u001b`, except for a carriage return that is written alone.

    It redraws the progress line. Text from elsewhere is always part of a longer one.
    """

    def write(self, text: str) -> int:
        super().write(text if text == "\r" else printable(text))
        return len(text)
