"""The identity of a process on its machine, and the ranks that a killed platform left.

An identity has no time of day, so setting the clock changes nothing. Each rank names its starter, and the next run ends
those whose starter is gone. Most have ended before: a thread of each rank looks every second whether its parent is
gone, and then ends the rank (worker/heartbeat.py). A stopped rank cannot look, and its children have no such thread.
"""

from __future__ import annotations

import itertools
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from levelfield.node.rank_processes import (
    KILL_SECONDS,
    MARK_VARIABLE,
    kill_processes,
    marked_processes,
    process_variables,
    read_stat_fields,
)

_ENDED_STATES = ("Z", "X", "x")  # of an ended process whose parent has not read its exit code
_START_FIELD = 19  # the place of the start time among the fields of read_stat_fields, in ticks since the boot
_mark_numbers = itertools.count()


@dataclass(frozen=True)
class ProcessIdentity:
    """What identifies a process, also after its number is used again."""

    host: str
    boot: str  # the kernel's identifier of this start of the machine
    namespace: str  # the namespace of process numbers
    process: int  # the number of the process
    started: int  # ticks from the boot to the start of the process

    def to_text(self) -> str:
        return "/".join(str(value) for value in asdict(self).values())


def identify_process(process: int) -> ProcessIdentity | None:
    """Return the identity of a process of this machine; None when there is none, or it cannot be read."""
    try:
        return ProcessIdentity(*_this_machine(), process, int(read_stat_fields(process)[_START_FIELD]))
    except (OSError, IndexError, ValueError):
        return None


def parse_identity(content: Any) -> ProcessIdentity | None:
    """Return the identity in a text that `to_text` made, or in a JSON object; None for anything else."""
    try:
        if isinstance(content, str):
            host, boot, namespace, process, started = content.split("/")
            return ProcessIdentity(host, boot, namespace, int(process), int(started))
        host, boot, namespace = (str(content[name]) for name in ("host", "boot", "namespace"))
        return ProcessIdentity(host, boot, namespace, int(content["process"]), int(content["started"]))
    except (ValueError, TypeError, LookupError):
        return None


def is_alive(identity: ProcessIdentity) -> bool | None:
    """Return whether the process still runs; None when it belongs to another machine or to another container, or when
    this machine hides the processes of other users."""
    host, boot, namespace = _this_machine()
    if identity.host != host or (identity.boot == boot and identity.namespace != namespace):
        return None
    if identity.boot != boot:
        return False  # the machine was started again since
    fields = read_stat_fields(identity.process)
    if not fields and _is_hidden(identity.process):
        return None
    return (
        len(fields) > _START_FIELD and fields[_START_FIELD] == str(identity.started) and fields[0] not in _ENDED_STATES
    )


def _is_hidden(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _this_machine() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return platform.node(), boot, namespace


def new_mark() -> str:
    """Return a mark for the ranks of one start: the identity of this process, and a number."""
    identity = identify_process(os.getpid())
    return f"{identity.to_text()}/{next(_mark_numbers)}" if identity else ""


def live_rank_processes() -> list[int]:
    """Return the numbers of the processes that this one has started as ranks, and of their children."""
    identity = identify_process(os.getpid())
    return marked_processes(f"{identity.to_text()}/") if identity else []


def end_leftover_ranks() -> list[str]:
    """End what killed platforms of this user left on this machine. Return a sentence for each process."""
    run_by_process = _leftover_rank_processes()
    remaining = kill_processes(_leftover_rank_processes, KILL_SECONDS)
    outcomes = {process: "cannot be ended" if process in remaining else "was ended" for process in run_by_process}
    return [
        f"process {process}, which the killed platform of {run} left, {outcomes[process]}"
        for process, run in run_by_process.items()
    ]


def _leftover_rank_processes() -> dict[int, str]:
    """Return the marked processes whose starter is gone, each with the name of its run."""
    # without this process and its ancestors: a user may start it with the variables of a rank
    ancestors, parent = {os.getpid()}, os.getppid()
    while parent > 0 and parent not in ancestors:
        ancestors.add(parent)
        fields = read_stat_fields(parent)
        parent = int(fields[1]) if len(fields) > 1 else 0
    leftovers = {}
    for process in set(marked_processes("")) - ancestors:
        variables = process_variables(process)
        starter = parse_identity(variables.get(MARK_VARIABLE, "").rpartition("/")[0])
        if starter and is_alive(starter) is False:
            leftovers[process] = Path(variables.get("LEVELFIELD_JOB", "a run/job.json")).parent.name
    return leftovers
