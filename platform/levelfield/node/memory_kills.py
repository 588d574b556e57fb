"""Which of a run's processes the kernel killed for memory.

The kernel's log names each killed process. Where it cannot be read, or counts processes otherwise than here (inside a
container), the counter of the platform's own control group is taken. A kill elsewhere on the machine is in neither.
"""

from __future__ import annotations

import os
import re
from io import FileIO
from pathlib import Path
from typing import Collection, NamedTuple

from levelfield.node.control_groups import HOST, memory_kills

_KILLED = re.compile(rb"Killed process (\d+)")
_FIRST_NAMESPACE = "pid:[4026531836]"  # its number is fixed (linux/proc_ns.h, PROC_PID_INIT_INO)
_LONGEST_RECORD = 8192


class MemoryKills(NamedTuple):
    """The number of processes that were killed for memory, and how that is known."""

    number: int
    evidence: str | None


class MemoryKillWatch:
    """The kills since this object was made. `root` is where the host's file system begins."""

    def __init__(self, root: Path = HOST) -> None:
        self._root, self._counted = root, memory_kills(root)
        self._log = _open_log(root)

    def found(self, processes: Collection[int]) -> MemoryKills:
        """Return the kills of these processes, and close the log. `processes`: their numbers."""
        if self._log is not None:
            with self._log:
                named = sorted(set(_killed_in(self._log)) & set(processes))
            said = ", ".join(map(str, named))
            return MemoryKills(len(named), f"the kernel's log names process {said}" if named else None)
        now = memory_kills(self._root)
        if now is None or self._counted is None or not now > self._counted:
            return MemoryKills(0, None)
        return MemoryKills(now - self._counted, "the platform's own control group counts a kill for memory")


def _open_log(root: Path) -> FileIO | None:
    """Return the kernel's log, opened behind its last record; None where it does not tell this run's processes."""
    try:
        if os.readlink(str(root / "proc/self/ns/pid")) != _FIRST_NAMESPACE:
            return None
        log = FileIO(os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        log.seek(0, os.SEEK_END)
    except OSError:
        return None
    return log


def _killed_in(log: FileIO) -> list[int]:
    """Return the processes that new records name as killed for memory. A read gives one record."""
    found: list[int] = []
    while True:
        try:
            record = log.read(_LONGEST_RECORD)
        except BrokenPipeError:
            continue  # records were overwritten before they were read; the next read gives the oldest that is left
        except OSError:
            return found
        if not record:  # None: there is no further record
            return found
        found += [int(number) for number in _KILLED.findall(record)]
