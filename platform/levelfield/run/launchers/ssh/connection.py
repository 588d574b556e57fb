"""A command on another machine, as a process of ssh with its three streams, and what its failure means.

No call on a connection waits.
"""

from __future__ import annotations

import os
import random
import re
import resource
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from levelfield.contracts.command import run_bounded

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
    r"(?:kex|ssh)_exchange_identification|UNKNOWN port 65535":
        "its sshd, or a bastion before it, closed the connection before the login; raise MaxStartups there",
    r"Too many authentication failures": "permission denied: too many keys. Name one in ssh_config (IdentityFile)",
}  # fmt: skip
# The same for what a host's shell printed. ssh returns the shell's exit code, and 255 for a failure of its own.
SSH_FAILURE_CODE = 255
_SHELL_FAILURES = {
    r"standard input is closed": "its command got no standard input from ssh",
    r"found Python (\d[\d.]*)":
        "its Python is too old: found {0}, expected 3.8 or newer. Name another as `python` of the host",
    r"not found|No such file or directory|command not found":
        "its Python cannot be started. Install python3 there, or name its path as `python` of the host",
}  # fmt: skip
# As `ssh -G` prints them: no command runs, or it gets no input.
_BREAKING_SETTINGS = ("sessiontype none", "sessiontype subsystem", "stdinnull yes")
_NOISE_LINE = re.compile(r"^(Warning: Permanently added|\*\* |debug\d:)")


# What ssh prints where a server, or a bastion on the way, ends a connection before the login: most often MaxStartups.
_REFUSED_BEFORE_LOGIN = re.compile(r"(kex|ssh)_exchange_identification|Connection (closed|reset) by|UNKNOWN port 65535")
MAX_TRIES = 6
_MAX_REPEATED_BYTES = 2**20  # of what was sent, for another try; ssh takes more only after its login
FIRST_PAUSE_SECONDS = 0.5  # before the second try; doubled before each further one
MAX_STARTING = 8  # sshd's MaxStartups drops some from the tenth on
STARTING_SECONDS = 3.0  # for which a connection without an answer keeps others from starting: a host may be down
_DESCRIPTORS = 4  # of a connection: three pipes, and a file that is being written
_SETTINGS_SECONDS = 5.0  # for ssh to print its settings


class ConnectionStarts:
    """Lets connections start a few at a time: servers, and bastions before them, drop those that log in at once."""

    def __init__(self) -> None:
        self._starting: list[Connection] = []

    def admit(self, connection: Connection) -> bool:
        """Return whether the connection may start now. It then counts until it answers, or for STARTING_SECONDS."""
        self._starting = [other for other in self._starting if other.is_starting()]
        if len(self._starting) >= MAX_STARTING:
            return False
        self._starting.append(connection)
        return True


