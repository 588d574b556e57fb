"""Control groups of Linux, v1 and v2: the groups of this process, their quota of processor time, their memory kills.

Source: kernel documentation, admin-guide/cgroup-v2 and scheduler/sched-bwc. `root` is where the host's file system
begins: another folder when files are replayed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

HOST = Path("/")


def control_groups(controller: str, root: Path = HOST) -> Iterator[Path]:
    """Yield the folders of this process's group and its ancestors, under v2's tree and under v1's of `controller`.

    A group's path may be that of the host, not to be seen from within a container: the ancestors that are there count.
    """
    for tree, here in _places(controller, root):
        yield from (folder for folder in (here, *here.parents) if folder == tree or tree in folder.parents)


def core_quota(root: Path = HOST) -> float | None:
    """Return how many cores the groups' quotas pay for, the least of all; None without a quota."""
    return min(_quotas(root), default=None)


def memory_kills(root: Path = HOST) -> int | None:
    """Return how many processes of this process's own group the kernel has killed for memory.

    Kills in groups below it, such as those of an engine's containers, are not counted where v2 tells them apart.
    None where it is not known: files are missing, or the group is the machine's root, which holds others' processes.
    """
    for tree, here in _places("memory", root):
        if here == tree and not (tree / "memory.events").exists():
            continue  # v2's root has no such file; v1's counts for the whole machine
        for folder in (here, tree):  # within a container only the tree's root may be there
            for name in ("memory.events.local", "memory.events", "memory.oom_control"):
                if (count := _field(folder / name, "oom_kill")) is not None:
                    return count
    return None


def file_text(path: Path) -> str:
    """Return a file's text without spaces at its ends; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _places(controller: str, root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each tree that has the controller, and this process's place in it."""
    for line in file_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or controller in controllers.split(","):
            for name in (controller,) if controllers else ("", "unified"):  # unified: v2 beside v1
                tree = root / "sys/fs/cgroup" / name
                yield tree, tree / path.lstrip("/")


def _quotas(root: Path) -> Iterator[float]:
    for folder in control_groups("cpu", root):
        quota, _, period = file_text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = file_text(folder / "cpu.cfs_quota_us"), file_text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0 and int(quota) > 0:
            yield int(quota) / int(period)


def _field(path: Path, name: str) -> int | None:
    lines = (line.split() for line in file_text(path).splitlines())
    return next((int(line[1]) for line in lines if len(line) == 2 and line[0] == name and line[1].isdecimal()), None)
