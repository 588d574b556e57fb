"""Runs groups of jobs at once, each in a process of its own, whose lines come here.

A group that fails does not stop the others. An interrupt reaches all groups, and each judges what it has measured.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import combinations

from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, UsageError
from levelfield.run.launchers import shared_nodes_reason
from levelfield.run.scheduler import Job
from levelfield.specs.plan import Plan

POLL_SECONDS = 0.2
_READ_BYTES = 2**16
_ENDING_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def group_by_entry(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """Return the jobs of each entry, which run one after another, by a name that no other entry has."""
    jobs_by_entry: dict[int, list[Job]] = {}
    for job in jobs:
        jobs_by_entry.setdefault(id(job.entry), []).append(job)
    groups: dict[str, list[Job]] = {}
    for entry_jobs in jobs_by_entry.values():
        plan, entry = entry_jobs[0].plan, entry_jobs[0].entry
        name = plan.entry.name if plan.entry else entry.text if entry else plan.case
        count = sum(other == name or other.startswith(f"{name} #") for other in groups)
        groups[f"{name} #{count + 1}" if count else name] = entry_jobs
    return groups


def require_separate_places(groups: Mapping[str, Sequence[Job]]) -> None:
    """Raise UsageError where two groups use one device, host or machine. An engine finds free nodes for each, where
    it gives whole ones."""
    plans = [job.plan for jobs in groups.values() for job in jobs]
    reasons = (shared_nodes_reason(plan, plan.launch) for plan in plans if plan.launch)
    if len(groups) > 1 and (reason := next(filter(None, reasons), None)):
        raise UsageError(f"--parallel: {reason}")
    places = {name: {place for job in jobs for place in _places_of(job.plan)} for name, jobs in groups.items()}
    for (name, own_places), (other_name, other_places) in combinations(places.items(), 2):
        if common_places := sorted(own_places & other_places):
            raise UsageError(
                f"--parallel: found '{name}' and '{other_name}' both on {common_places[0]}, expected entries without a "
                "common device or host; leave --parallel out, or let an engine place them (--launcher slurm or "
                "kubernetes)"
            )


def _places_of(plan: Plan) -> set[str]:
    """Return what a run uses that no other may use meanwhile; nothing where an engine places it."""
    hardware = plan.hardware
    if plan.refusal or (plan.launch and not plan.launch.hosts):
        return set()
    if plan.launch:
        return {f"host {host.name}" for host in plan.launch.hosts}
    devices = {f"device {hardware.vendor}-{index}" for index in hardware.device_indices}
    return devices or {"the processors of this machine"}


def run_groups(
    groups: Mapping[str, Sequence[Job]],
    at_once: int,
    run_group: Callable[[str, Sequence[Job]], int],
    write_line: Callable[[str], None],
    begin: Callable[[str], bool] = lambda name: True,
    end: Callable[[str], None] = lambda name: None,
) -> dict[str, int]:
    """Run all groups, so many at once, and return their exit codes.

    run_group: runs in a process of the group, whose output comes to `write_line`, and returns its exit code.
    write_line: gets each line of a group, led by its name. begin: called before a group starts; if it returns False,
    neither this one nor another starts. end: called after it. No interrupt comes during these two.
    """
    waiting, running, ends = deque(groups), list[_Group](), dict[str, int]()
    while running or waiting:
        try:
            while waiting and len(running) < at_once:
                with _held_signals():  # no process is started and then forgotten
                    name = waiting.popleft()
                    if not begin(name):
                        waiting.clear()
                        break
                    running.append(_Group(name, partial(run_group, name, groups[name])))
            select.select([group.output for group in running], [], [], POLL_SECONDS)
            with _held_signals():
                for group in list(running):
                    exit_code = group.exit_code()
                    for line in group.read_lines():
                        write_line(f"{group.name}: {line}")
                    if exit_code is None:
                        continue
                    if exit_code < 0:
                        write_line(f"{group.name}: its process was ended by {signal.Signals(-exit_code).name}")
                    running.remove(group)
                    ends[group.name] = exit_code
                    end(group.name)
        except BaseException as error:  # KeyboardInterrupt, which comes once, or a failure of `begin` or `end`
            ends |= dict.fromkeys(waiting, INTERRUPTED)
            waiting.clear()
            for group in running:
                group.interrupt()
            if not isinstance(error, KeyboardInterrupt):
                raise
    return ends


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold the signals that end a command until the end of the block."""
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)


class _Group:
    """A process that runs one group, and its output. Signals are held where it is made."""

    def __init__(self, name: str, run: Callable[[], int]) -> None:
        self.name, self._partial_line = name, b""
        self.output, write_end = os.pipe()
        os.set_blocking(self.output, False)
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process == 0:
            exit_code = PLATFORM_FAULT
            try:
                for descriptor in (1, 2):
                    os.dup2(write_end, descriptor)
                os.close(write_end)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)
                exit_code = run()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(exit_code)  # nothing of the parent's goes on here
        os.close(write_end)

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs. Some process of its may outlive it."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if process else None

    def read_lines(self) -> Iterator[str]:
        """Read what there is, and yield its lines."""
        with suppress(BlockingIOError):
            while part := os.read(self.output, _READ_BYTES):
                *lines, self._partial_line = (self._partial_line + part).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)

    def interrupt(self) -> None:
        """Interrupt it as Ctrl-C in its terminal does. A second interrupt changes nothing."""
        os.kill(self._process, signal.SIGINT)
