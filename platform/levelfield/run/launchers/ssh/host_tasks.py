"""Short commands on many hosts at once: a few start at a time, each has its limit, and waiting is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from levelfield.contracts.execution import Say
from levelfield.run.launchers.ssh.connection import Connection, ConnectionStarts, wait_for_output
from levelfield.run.launchers.ssh.remote_node import LOADER_SCRIPT, ssh_argv
from levelfield.specs.site import Host, LaunchPlan

POLL_SECONDS = 0.1
REPORT_SECONDS = 5.0  # of waiting, after which it is reported, and from then on every 15 s
REPORT_AGAIN_SECONDS = 15.0
ANSWER_SECONDS = 40.0  # beside the seconds that the connection may take
MAX_LINE_BYTES = 2**22
MAX_NAMES = 5  # of hosts in a sentence


class HostTask:
    """A Python program on a host, whose lines are its answers."""

    def __init__(
        self, launch: LaunchPlan, host: Host, program: str, arguments: Sequence[str], starts: ConnectionStarts
    ) -> None:
        self.host, self.lines = host, list[str]()
        self.failure: str | None = None  # a sentence with the host's name
        self.has_ended = False
        self.limit_seconds = launch.site.ssh.connect_seconds + ANSWER_SECONDS  # from the start, and to each next answer
        argv = ssh_argv(launch, host, [host.python, "-c", LOADER_SCRIPT, *arguments])
        self.connection = Connection(host.name, argv, starts=starts)
        text = program.encode()
        self.connection.send(b"%d\n%s" % (len(text), text))
        self._partial_line, self._last_answer_time = b"", 0.0
        self.round_trip = 0.0, 0.0  # when its connection started and its last line came, on this machine's clock

    def poll(self) -> None:
        """Send and receive what is possible now. A failure ends the task."""
        if self.has_ended:
            return
        self.connection.flush()
        received = self.connection.read()
        *lines, self._partial_line = (self._partial_line + (received or b"")).split(b"\n")
        if lines:
            self._last_answer_time = time.monotonic()
            self.round_trip = time.time() - self.connection.seconds_since_start(), time.time()
            self.lines += (line.decode(errors="replace") for line in lines)
        if received is None and self.connection.has_ended():
            self.has_ended = True
            if self.connection.code != 0 or self.connection.start_problem:
                self.failure = self.connection.failure()
        elif len(self._partial_line) > MAX_LINE_BYTES:
            self.fail(f"{self.host.name}: it printed a line of more than {MAX_LINE_BYTES} bytes")
        elif self._waiting_seconds() > self.limit_seconds:
            self.fail(self.connection.silence(self.limit_seconds))

    def fail(self, reason: str) -> None:
        self.failure, self.has_ended = reason, True
        self.connection.end()

    def _waiting_seconds(self) -> float:
        seconds = self.connection.seconds_since_start()
        return min(seconds, time.monotonic() - self._last_answer_time) if self._last_answer_time else seconds


def wait_for_tasks(
    tasks: Sequence[HostTask], is_done: Callable[[HostTask], bool], say: Say, purpose: str
) -> Iterator[HostTask]:
    """Yield the tasks in their order, each once it is done or has ended. purpose: what they are waited for."""
    report = WaitReport(say)
    for task in tasks:
        while not (task.has_ended or is_done(task)):
            pending = [other for other in tasks if not (other.has_ended or is_done(other))]
            wait_for_output([other.connection for other in pending], POLL_SECONDS)
            for other in pending:
                other.poll()
            report.look(purpose, [other.host.name for other in pending], task.limit_seconds)
        yield task


class WaitReport:
    """Reports a wait, first after some seconds and then now and then."""

    def __init__(self, say: Say) -> None:
        self._say, self._next_report_time = say, time.monotonic() + REPORT_SECONDS

    def look(self, purpose: str, names: Sequence[str], limit_seconds: float) -> None:
        """Report where it is time. names: of the hosts that are waited for, each at most for the limit."""
        if names and time.monotonic() >= self._next_report_time:
            self._next_report_time = time.monotonic() + REPORT_AGAIN_SECONDS
            self._say(f"{purpose}: waiting for {name_list(names)} (at most {limit_seconds:g} s each)")


def name_list(names: Iterable[str]) -> str:
    """Return some names, and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return ", ".join(listed[:MAX_NAMES]) + more
