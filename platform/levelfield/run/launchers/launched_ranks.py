"""What every launcher makes of its ranks: a request before their start, and evidence after their end."""

from __future__ import annotations

import signal
from typing import Any

from levelfield.contracts.execution import PORT_CHOSEN_AT_START, NodeSource, ProcessEnd, ProcessWork, Request
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


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
