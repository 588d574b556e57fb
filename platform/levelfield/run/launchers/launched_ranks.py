"""What every launcher makes of its ranks: a request before their start, and evidence after their end."""

from __future__ import annotations

import json
import random
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import PORT_CHOSEN_AT_START, NodeSource, NodeWork, ProcessEnd, ProcessWork, Request
from levelfield.node.regular_files import read_regular
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000  # below it live services that start on demand
_TRIES = 50


def request_of(
    plan: Plan, paths: RunPaths, launcher: str, runtime: NodeSource, nodes: int, removed: tuple[str, ...] = ()
) -> Request:
    """Return a request for so many nodes, with the case's limits. removed: user's variables that no rank gets."""
    limits = plan.work.limits
    return Request(
        launcher=launcher,
        runtime=runtime.name,
        nodes=tuple(runtime.node(plan, paths, node_rank) for node_rank in range(nodes)),
        events_dir=str(paths.events),
        start_seconds=limits.start_seconds,
        step_seconds=limits.step_seconds,
        heartbeat_seconds=limits.heartbeat_seconds,
        removed_variables=removed,
    )


def with_port(process: ProcessWork, port: int) -> dict[str, str]:
    return {key: value.replace(PORT_CHOSEN_AT_START, str(port)) for key, value in process.environment.items()}


def ends_of(listed: list[dict[str, Any]]) -> tuple[ProcessEnd, ...]:
    return tuple(ProcessEnd(**end) for end in listed)


def evidence_of(ends: tuple[ProcessEnd, ...], rank: int) -> str:
    """Return the evidence line of a failed rank."""
    end = next(end for end in ends if end.rank == rank)
    if end.signal is not None:
        return f"rank {rank} was ended by {_signal_name(end.signal)}"
    return f"rank {rank} ended with exit code {end.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def written_ends(node: NodeWork) -> tuple[ProcessEnd, ...]:
    """Return how each rank of a node ended. A running or lost rank has no values."""
    try:
        known = {end.rank: end for end in ends_of(json.loads(read_regular(Path(str(node.ends)))))}
    except (OSError, ValueError, TypeError):
        known = {}
    return tuple(known.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in node.processes)


def running_ranks(node: NodeWork) -> list[int]:
    """Return the node's ranks that have not ended."""
    return [end.rank for end in written_ends(node) if (end.exit_code, end.signal) == (None, None)]


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
