"""A command on another machine, as a process of ssh with its three streams. No call on it waits."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

_PART_BYTES = 256 * 1024
_MOST_COMPLAINT = 16 * 1024  # of what ssh prints; its last words are the evidence


class NodeLine(Protocol):
    """What the platform needs of the line to one node's part: Connection says what each member does."""

    complaint: str
    code: int | None

    @property
    def is_at_end(self) -> bool: ...
    @property
    def stdout(self) -> IO[bytes]: ...
    @property
    def has_sent(self) -> bool: ...
    def send(self, content: bytes | memoryview) -> None: ...
    def flush(self) -> None: ...
    def close_input(self) -> None: ...
    def read(self) -> bytes | None: ...
    def has_ended(self) -> bool: ...
    def end(self) -> None: ...


class Connection:
    """One connection. complaint: the end of its error output. code: the exit code, or None while it runs.

    is_at_end: whether standard output has ended. variables: in place of this process's own.
    """

    def __init__(self, name: str, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self.name, self.complaint, self.code = name, "", None
        self._waiting: deque[memoryview] = deque()
        self._closing = False
        self.is_at_end = False
        # a session of its own: Ctrl-C in the terminal reaches the platform, which ends the nodes in order
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            env=variables,
        )
        for stream in (self._stdin, self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)

    code: int | None

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._process.stderr is not None
        return self._process.stderr

    def send(self, content: bytes | memoryview) -> None:
        """Send after what is waiting. What the other side does not take stays waiting; nothing is copied."""
        self._waiting.append(memoryview(content))
        self.flush()

    @property
    def has_sent(self) -> bool:
        return not self._waiting

    def flush(self) -> None:
        """Write what the pipe takes, and close standard input when that is requested and all is written."""
        try:
            while self._waiting:
                rest = self._waiting[0]
                self._waiting[0] = rest[os.write(self._stdin.fileno(), rest[:_PART_BYTES]) :]
                if not len(self._waiting[0]):
                    self._waiting.popleft()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._waiting.clear()
        if self._closing and not self._stdin.closed:
            with suppress(OSError):
                self._stdin.close()

    def close_input(self) -> None:
        """Close standard input: the command on the other side ends its processes."""
        self._closing = True
        self.flush()

    def read(self) -> bytes | None:
        """Return what came on standard output: empty when nothing did, None at its end."""
        self._read_complaint()
        try:
            part = os.read(self.stdout.fileno(), _PART_BYTES)
        except BlockingIOError:
            return b""
        except (OSError, ValueError):  # ValueError: it was ended here, and its streams are closed
            part = b""
        self.is_at_end = not part
        return part or None

    def _read_complaint(self) -> None:
        with suppress(OSError, ValueError):
            while part := os.read(self.stderr.fileno(), _PART_BYTES):
                self.complaint = (self.complaint + part.decode(errors="replace"))[-_MOST_COMPLAINT:]

    def has_ended(self) -> bool:
        """Return whether the process of ssh has ended. Its code and its complaint are then whole."""
        self.code = self._process.poll()
        if self.code is not None:
            self._read_complaint()
        return self.code is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """End the process, whatever it does, and close its streams."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.code = self._process.poll()
        self._read_complaint()
        for stream in (self._stdin, self.stdout, self.stderr):
            with suppress(OSError):
                stream.close()


def wait_for_output(lines: Iterable[NodeLine], seconds: float) -> None:
    """Return when one of them has something to read, or after so many seconds."""
    with selectors.DefaultSelector() as selector:
        for output in {each.stdout for each in lines if not each.is_at_end}:
            selector.register(output, selectors.EVENT_READ)
        selector.select(seconds)
