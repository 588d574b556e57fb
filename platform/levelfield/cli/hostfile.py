"""Lists of hosts as DeepSpeed and MPI read them: one host a line, with the number of its slots.

gpu1 slots=8                        DeepSpeed, Open MPI
gpu1 slots=8 max_slots=8            Open MPI
gpu1:8                              MPICH, Intel MPI
gpu1                                each line is one slot, as in a list that a batch system writes
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from levelfield.errors import UsageError
from levelfield.specs.bounded_reading import bounded_text

# A name with more than one colon is an address of IPv6.
_LINE = re.compile(
    r"(?:(?P<user>[^\s@:=]+)@)?(?P<name>[^\s@:=]+|[^\s@=]*:[^\s@=]*:[^\s@=]*)(?::(?P<count>\d+))?"
    r"(?P<options>(?:\s+[^\s=]+=\S+)*)"
)
_EXPECTED = "expected a line such as `gpu1 slots=8`, `gpu1:8` or `gpu1`"


def read_hostfile(path: Path) -> list[dict[str, Any]]:
    """Return the hosts as a hosts file has them, with `slots` where the list gives any. Raises UsageError."""
    text = bounded_text(path, "setting")
    hosts: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.fullmatch(words)
        options = dict(option.split("=", 1) for option in match["options"].split()) if match else {}
        slots = options.get("slots") or (match and match["count"])
        if match is None or (slots and not slots.isdecimal()):
            raise UsageError(f"{path}: line {number}: found {words!r:.60}, {_EXPECTED}")
        name = match["name"]
        if name in hosts and slots:
            raise UsageError(f"{path}: line {number}: found {name} more than once, expected each name once")
        host = hosts.setdefault(name, {"name": name, **({"user": match["user"]} if match["user"] else {})})
        if slots:
            host["slots"] = int(slots)
        else:
            host["lines"] = host.get("lines", 0) + 1
    if not hosts:
        raise UsageError(f"{path}: found no host, {_EXPECTED}")
    for host in hosts.values():
        if (lines := host.pop("lines", 1)) > 1:
            host["slots"] = host.get("slots", 0) + lines
    return list(hosts.values())
