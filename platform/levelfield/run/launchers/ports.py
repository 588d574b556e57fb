"""Chooses the port at which the ranks of one machine meet."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000  # below it live services that start on demand
_TRIES = 50


def free_port(file: Path = _RANGE) -> int:
    """Return a free port that the kernel gives to no outgoing connection.

    A rank listens on it only seconds later. A port that the kernel chooses may then belong to a connection of another
    process, and the rank cannot listen. `file` has the first and the last port that the kernel gives.
    """
    end = _first_given(file)
    choose = random.SystemRandom().randrange  # of its own: processes with one seed would choose one port
    for port in (choose(_LOWEST, end) for _ in range(_TRIES if end > _LOWEST else 0)):
        with suppress(OSError):
            return _bound(port)
    return _bound(0)


def _first_given(file: Path) -> int:
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("", port))
        return int(probe.getsockname()[1])
