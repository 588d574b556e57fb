"""A command on another machine, as a process of ssh with its three streams, and what its failure means.

No call on a connection waits.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

_PART_BYTES = 256 * 1024
_PARTS_AT_ONCE = 16
_MAX_COMPLAINT_LENGTH = 16 * 1024  # of what ssh prints; its last words are the evidence
# By a pattern of what ssh printed: what it means, and what to do about it.
_SSH_FAILURES = {
    r"REMOTE HOST IDENTIFICATION HAS CHANGED":
        "its host key has changed. Find out why; then correct known_hosts. Nothing was sent",
    r"Host key verification failed|No .* host key is known":
        "its host key is not known. Compare its fingerprint, and add it to known_hosts; `ssh {host}` by hand does both",
    r"Permission denied":
        "permission denied. `ssh {host}` must work by hand without a password: load the key into ssh-agent, or name it "
        "in ssh_config",
    r"Could not resolve hostname": "its name does not resolve. Correct it in the hosts file or in ssh_config",
    r"Connection refused|Connection timed out|No route to host|Network is unreachable|Operation timed out":
        "it cannot be reached. Check that it runs, and its address and port",
    r"Too many authentication failures": "permission denied: too many keys. Name one in ssh_config (IdentityFile)",
}  # fmt: skip
# The same for what a host's shell printed. ssh returns the shell's exit code, and 255 for a failure of its own.
SSH_FAILURE_CODE = 255
_SHELL_FAILURES = {
    r"found Python (\d[\d.]*)":
        "its Python is too old: found {0}, expected 3.8 or newer. Name another as `python` of the host",
    r"not found|No such file or directory|command not found":
        "its Python cannot be started. Install python3 there, or name its path as `python` of the host",
}  # fmt: skip
_NOISE_LINE = re.compile(r"^(Warning: Permanently added|\*\* |debug\d:)")


class Connection:
    """One connection. variables: the environment of ssh; None for this process's own."""

    def __init__(self, name: str, argv: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.complaint = ""  # the end of its error output
        self.code: int | None = None  # the exit code, once it has ended
        self.unsent: deque[memoryview] = deque()  # what waits until the other side takes it
        self._close_requested = False
        self.is_at_end = False  # whether standard output has ended
        # a session of its own: Ctrl-C in the terminal reaches the platform, which ends the nodes in order
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0, env=variables
        )
        assert process.stdin and process.stdout and process.stderr
        self._process, self._stdin, self.stdout, self._stderr = process, process.stdin, process.stdout, process.stderr
        for stream in (self._stdin, self.stdout, self._stderr):
            os.set_blocking(stream.fileno(), False)

    def send(self, content: bytes | memoryview) -> None:
        """Send the content after what is unsent. What the other side does not take stays unsent; nothing is copied."""
        self.unsent.append(memoryview(content))
        self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes, and close standard input when that is requested and all is written.

        Return whether anything was written.
        """
        unsent_before = len(self.unsent), sum(map(len, self.unsent))
        try:
            while self.unsent:
                chunk = self.unsent[0]
                self.unsent[0] = chunk[os.write(self._stdin.fileno(), chunk[:_PART_BYTES]) :]
                if not len(self.unsent[0]):
                    self.unsent.popleft()
        except BlockingIOError:
            return unsent_before != (len(self.unsent), sum(map(len, self.unsent)))
        except (OSError, ValueError):
            self.unsent.clear()
        if self._close_requested and not self._stdin.closed:
            with suppress(OSError):
                self._stdin.close()
        return unsent_before[0] > 0

    def close_input(self) -> None:
        """Close standard input: the command on the other side ends its processes."""
        self._close_requested = True
        self.flush()

    def read(self) -> bytes | None:
        """Return what arrived on standard output: empty when nothing did, None at its end."""
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
            for _ in range(_PARTS_AT_ONCE):  # another node's turn comes, however much this one prints
                if not (part := os.read(self._stderr.fileno(), _PART_BYTES)):
                    return
                self.complaint = (self.complaint + part.decode(errors="replace"))[-_MAX_COMPLAINT_LENGTH:]

    def has_ended(self) -> bool:
        """Return whether the process of ssh has ended. Its code and its complaint are then whole."""
        self.code = self._process.poll()
        if self.code is not None:
            self._read_complaint()
        return self.code is not None

    def end(self) -> None:
        """End the process, whatever it does, and close its streams."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.code = self._process.poll()
        self._read_complaint()
        for stream in (self._stdin, self.stdout, self._stderr):
            with suppress(OSError):
                stream.close()


def wait_for_output(connections: Iterable[Connection], seconds: float) -> None:
    """Wait until one of the connections has something to read, at most so many seconds."""
    with selectors.DefaultSelector() as selector:
        for output in {connection.stdout for connection in connections if not connection.is_at_end}:
            selector.register(output, selectors.EVENT_READ)
        selector.select(seconds)


def explain_failure(host: str, code: int | None, complaint: str) -> str:
    """Return a sentence about a connection that failed: the host, the meaning, and the last line of ssh."""
    line = last_line(complaint)
    meanings = _SSH_FAILURES if code == SSH_FAILURE_CODE else {**_SSH_FAILURES, **_SHELL_FAILURES}
    for pattern, meaning in meanings.items():
        if match := re.search(pattern, complaint):
            sentence = f"{host}: {meaning.format(*match.groups(), host=host)}"
            return f"{sentence} ({line})" if line else sentence
    return f"{host}: the connection ended with exit code {code}" + (f": {line}" if line else "")


def last_line(complaint: str) -> str:
    """Return the last line of an error output, without control characters and without ssh's warnings."""
    stripped = (line.strip() for line in complaint.splitlines())
    lines = [line for line in stripped if line and not _NOISE_LINE.match(line)]
    return printable_text(lines[-1], 300) if lines else ""


def printable_text(text: str, limit: int) -> str:
    """Return a text of another machine without control characters, cut after so many characters."""
    return "".join(c for c in text if c.isprintable())[:limit]
