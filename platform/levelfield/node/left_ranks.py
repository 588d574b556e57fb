"""Ranks that a killed platform left: each rank names its starter, and the next run ends those whose starter is gone.

A rank that runs ends by itself. One that is stopped, or a child that leads a session of its own, does not notice.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

from levelfield.node.process_identity import identity_from, is_alive, own_identity
from levelfield.node.rank_processes import KILL_SECONDS, MARK, marked, stat_of, variables_of

_numbers = itertools.count()


def new_mark() -> str:
    """Return a mark for the ranks of one start: the identity of this process, and a number."""
    identity = own_identity()
    return f"{identity.to_text()}/{next(_numbers)}" if identity else ""


def own_ranks() -> list[int]:
    """Return the processes that this one has started as ranks, and their children."""
    identity = own_identity()
    return marked(f"{identity.to_text()}/") if identity else []


def end_left_ranks() -> list[str]:
    """End what killed platforms of this user left on this machine. Return a sentence for each process."""
    found = _left()
    deadline = time.monotonic() + KILL_SECONDS
    left = found
    while left and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
        left = _left()
    how = {process: "cannot be ended" if process in left else "was ended" for process in found}
    return [f"process {each}, which the killed platform of {run} left, {how[each]}" for each, run in found.items()]


def _left() -> dict[int, str]:
    """Return the marked processes whose starter is gone, each with the name of its run."""
    found = {}
    for process in set(marked("")) - _own_line():
        variables = variables_of(process)
        starter = identity_from(variables.get(MARK, "").rpartition("/")[0])
        if starter and is_alive(starter) is False:
            found[process] = Path(variables.get("LEVELFIELD_JOB", "a run/job.json")).parent.name
    return found


def _own_line() -> set[int]:
    """Return this process and those that it comes from: a user may start it with the variables of a rank."""
    line = {os.getpid()}
    process = os.getppid()
    while process > 0 and process not in line:
        line.add(process)
        fields = stat_of(process)
        process = int(fields[1]) if len(fields) > 1 else 0
    return line