class Connection:
    """One connection. A server that ends it before the login is tried again, with all that was sent.

    variables: the environment of ssh; None for this process's own. starts: of all connections that start together.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        variables: Mapping[str, str] | None = None,
        starts: ConnectionStarts | None = None,
    ) -> None:
        self.name = name
        self.complaint = ""  # the end of its error output
        self.code: int | None = None  # the exit code, once it has ended
        self.start_problem: str | None = None  # why ssh could not be started here
        self.unsent: deque[memoryview] = deque()  # what waits until the other side takes it
        self.is_at_end = False  # whether standard output has ended
        self.has_answered = False
        self._argv, self._variables, self._starts = argv, variables, starts or ConnectionStarts()
        self._sent: list[memoryview] = []  # until the first answer
        self._process: subprocess.Popen[bytes] | None = None
        self._try_count, self._start_time, self._next_start_time = 0, 0.0, 0.0
        self._close_requested = self._was_ended = self._has_sent_much = False
        self._start_if_due()

    def _start_if_due(self) -> bool:
        """Return whether the process of ssh was started, now or before."""
        if self._process or self._was_ended or self.start_problem:
            return self._process is not None
        if time.monotonic() < self._next_start_time or not self._starts.admit(self):
            return False
        self._try_count, self._start_time, self.complaint, self.is_at_end = (
            self._try_count + 1,
            time.monotonic(),
            "",
            False,
        )
        self.unsent = deque(self._sent)
        pipe = subprocess.PIPE
        try:
            # a session of its own: Ctrl-C in the terminal reaches the platform, which ends the nodes in order
            process = subprocess.Popen(
                self._argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0, env=self._variables
            )
        except OSError as error:
            self.start_problem = f"{self._argv[0]} cannot be started here: {error.strerror}; install OpenSSH's client"
            self.is_at_end = True
            return False
        assert process.stdin and process.stdout and process.stderr
        self._process, self._stdin, self.stdout, self._stderr = process, process.stdin, process.stdout, process.stderr
        for stream in (self._stdin, self.stdout, self._stderr):
            os.set_blocking(stream.fileno(), False)
        return True

    def is_starting(self) -> bool:
        """Return whether a login may still be under way."""
        is_running = self._process is not None and self._process.poll() is None
        return is_running and not self.has_answered and self.seconds_since_start() < STARTING_SECONDS

    def awaited_streams(self) -> Iterator[tuple[Any, int]]:
        """Yield the streams that may be read, or written where something is unsent."""
        if self._process and not self.is_at_end:
            yield self.stdout, selectors.EVENT_READ
        if self._process and self.unsent:
            yield self._stdin, selectors.EVENT_WRITE

    def seconds_since_start(self) -> float:
        """Return the seconds since the last try began; 0 while it waits for its turn."""
        return time.monotonic() - self._start_time if self._process else 0.0

    def send(self, content: bytes | memoryview) -> None:
        """Send the content after what is unsent. What the other side does not take stays unsent; nothing is copied."""
        self.unsent.append(memoryview(content))
        if not self.has_answered and not self._has_sent_much:
            self._sent.append(self.unsent[-1])
            if sum(map(len, self._sent)) > _MAX_REPEATED_BYTES:  # an image, of which nothing is kept here
                self._has_sent_much = True
                self._sent.clear()
        self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes, and close standard input when that is requested and all is written.

        Return whether anything was written.
        """
        if not self._start_if_due():
            return False
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
        if self._process:
            self.flush()
        else:
            self._was_ended = self.is_at_end = True  # it has not begun, and need not

    def read(self) -> bytes | None:
        """Return what arrived on standard output: empty when nothing did, None at its end."""
        if not self._start_if_due():
            return None if self.is_at_end else b""
        self._read_complaint()
        try:
            part = os.read(self.stdout.fileno(), _PART_BYTES)
        except BlockingIOError:
            return b""
        except (OSError, ValueError):  # ValueError: it was ended here, and its streams are closed
            part = b""
        if part and not self.has_answered:
            self.has_answered = True
            self._sent.clear()
        self.is_at_end = not part
        return part or None

    def _read_complaint(self) -> None:
        with suppress(OSError, ValueError):
            for _ in range(_PARTS_AT_ONCE):  # another node's turn comes, however much this one prints
                if not (part := os.read(self._stderr.fileno(), _PART_BYTES)):
                    return
                self.complaint = (self.complaint + part.decode(errors="replace"))[-_MAX_COMPLAINT_LENGTH:]

    def has_ended(self) -> bool:
        """Return whether the process of ssh has ended for good. Its code and its complaint are then whole."""
        if self._process is None:
            return self._was_ended or self.start_problem is not None
        self.code = self._process.poll()
        if self.code is None:
            return False
        self._read_complaint()
        if self._may_try_again():
            self._close_streams()
            pause_seconds = FIRST_PAUSE_SECONDS * 2 ** (self._try_count - 1) * random.uniform(0.5, 1.0)
            self._process, self._next_start_time = None, time.monotonic() + pause_seconds
            self.code, self.is_at_end = None, False
            return False
        return True

    def _may_try_again(self) -> bool:
        was_refused = self.code == SSH_FAILURE_CODE and _REFUSED_BEFORE_LOGIN.search(self.complaint)
        can_wait = not (self.has_answered or self._was_ended or self._close_requested or self._has_sent_much)
        return bool(was_refused and can_wait and self._try_count < MAX_TRIES)

    def end(self) -> None:
        """End the process, whatever it does, and close its streams."""
        self._was_ended = True
        if self._process is None:
            self.is_at_end = True
            return
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.code = self._process.poll()
        self._read_complaint()
        self._close_streams()
        self.is_at_end = True
        self.unsent.clear()

    def _close_streams(self) -> None:
        for stream in (self._stdin, self.stdout, self._stderr):
            with suppress(OSError):
                stream.close()

    def failure(self) -> str:
        """Return a sentence about why the connection ended, or gave no answer, with the host."""
        if self.start_problem:
            return self.start_problem
        tries = f", at each of {self._try_count} tries" if self._try_count > 1 else ""
        hint = "" if self.has_answered or self.code == SSH_FAILURE_CODE else _client_settings(self._argv)
        return explain_failure(self.name, self.code, self.complaint) + tries + hint

    def silence(self, limit_seconds: float) -> str:
        """Return a sentence about a connection that gave no answer within its limit."""
        hint = "" if self.has_answered else _client_settings(self._argv)
        line = f" ({last_line(self.complaint)})" if last_line(self.complaint) else ""
        return f"{self.name}: no answer within {limit_seconds:g} s{line}{hint or '; look at the machine'}"


def _client_settings(argv: Sequence[str]) -> str:
    """Return the end of a sentence: settings of ssh_config with which no command runs, or none gets its input."""
    *options, host, _ = argv if len(argv) > 2 else (*argv, "", "")
    try:
        settings = run_bounded([*options, "-G", host], _SETTINGS_SECONDS).stdout.splitlines()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    breaking = [line for line in settings if line in _BREAKING_SETTINGS]
    return f"; ssh_config sets `{', '.join(breaking)}` for it: leave that out for this host" if breaking else ""


def allow_descriptors(connections: int) -> None:
    """Raise this process's limit of open files, as far as it may, for so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = soft + _DESCRIPTORS * connections
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def wait_for_output(connections: Iterable[Connection], seconds: float) -> None:
    """Wait until one of the connections has something to read, or takes what is unsent; at most so many seconds."""
    with selectors.DefaultSelector() as selector:
        for connection in set(connections):
            for stream, event in connection.awaited_streams():
                selector.register(stream, event)
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
