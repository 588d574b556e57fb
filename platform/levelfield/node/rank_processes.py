"""The ranks of one node as processes: they start together and end together, and each end is recorded.

The launchers use `Ranks`. As a script (`python rank_processes.py nodes/node0.json`) this file is a container's first
process. It needs only the standard library. It ends all ranks when its standard input closes: the platform closes it,
or the system does so when the platform was killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Collection

POLL_SECONDS = 0.1
SETTLE_SECONDS = 3.0  # after one rank has failed: time for the others to write their errors
TERMINATE_SECONDS = 2.0  # between SIGTERM and SIGKILL; both together stay well under the five seconds of Ctrl-C
KILL_SECONDS = 5.0  # after SIGKILL; a process that a driver or a frozen cgroup holds in the kernel never ends
MARK_VARIABLE = "LEVELFIELD_STARTED_BY"  # in each rank and what it starts: who started it (process_identity.py)
# Ranks count as half of all memory more. So the kernel, when out of memory, ends a rank and not the platform.
OOM_SCORE_ADJUSTMENT = 500


class Ranks:
    """Processes by rank. Each process leads its own session, so that its whole group can be ended.

    mark: a variable's value, by which processes that have left their group are found and ended too.
    """

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self._escaped_processes: set[int] = set()
        self._process_by_rank: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped_ranks: set[int] = set()
        self._unkillable_states: dict[int, str] = {}

    def start(self, rank: int, argv: list[str], environment: dict[str, str], log: str) -> None:
        """Start one rank with exactly this environment. Raises OSError when the process cannot start."""
        with Path(log).open("wb") as output:
            self._process_by_rank[rank] = subprocess.Popen(
                argv,
                env={**environment, MARK_VARIABLE: self._mark} if self._mark else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # every rank gets it: the kernel may kill a second one before the memory of the first is free
        adjustment = Path(f"/proc/{self._process_by_rank[rank].pid}/oom_score_adj")
        with contextlib.suppress(OSError, ValueError):
            # a user may not lower it
            if int(adjustment.read_text(encoding="utf-8")) < OOM_SCORE_ADJUSTMENT:
                adjustment.write_text(str(OOM_SCORE_ADJUSTMENT), encoding="utf-8")

    def alive(self) -> list[int]:
        """Return the ranks that still run."""
        return [rank for rank, process in self._process_by_rank.items() if process.poll() is None]

    def processes(self) -> list[int]:
        """Return the process numbers of all started ranks."""
        return [process.pid for process in self._process_by_rank.values()]

    def first_failed(self) -> int | None:
        """Return the first rank that ended with an error, or None."""
        return next((rank for rank, process in self._process_by_rank.items() if process.poll() not in (None, 0)), None)

    def stop(self) -> None:
        """End every process group that is left: send SIGTERM, wait, send SIGKILL, and wait a bounded time.

        A rank that has not ended then is held by the kernel. A later call does not wait for it again.
        """
        live_ranks = set(self.alive()) - set(self._unkillable_states)
        # a suspended process receives SIGTERM when it continues
        for signals, ranks, seconds in (
            ((signal.SIGTERM, signal.SIGCONT), live_ranks, TERMINATE_SECONDS),
            ((signal.SIGKILL,), set(self._process_by_rank), KILL_SECONDS),
        ):
            for signal_number, rank in itertools.product(signals, ranks):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process_by_rank[rank].pid, signal_number)
            self.wait(seconds, live_ranks)
        if self._mark:  # processes that ranks have started in sessions of their own: each is tried once
            handled_processes = {*self.processes(), *self._escaped_processes}
            self._escaped_processes |= {
                *kill_processes(lambda: {*marked_processes(self._mark)} - handled_processes, KILL_SECONDS)
            }
        self._unkillable_states.update(
            {rank: process_state(self._process_by_rank[rank].pid) for rank in live_ranks & set(self.alive())}
        )
        self._stopped_ranks |= live_ranks

    def wait(self, seconds: float, ranks: Collection[int] | None = None) -> None:
        """Wait for these ranks to end by themselves, or for all; at most so many seconds."""
        deadline, awaited_ranks = time.monotonic() + seconds, set(self._process_by_rank if ranks is None else ranks)
        while time.monotonic() < deadline and awaited_ranks & set(self.alive()):
            time.sleep(POLL_SECONDS / 2)

    def ends(self) -> list[dict[str, Any]]:
        """Return how each rank ended, in order: an exit code or a signal, and whether `stop` ended it.

        A rank that did not end by SIGKILL has its process and the state of that process instead.
        """
        ends: list[dict[str, Any]] = []
        for rank, process in sorted(self._process_by_rank.items()):
            code = process.poll()
            signal_number = -code if code is not None and code < 0 else None
            end: dict[str, Any] = {
                "rank": rank,
                "exit_code": code if signal_number is None else None,
                "signal": signal_number,
                "stopped_by_us": rank in self._stopped_ranks,
            }
            if code is None and rank in self._unkillable_states:
                end.update(process=process.pid, state=self._unkillable_states[rank])
            ends.append(end)
        return ends


class StopRequest:
    """A request to end from outside, by a thread or a signal. The first reason stays.

    A signal's handler runs within any line of the main thread, also within itself. So no lock is taken here: a
    threading.Event would wait for itself.
    """

    def __init__(self) -> None:
        self.reason = ""

    def request(self, reason: str) -> None:
        self.reason = self.reason or reason

    def wait(self, seconds: float) -> bool:
        """Return whether there is a reason, at the latest after so many seconds."""
        deadline = time.monotonic() + seconds
        while not self.reason and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, POLL_SECONDS))
        return bool(self.reason)


def kill_processes(list_processes: Callable[[], Collection[int]], seconds: float) -> Collection[int]:
    """Send SIGKILL to the listed processes until none is listed or the time is over. Return those that are left."""
    deadline = time.monotonic() + seconds
    while (remaining := list_processes()) and time.monotonic() < deadline:
        for process in remaining:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS / 5)
    return remaining


def marked_processes(mark_prefix: str, variable: str = MARK_VARIABLE) -> list[int]:
    """Return the numbers of this user's processes whose mark begins with a prefix; with an empty one all with a mark.

    variable: has the mark. A null byte at the end of `mark_prefix` stands for the end of the whole mark.
    """
    prefix = f"{variable}={mark_prefix}".encode()
    processes = []
    for environ_file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
            content = environ_file.read_bytes()
            if content.startswith(prefix) or b"\0" + prefix in content:
                processes.append(int(environ_file.parent.name))
    return processes


def process_variables(process: int) -> dict[str, str]:
    """Return the variables with which a process was started; none where they cannot be read."""
    try:
        content = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(line.partition("=")[::2] for line in content.split("\0") if "=" in line)


def read_stat_fields(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, of which the state is the first; none without the process."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def process_state(process: int) -> str:
    """Return the state of a process as the kernel's letter: D waits in the kernel, T is stopped."""
    return (read_stat_fields(process) or ["?"])[0]


