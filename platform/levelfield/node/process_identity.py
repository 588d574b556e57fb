"""The identity of a process on its machine. No clock has a part in it, so a step of the clock changes nothing."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from levelfield.node.rank_processes import stat_of

_ENDED = ("Z", "X", "x")  # of a process whose parent has not read its exit code
_STARTED = 19  # the place of the start among the fields of stat_of, in ticks since the boot


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. boot: the kernel's identifier of this start of the machine. namespace: where the number counts.

    started: ticks from the boot to the start of the process. A number that is used again has another one.
    """

    host: str
    boot: str
    namespace: str
    process: int
    started: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return "/".join(str(value) for value in asdict(self).values())


def identity_of(process: int) -> ProcessIdentity | None:
    """Return the identity of a process of this machine; None when there is none, or it cannot be read."""
    try:
        return ProcessIdentity(*_place(), process, int(stat_of(process)[_STARTED]))
    except (OSError, IndexError, ValueError):
        return None


def own_identity() -> ProcessIdentity | None:
    return identity_of(os.getpid())


def identity_from(content: Any) -> ProcessIdentity | None:
    """Return the identity that `to_dict` or `to_text` gave; None for anything else."""
    try:
        if isinstance(content, str):
            host, boot, namespace, process, started = content.split("/")
            return ProcessIdentity(host, boot, namespace, int(process), int(started))
        host, boot, namespace = (str(content[name]) for name in ("host", "boot", "namespace"))
        return ProcessIdentity(host, boot, namespace, int(content["process"]), int(content["started"]))
    except (ValueError, TypeError, LookupError):
        return None


def is_alive(identity: ProcessIdentity) -> bool | None:
    """Return whether the process still runs; None when it belongs to another machine or to another container."""
    host, boot, namespace = _place()
    if identity.host != host or (identity.boot == boot and identity.namespace != namespace):
        return None
    if identity.boot != boot:
        return False  # the machine was started again since
    fields = stat_of(identity.process)
    return len(fields) > _STARTED and fields[_STARTED] == str(identity.started) and fields[0] not in _ENDED


def _place() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return platform.node(), boot, namespace
