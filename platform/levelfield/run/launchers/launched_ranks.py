"""What every launcher makes of its ranks: a request and a port before their start, and evidence after their end."""

from __future__ import annotations

import json
import random
import signal
import socket
from collections.abc import Iterable, Mapping
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
    """Return the process's variables with the rendezvous port."""
    return {key: value.replace(PORT_CHOSEN_AT_START, str(port)) for key, value in process.environment.items()}


def ends_of(content: Iterable[Mapping[str, Any]]) -> tuple[ProcessEnd, ...]:
    return tuple(ProcessEnd(**end) for end in content)


def node_ranks_ends(node: NodeWork, content: Any) -> tuple[ProcessEnd, ...]:
    """Return how each rank of a node ended. One without an end, such as a lost rank, has no values.

    content: what the node's part wrote, maybe on another machine. Anything but a list of ends counts as none.
    """
    try:
        ends = ends_of(content)
    except (TypeError, ValueError):
        ends = ()
    values = [value for end in ends for value in (end.exit_code, end.signal, end.process) if value is not None]
    is_sound = all(isinstance(value, int) for value in (*values, *(end.rank for end in ends)))
    by_rank = {end.rank: end for end in ends} if is_sound else {}
    return tuple(by_rank.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in node.processes)


def written_ends(node: NodeWork) -> tuple[ProcessEnd, ...]:
    """Return how each rank of a node ended, as the first process of its container wrote it during the run."""
    try:
        return node_ranks_ends(node, json.loads(read_regular(Path(str(node.ends)))))
    except (OSError, ValueError):
        return node_ranks_ends(node, ())


def is_known(end: ProcessEnd) -> bool:
    """Return whether the rank has ended, and how is known."""
    return (end.exit_code, end.signal) != (None, None)


def first_failure(ends: Iterable[ProcessEnd]) -> ProcessEnd | None:
    """Return the end of the first rank that failed by itself."""
    return next((end for end in ends if (end.exit_code or end.signal) and not end.stopped_by_us), None)


def evidence_of(failed: ProcessEnd) -> str:
    """Return a sentence about a rank that failed."""
    if failed.signal is None:
        return f"rank {failed.rank} ended with exit code {failed.exit_code}"
    try:
        name = signal.Signals(failed.signal).name
    except ValueError:
        name = f"signal {failed.signal}"
    return f"rank {failed.rank} was ended by {name}"


def free_port(file: Path = _RANGE) -> int:
    """Return a free port that the kernel gives to no outgoing connection.

    A rank listens on it only seconds later. A port that the kernel chooses may then belong to a connection of another
    process, and the rank cannot listen. `file` has the first and the last port that the kernel gives.
    """
    try:
        end = int(file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        end = _LOWEST
    choose = random.SystemRandom().randrange  # of its own: processes with one seed would choose one port
    with socket.socket() as probe:
        for port in (choose(_LOWEST, end) for _ in range(_TRIES if end > _LOWEST else 0)):
            with suppress(OSError):
                probe.bind(("", port))
                break
        else:
            probe.bind(("", 0))
        return int(probe.getsockname()[1])
