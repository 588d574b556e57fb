"""The state of a node: its clock, who uses its processors, its free memory, and the limits of a process."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any, Dict

from levelfield.node.rank_processes import stat_of

SECONDS = 1.0  # that the clock and the load are watched for
UNSYNCHRONIZED = 0x40  # STA_UNSYNC of the kernel's adjtimex(2)
Fields = Dict[str, Any]


def clock() -> Fields:
    """Return how far the time of day ran from the monotonic clock in a second, and whether the kernel's is in sync."""
    began, wall = time.monotonic_ns(), time.time_ns()
    time.sleep(SECONDS)
    passed, wall_passed = time.monotonic_ns() - began, time.time_ns() - wall
    return {"facts": {"drift_ppm": (wall_passed - passed) / passed * 1e6, "synchronized": _synchronized()}}


def _synchronized() -> bool | None:
    """Return whether a time service keeps the clock, as the kernel says; None where it does not say."""

    class Timex(ctypes.Structure):
        _fields_ = [
            ("modes", ctypes.c_uint),
            *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        ]

    try:
        found = Timex()
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if code < 0 else not found.status & UNSYNCHRONIZED


def load_of_others(own: int) -> Fields:
    """Return the cores that other programs kept busy in a second. own: the first process of this work; 0: this one."""
    cores = sorted(os.sched_getaffinity(0))
    began, before, ours = time.monotonic(), _busy_ticks(cores), own_ticks(own or os.getpid())
    time.sleep(SECONDS)
    passed = time.monotonic() - began
    busy, used = _busy_ticks(cores) - before, own_ticks(own or os.getpid()) - ours
    ticks = os.sysconf("SC_CLK_TCK")
    return {"facts": {"other_cores": max(0, busy - used) / ticks / passed, "cores": len(cores)}}


def _busy_ticks(cores: list[int]) -> int:
    """Return the ticks that these cores worked, with those that a hypervisor took."""
    total, wanted = 0, {f"cpu{core}" for core in cores}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in wanted:
            # user, nice, system, (idle, iowait), irq, softirq, steal
            total += sum(int(ticks[n]) for n in (0, 1, 2, 5, 6, 7) if n < len(ticks))
    return total


def own_ticks(first: int) -> int:
    """Return the ticks of a process and all its descendants, with those that have ended."""
    numbers = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
    found = {number: fields for number, fields in ((n, stat_of(n)) for n in numbers) if len(fields) > 15}
    children: dict[int, list[int]] = {}
    for number, fields in found.items():
        children.setdefault(int(fields[1]), []).append(number)
    total, left = 0, [first]
    while left:
        number = left.pop()
        # user, system and those of ended children, as proc(5) numbers them without the first two fields
        total += sum(int(value) for value in found.get(number, [])[11:15])
        left += children.get(number, ())
    return total


def memory() -> Fields:
    """Return the node's memory in bytes, what is free of it, and its huge pages."""
    sizes = meminfo()
    facts = {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": available_bytes(),
        "swap_used_bytes": _difference(sizes, "SwapTotal", "SwapFree"),
        "huge_pages": sizes.get("HugePages_Total"),
        "huge_pages_free": sizes.get("HugePages_Free"),
        "transparent_huge_pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shared_memory_bytes": _room("/dev/shm"),
    }
    return {"facts": facts}


def available_bytes() -> int | None:
    """Return the memory that programs may still have: of the machine, or of this container where that is less."""
    free = meminfo().get("MemAvailable")
    group = Path("/sys/fs/cgroup")
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    known = [value for value in (free, limit - used if limit and used is not None else None) if value is not None]
    return max(0, min(known)) if known else None


def limits() -> Fields:
    """Return the limits of a process that collectives and data files need, and what sets the processors' pace."""
    names = {"locked_memory": resource.RLIMIT_MEMLOCK, "open_files": resource.RLIMIT_NOFILE}
    soft = {name: resource.getrlimit(number)[0] for name, number in names.items()}
    facts: Fields = {name: "unlimited" if value == resource.RLIM_INFINITY else value for name, value in soft.items()}
    facts["processor"] = _processor()
    facts["governor"] = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    facts["threads_per_core"] = _text("/sys/devices/system/cpu/smt/active")
    facts["processor_quota"] = _text("/sys/fs/cgroup/cpu.max")
    facts["kernel"] = platform.release()
    facts["hostname"] = platform.node()
    facts["usable_cores"] = len(os.sched_getaffinity(0))
    return {"facts": facts}


def meminfo() -> dict[str, int]:
    """Return /proc/meminfo: bytes, or a count where the kernel gives no unit."""
    found = {}
    for line in (_text("/proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        if value and value[0].isdigit():
            found[name] = int(value[0]) * (1024 if value[1:] == ["kB"] else 1)
    return found


def _difference(sizes: dict[str, int], whole: str, free: str) -> int | None:
    return sizes[whole] - sizes[free] if whole in sizes and free in sizes else None


def _processor() -> str | None:
    lines = (_text("/proc/cpuinfo") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _chosen(path: str) -> str | None:
    """Return the word in brackets, as in `always [madvise] never`."""
    text = _text(path) or ""
    return text.partition("[")[2].partition("]")[0] or None


def _room(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _number(path: Path) -> int | None:
    text = _text(str(path)) or ""
    return int(text) if text.isdigit() else None


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None