def main(path: str) -> int:
    """Run the ranks that the file lists and write their ends. Return 0 when every rank ended with exit code 0."""
    assignment = json.loads(Path(path).read_text(encoding="utf-8"))
    ranks, stop, ends_file = Ranks(), StopRequest(), Path(assignment["ends"])
    os.umask(
        assignment.get("umask", 0o022)
    )  # the engine's own mask would give files to others that the user's does not
    signal.signal(signal.SIGTERM, lambda number, frame: stop.request("a signal"))
    threading.Thread(target=_stop_when_closed, args=(stop,), daemon=True).start()
    try:
        for process in assignment["processes"]:
            environment = {**os.environ, **process["environment"]}
            ranks.start(process["rank"], process["argv"], environment, process["log"])
        while ranks.alive() and ranks.first_failed() is None and not stop.wait(POLL_SECONDS):
            _write_ends(ends_file, ranks.ends())
        if ranks.first_failed() is not None:
            ranks.wait(SETTLE_SECONDS)  # the others may end by themselves and write their errors
    finally:
        ranks.stop()
        _write_ends(ends_file, ranks.ends())
    return 0 if ranks.first_failed() is None else 1


def _stop_when_closed(stop: StopRequest) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.request("standard input was closed")


def _write_ends(path: Path, ends: list[dict[str, Any]]) -> None:
    """Replace the file in one step, and only when `ends` changed: the platform reads it during the run."""
    text = json.dumps(ends)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # skips Python's shutdown, in which a further signal would change the exit code
