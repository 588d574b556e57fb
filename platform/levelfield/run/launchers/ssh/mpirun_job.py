"""`ssh.engine: mpirun`: each node's work goes by ssh, and one mpirun starts all nodes' parts, with a line to each.

Open MPI 5.0's standard input for all processes loses data and its end. So signals that mpirun forwards take its place
(node/mpi_part.py). What mpirun carries is neither encrypted nor checked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence

from levelfield.contracts.execution import NodeEnd, NodesNotReady, Submission
from levelfield.errors import UsageError
from levelfield.node.file_stream import MOST_LINE_BYTES
from levelfield.run.launchers.node_content import secrets_of
from levelfield.run.launchers.ssh.connection import Connection, explained, printable_text, wait_for_output
from levelfield.run.launchers.ssh.ssh_places import places_of, ssh_argv, ssh_options, with_modules
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.plan import Plan
from levelfield.specs.site import LaunchPlan

AT_ONCE = 64  # connections that are made at the same time
KEEP_SECONDS = 60.0
PULSE_SECONDS = 0.5  # at least, between two signs of the platform
END_SECONDS = 5.0
_LINE = re.compile(rb"(\d{1,6}) (ready|frame|said|ended)(?: (.*))?", re.DOTALL)
_NOISE = re.compile(r"^-{10,}$|setpgid\(")
# What mpirun and its ssh need of this process's variables. Others could change mpirun (OMPI_MCA_...) or reach a node.
_NEEDED = (
    "HOME", "KRB5CCNAME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "SSH_AUTH_SOCK", "TMPDIR", "USER",
)  # fmt: skip


class MpirunJob:
    """mpirun while it runs. lines: to each node's part, by its rank."""

    def __init__(self, argv: Sequence[str], names: Sequence[str]) -> None:
        self.process = Connection("mpirun", argv, mpirun_variables(os.environ))
        self.lines = [MpirunLine(self, name) for name in names]
        self._rest, self._stray, self._next_pulse = b"", "", 0.0
        self._is_stopped = self._is_over = False

    @property
    def has_all(self) -> bool:
        """Whether every node's part waits for its first sign, or more."""
        return all(line.is_ready for line in self.lines)

    @property
    def said(self) -> str:
        """What mpirun said, as one line. It draws boxes around its errors."""
        return one_line(self.process.complaint + "\n" + self._stray)

    def take(self) -> None:
        while not self.process.is_at_end and (part := self.process.read()):
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                self._give(line)
            if len(self._rest) > 2 * MOST_LINE_BYTES:
                self._rest = self._rest[: MOST_LINE_BYTES + 100]  # its node's line is then broken

    def _give(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        if found and int(found[1]) < len(self.lines):
            return self.lines[int(found[1])].give(found[2], found[3] or b"")
        self._stray = (self._stray + line.decode(errors="replace") + "\n")[-4096:]

    def pulse(self) -> None:
        """Send all nodes a sign of the platform. One that came before a part is ready would end that part."""
        now = time.monotonic()
        if self.has_all and not self._is_stopped and now >= self._next_pulse:
            self._next_pulse = now + PULSE_SECONDS
            self.process.signal(signal.SIGUSR2)

    def stop(self) -> None:
        """End all nodes' parts in order. mpirun itself ends where not all were started: none works then."""
        if not self._is_stopped:
            self._is_stopped = True
            self.process.signal(signal.SIGUSR1 if self.has_all else signal.SIGTERM)

    def code(self) -> int | None:
        return self.process.code if self._is_over or self.process.has_ended() else None

    def end(self) -> None:
        """End mpirun, whatever it does, when no line is in use."""
        if self._is_over or any(line.is_used for line in self.lines):
            return
        deadline = time.monotonic() + END_SECONDS
        while not self.process.has_ended() and time.monotonic() < deadline:
            if time.monotonic() > deadline - END_SECONDS / 2:
                self.process.signal(signal.SIGTERM)  # mpirun then removes its own folders
            self.take()
            time.sleep(0.05)
        self.process.end()
        self._is_over = True


class MpirunLine:
    """The line to one node's part, as a Connection is one. is_used: nobody has ended it here."""

    def __init__(self, job: MpirunJob, name: str) -> None:
        self._job, self._name = job, name
        self.is_ready, self.is_used = False, True
        self.code: int | None = None
        self.complaint = ""
        self._waiting = b""

    is_at_end = property(lambda self: self._job.process.is_at_end)
    stdout = property(lambda self: self._job.process.stdout)
    has_sent = True

    def give(self, word: bytes, content: bytes) -> None:
        if word == b"ready":
            self.is_ready = True
        elif word == b"frame":
            self._waiting += content + b"\n"
        elif word == b"said":
            self.complaint = (self.complaint + _text(content) + "\n")[-4096:]
        elif self.code is None and content.lstrip(b"-").isdigit():
            self.code = int(content[:8])

    def send(self, content: bytes | memoryview) -> None:
        """Send a sign of the platform; mpirun carries nothing else."""
        self._job.pulse()

    def flush(self) -> None:
        pass

    def close_input(self) -> None:
        """End the node's part in order: with it all others, which the platform ends at the same time."""
        self._job.stop()

    def read(self) -> bytes | None:
        self._job.take()
        part, self._waiting = self._waiting, b""
        return part or (None if self.has_ended() else b"")

    def has_ended(self) -> bool:
        if self.code is None and (code := self._job.code()) is not None:
            self._job.take()
            if self.code is None:
                self.code, self.complaint = code, f"{self.complaint}mpirun: {self._job.said}"
        return self.code is not None and not self._waiting

    def end(self) -> None:
        self.is_used = False
        self._job.end()


def keep_works(works: Sequence[Submission]) -> None:
    """Bring each node its work. Raises NodesNotReady with the first node that does not keep it."""
    for first in range(0, len(works), AT_ONCE):
        part = works[first : first + AT_ONCE]
        sending = [Connection(work.name, work.argv) for work in part]
        try:
            for work, connection in zip(part, sending, strict=True):
                connection.send((work.stdin or "").encode())
                connection.close_input()
            for rank, connection in enumerate(sending, first):
                _until_kept(rank, connection)
        finally:
            for connection in sending:
                connection.end()


def _until_kept(rank: int, connection: Connection) -> None:
    deadline = time.monotonic() + KEEP_SECONDS
    while time.monotonic() < deadline and not (connection.read() is None and connection.has_ended()):
        connection.flush()
        wait_for_output([connection], 0.1)
    if connection.code != 0:
        why = explained(connection.name, connection.code, connection.complaint)
        raise NodesNotReady("unreachable", why, (NodeEnd(rank, connection.name, "unreachable", why),))


def one_line(text: str) -> str:
    """Return mpirun's errors as one printable line, without the boxes around them."""
    lines = (line.strip() for line in text.splitlines())
    said = " ".join(line for line in lines if line and not _NOISE.search(line))
    return printable_text(said, 1000)


def _text(content: bytes) -> str:
    try:
        return str(json.loads(content))
    except (ValueError, RecursionError):
        return ""


def refuse_without_ssh(plan: Plan) -> None:
    """Raises UsageError for what only the engine ssh does."""
    launch = launch_of(plan)
    advice = "expected none with ssh.engine: mpirun. Use ssh.engine: ssh"
    if plan.runtime == "docker":
        raise UsageError(f"--runtime: found docker, {advice}")
    if names := sorted(secrets_of(plan)):
        raise UsageError(f"--env: found {', '.join(names)}, which look like secrets, {advice}: mpirun encrypts nothing")
    reached = {(host.port, host.user) for host in launch.hosts}
    if len(reached) > 1:
        raise UsageError(
            "the hosts file: found hosts with different 'port' or 'user', expected the same for all with ssh.engine: "
            "mpirun. Write them in your ssh_config"
        )
    if wrong := next((word for word in launch.site.ssh.command if ":" in word), None):
        why = f"found '{wrong}', expected no colon with ssh.engine: mpirun"
        raise UsageError(f"the site's file: key 'ssh.command': {why}")


def mpirun_submissions(plan: Plan, contents: Mapping[int, str]) -> tuple[Submission, ...]:
    """Return the work of each node, by its rank, and the command of mpirun last."""
    launch, works, commands = launch_of(plan), [], []
    for rank, content in contents.items():
        places = places_of(plan, rank)
        part, file = [places.host.python, places.mpi_part], str(places.run.root / f"nodes/node{rank}.json")
        works.append(Submission(places.host.name, ssh_argv(launch, places.host, [*part, "keep"]), stdin=content))
        commands.append(with_modules(launch, [*part, "run", file]))
    return (*works, Submission("mpirun", mpirun_argv(launch, commands)))


def mpirun_argv(launch: LaunchPlan, commands: Sequence[list[str]]) -> tuple[str, ...]:
    """Return the command that starts one process on each host. Each has its own part of it: their order is certain."""
    site = launch.site.ssh
    each = zip(launch.hosts, commands, strict=False)  # a run may take the first hosts only
    parts = [["--host", host.name, "-np", "1", *command] for host, command in each]
    return (
        *("setpriv", "--pdeathsig", "TERM"),  # when the platform is killed, mpirun ends
        *(site.mpirun, "--allow-run-as-root"),  # as ssh does
        *("--prtemca", "plm_ssh_agent", " ".join(site.command)),
        *("--prtemca", "plm_ssh_args", " ".join(ssh_options(launch, launch.hosts[0]))),
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),  # no node needs a key for another
        *("--stdin", "none", "--bind-to", "none"),
        *parts[0],
        *(word for part in parts[1:] for word in (":", *part)),
    )


def mpirun_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of mpirun itself: a closed list."""
    return {name: variables[name] for name in _NEEDED if name in variables}
