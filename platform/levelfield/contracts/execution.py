"""How a plan becomes processes: launchers reach nodes, runtimes say what runs on one.

A request is built without side effect and is what --dry-run prints; only `execute` acts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

PORT_CHOSEN_AT_START = "{port}"
Watch = Callable[[], None]


@dataclass(frozen=True)
class ProcessWork:
    """One process: its argv (never a shell string), what its environment adds, and where its output goes."""

    rank: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class NodeWork:
    """What one node runs."""

    node_rank: int
    address: str
    processes: tuple[ProcessWork, ...]


@dataclass(frozen=True)
class Request:
    """All that will be started. MASTER_PORT is `{port}` until a free one is chosen at the start."""

    launcher: str
    runtime: str
    nodes: tuple[NodeWork, ...]
    events_dir: str
    start_seconds: float
    step_seconds: float
    heartbeat_seconds: float
    removed_variables: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended: an exit code, or the signal that ended it; `stopped_by_us`: the launcher did."""

    rank: int
    exit_code: int | None
    signal: int | None
    stopped_by_us: bool


@dataclass(frozen=True)
class Outcome:
    """cause `exited`: all by themselves; `rank-failed`: one did not end well and the others were stopped;
    `hang`: no heartbeat or no step in time; `interrupted`: by the user; `launch-error`: nothing could be started;
    `environment`: it could not be made ready."""

    cause: Literal["exited", "rank-failed", "hang", "interrupted", "launch-error", "environment"]
    ends: tuple[ProcessEnd, ...] = ()
    evidence: str | None = None
    extra: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Runtime(Protocol):
    """What a node runs in: a Python environment, or a container."""

    name: str

    def in_use(self, plan: Plan, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Make the plan's environment ready beside other runs, and keep it so. Raises RunFailed or UsageError."""
        ...

    def process(self, plan: Plan, paths: RunPaths, rank: int) -> ProcessWork:
        """The work of one rank, without side effect."""
        ...


class Launcher(Protocol):
    """How nodes are reached."""

    name: str

    def request(self, plan: Plan, paths: RunPaths, runtime: Runtime) -> Request: ...

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Run until the end, calling `watch` a few times a second; leaves no process behind, whatever happens."""
        ...
