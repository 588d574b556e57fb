"""Facts about a node: its kernel, processors, memory, network interfaces, and what the vendor's tools print there."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Mapping

from levelfield.node.bounded_command import ask
from levelfield.node.rank_processes import stat_of

SCHEMA = "levelfield.node-facts/1"
_ADDRESS_OF = 0x8915  # SIOCGIFADDR (linux/sockios.h)
_INTERFACES = Path("/sys/class/net")
_WORDS = ("operstate", "address")  # of an interface in sysfs
_NUMBERS = ("speed", "mtu")

# They are those of run/host_load.py, without its library. Source of the fields: proc(5).
_PARENT, _TIMES = 1, slice(11, 15)  # places among the fields of stat_of: the last are utime, stime, cutime, cstime
_BUSY = (0, 1, 2, 7)  # user, nice, system, steal
_PROC = Path("/proc")


def node_facts(node_rank: int, commands: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of this node. commands: by name, tools with argv and timeout_seconds. Unknown is None."""
    interfaces = _interfaces()
    return {
        "schema": SCHEMA,
        "node_rank": node_rank,
        "hostname": socket.gethostname(),
        "addresses": sorted({a for found in interfaces.values() for a in found["addresses"]}),
        "kernel": " ".join(os.uname()[i] for i in (0, 2, 4)),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "boot_id": _text(Path("/proc/sys/kernel/random/boot_id")),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "interfaces": interfaces,
        "tools": _tools(commands),
    }


def tool_output(argv: list[str], timeout_seconds: float) -> dict[str, Any]:
    """Return what a tool printed as it stands in a file: the text, or the reason why there is none."""
    found = ask(argv, timeout_seconds)
    if found.text is not None:
        return {"argv": argv, "text": found.text}
    return {"argv": argv, "reason": found.reason, **({"absent": True} if found.absent else {})}


def _tools(commands: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Run all tools at once: one that hangs costs its own limit only."""
    if not commands:
        return {}
    with ThreadPoolExecutor(len(commands)) as pool:
        asked = {n: pool.submit(tool_output, list(c["argv"]), c["timeout_seconds"]) for n, c in commands.items()}
        return {name: future.result() for name, future in asked.items()}


def _interfaces() -> dict[str, Any]:
    try:
        names = sorted(place.name for place in _INTERFACES.iterdir())
    except OSError:
        return {}
    return {name: _interface(name) for name in names if name != "lo"}


def _interface(name: str) -> dict[str, Any]:
    words = {key: _text(_INTERFACES / name / key) for key in _WORDS}
    return {"addresses": _addresses(name), **words, **{key: _number(_INTERFACES / name / key) for key in _NUMBERS}}


def _addresses(name: str) -> list[str]:
    """Return the interface's first IPv4 address, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe, _ADDRESS_OF, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return []
    return [socket.inet_ntoa(found[20:24])]


def _memory_bytes() -> int | None:
    lines = (_text(Path("/proc/meminfo")) or "").splitlines()
    found = next((line.split() for line in lines if line.startswith("MemTotal:")), [])
    return int(found[1]) * 1024 if len(found) == 3 and found[1].isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """Return a number that the kernel knows; -1 is its word for an unknown speed."""
    text = _text(path) or ""
    return int(text) if text.isdecimal() else None


def host_counters() -> dict[str, Any] | None:
    """Return processor seconds that only grow, at `time_ns`: busy, of all programs; own, of this process and all its
    descendants. None where the kernel shows none."""
    try:
        allowed, ticks = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
        cores = _cores()
        used = [times for number, times in cores.items() if number in allowed] or list(cores.values())
        busy = sum(times[place] for times in used for place in _BUSY if place < len(times)) / ticks
        own = _own_ticks() / ticks
    except (OSError, ValueError):
        return None
    return {"time_ns": time.monotonic_ns(), "busy_seconds": busy, "own_seconds": own, "cores": len(used)}


def _cores() -> dict[int, list[int]]:
    """Return the ticks of each core by its number."""
    lines = (line.split() for line in (_PROC / "stat").read_text(encoding="ascii").splitlines())
    named = (fields for fields in lines if fields and fields[0].startswith("cpu") and fields[0] != "cpu")
    return {int(fields[0][3:]): [int(text) for text in fields[1:]] for fields in named}


def _own_ticks() -> int:
    """Return the ticks of this process and all its descendants, with those of children that have ended."""
    numbers = (int(place.name) for place in _PROC.iterdir() if place.name.isdigit())
    found = {number: fields for number, fields in ((n, stat_of(n)) for n in numbers) if len(fields) > _TIMES.stop}
    children: dict[int, list[int]] = {}
    for number, fields in found.items():
        children.setdefault(int(fields[_PARENT]), []).append(number)
    total, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        left += children.get(number, [])
        total += sum(int(text) for text in found[number][_TIMES]) if number in found else 0
    return total
