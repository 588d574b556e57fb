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

SCHEMA = "levelfield.node-facts/1"
_ADDRESS_OF = 0x8915  # SIOCGIFADDR (linux/sockios.h)
_INTERFACES = Path("/sys/class/net")
_WORDS = ("operstate", "address")  # of an interface in sysfs
_NUMBERS = ("speed", "mtu")


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
