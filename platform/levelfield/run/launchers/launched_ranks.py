"""What all launchers share: the request and the port before the ranks start, and the evidence after they end."""

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

_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000  # below it are services that start on demand
_PORT_TRIES = 50


def build_request(
    plan: Plan,
    paths: RunPaths,
    launcher: str,
    runtime: NodeSource,
    node_count: int,
    removed_variables: tuple[str, ...] = (),
) -> Request:
    """Return a request with the case's limits. removed_variables: the user's variables that no rank gets."""
    limits = plan.work.limits
    return Request(
        launcher=launcher,
        runtime=runtime.name,
        nodes=tuple(runtime.node(plan, paths, node_rank) for node_rank in range(node_count)),
        events_dir=str(paths.events),
        start_seconds=limits.start_seconds,
        step_seconds=limits.step_seconds,
        heartbeat_seconds=limits.heartbeat_seconds,
        removed_variables=removed_variables,
    )


def fill_in_port(process: ProcessWork, port: int) -> dict[str, str]:
    """Return the process's variables with the rendezvous port."""
    return {key: value.replace(PORT_CHOSEN_AT_START, str(port)) for key, value in process.environment.items()}


def parse_process_ends(content: Iterable[Mapping[str, Any]]) -> tuple[ProcessEnd, ...]:
    """Return the ends that JSON objects describe. Raises TypeError."""
    return tuple(ProcessEnd(**end) for end in content)


def parse_rank_ends(node: NodeWork, content: Any) -> tuple[ProcessEnd, ...]:
    """Return how each rank of a node ended. An unknown end, as of a lost rank, has no values.

    content: what the node's agent wrote, maybe on another machine. Anything but a list of ends counts as none.
    """
    try:
        ends = parse_process_ends(content)
    except (TypeError, ValueError):
        ends = ()
    values = [value for end in ends for value in (end.exit_code, end.signal, end.process) if value is not None]
    is_valid = all(isinstance(value, int) for value in (*values, *(end.rank for end in ends)))
    ends_by_rank = {end.rank: end for end in ends} if is_valid else {}
    return tuple(ends_by_rank.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in node.processes)


def read_rank_ends(node: NodeWork) -> tuple[ProcessEnd, ...]:
    """Read how each rank of a node ended, as the first process of its container wrote it during the run."""
    try:
        return parse_rank_ends(node, json.loads(read_regular(Path(str(node.ends)), "node")))
    except (OSError, ValueError):
        return parse_rank_ends(node, ())


def is_exit_known(end: ProcessEnd) -> bool:
    """Return whether it is known how the rank ended."""
    return (end.exit_code, end.signal) != (None, None)


def first_failure(ends: Iterable[ProcessEnd]) -> ProcessEnd | None:
    """Return the end of the first rank that failed by itself."""
    return next((end for end in ends if (end.exit_code or end.signal) and not end.stopped_by_us), None)


def failure_evidence(failed: ProcessEnd) -> str:
    """Return a sentence about a rank that failed."""
    if failed.signal is None:
        return f"rank {failed.rank} ended with exit code {failed.exit_code}"
    try:
        name = signal.Signals(failed.signal).name
    except ValueError:
        name = f"signal {failed.signal}"
    return f"rank {failed.rank} was ended by {name}"


def find_free_port(range_file: Path = _PORT_RANGE_FILE) -> int:
    """Return a free port that the kernel gives to no outgoing connection.

    A rank listens on it only seconds later. A port that the kernel chooses may then belong to a connection of another
    process, and the rank cannot listen. range_file: has the first and the last port that the kernel so chooses.
    """
    try:
        first_kernel_port = int(range_file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        first_kernel_port = _LOWEST_PORT
    choose_port = random.SystemRandom().randrange  # without a seed: processes with one seed would choose the same port
    tries = _PORT_TRIES if first_kernel_port > _LOWEST_PORT else 0
    with socket.socket() as probe:
        for port in (choose_port(_LOWEST_PORT, first_kernel_port) for _ in range(tries)):
            with suppress(OSError):
                probe.bind(("", port))
                break
        else:
            probe.bind(("", 0))
        return int(probe.getsockname()[1])
