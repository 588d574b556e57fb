"""Control groups of Linux, v1 and v2: the groups of this process, their quota of processor time, out-of-memory kills.

Source: kernel documentation, admin-guide/cgroup-v2 and scheduler/sched-bwc. `root` is the root of the host's file
system; tests give another folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from io import FileIO
from pathlib import Path
from typing import Collection, Iterator, NamedTuple

HOST_ROOT = Path("/")
_KILLED_PATTERN = re.compile(rb"Killed process (\d+)")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # its number is fixed (linux/proc_ns.h, PROC_PID_INIT_INO)
_MAX_RECORD_BYTES = 8192  # of the kernel's log


def control_groups(controller: str, root: Path = HOST_ROOT) -> Iterator[Path]:
    """Yield the folders of this process's group and its ancestors, under v2's tree and under v1's of `controller`.

    A group's path may be that of the host, not visible inside a container: only the ancestors that exist are yielded.
    """
    for mount, group in _mounts_and_groups(controller, root):
        yield from (folder for folder in (group, *group.parents) if folder == mount or mount in folder.parents)


def core_quota(root: Path = HOST_ROOT) -> float | None:
    """Return the smallest processor quota of the groups, in cores; None without a quota."""
    quotas = []
    for folder in control_groups("cpu", root):
        quota, _, period = file_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = file_text(folder / "cpu.cfs_quota_us"), file_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0 and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def count_memory_kills(root: Path = HOST_ROOT) -> int | None:
    """Return how many processes of this process's own group the kernel has killed for memory.

    Kills in groups below it, such as those of an engine's containers, are not counted where v2 tells them apart.
    None where it is not known: files are missing, or the group is the machine's root, which holds others' processes.
    """
    for mount, group in _mounts_and_groups("memory", root):
        if group == mount and not (mount / "memory.events").exists():
            continue  # v2's root has no such file; v1's counts for the whole machine
        names = ("memory.events.local", "memory.events", "memory.oom_control")
        # within a container only the tree's root may be there
        for file in (folder / name for folder in (group, mount) for name in names):
            for key, *counts in filter(None, map(str.split, file_text(file).splitlines())):
                if key == "oom_kill" and len(counts) == 1 and counts[0].isdecimal():
                    return int(counts[0])
    return None


def file_text(path: Path) -> str:
    """Return a file's text without spaces at its ends; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _mounts_and_groups(controller: str, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each mount that has the controller, and the folder of this process's group below it."""
    for line in file_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or controller in controllers.split(","):
            for name in (controller,) if controllers else ("", "unified"):  # unified: v2 beside v1
                mount = root / "sys/fs/cgroup" / name
                yield mount, mount / path.lstrip("/")


class MemoryKills(NamedTuple):
    """How many processes the kernel killed for memory, and the evidence."""

    number: int
    evidence: str | None


class MemoryKillWatch:
    """Finds the processes of a run that the kernel killed for memory since this object was made.

    The kernel's log names each killed process. Where it cannot be read, or has other process numbers (inside a
    container), the counter of this process's control group is used. Kills outside the run count in neither.
    """

    def __init__(self, root: Path = HOST_ROOT) -> None:
        self._root, self._count_at_start = root, count_memory_kills(root)
        self._log = _open_log(root)

    def kills(self, pids: Collection[int]) -> MemoryKills:
        """Return the kills among these processes, and close the kernel's log."""
        if self._log is not None:
            killed_pids: set[int] = set()
            with self._log, contextlib.suppress(OSError):
                while True:
                    try:
                        record = self._log.read(_MAX_RECORD_BYTES)  # one record of the kernel's
                    except BrokenPipeError:
                        continue  # records were overwritten before they were read: go on with the oldest that is left
                    if not record:  # None: there is no further record
                        break
                    killed_pids.update(map(int, _KILLED_PATTERN.findall(record)))
            killed_of_run = sorted(killed_pids & set(pids))
            evidence = f"the kernel's log names process {', '.join(map(str, killed_of_run))}" if killed_of_run else None
            return MemoryKills(len(killed_of_run), evidence)
        kill_count = count_memory_kills(self._root)
        if kill_count is None or self._count_at_start is None or not kill_count > self._count_at_start:
            return MemoryKills(0, None)
        count = kill_count - self._count_at_start
        return MemoryKills(count, "the platform's own control group counts a kill for memory")


def _open_log(root: Path) -> FileIO | None:
    """Return the kernel's log, opened behind its last record; None where its pids are not those of this run."""
    try:
        if os.readlink(str(root / "proc/self/ns/pid")) != _INITIAL_PID_NAMESPACE:
            return None
        log = FileIO(os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        log.seek(0, os.SEEK_END)
    except OSError:
        return None
    return log
