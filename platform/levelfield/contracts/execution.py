"""How a plan becomes processes: launchers reach nodes, runtimes say what runs on one.

A request is built without side effect and is what --dry-run prints; only `execute` acts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from levelfield.specs.container import ContainerOptions
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

PORT_CHOSEN_AT_START = "{port}"
Watch = Callable[[], None]
Cause = Literal[
    "exited", "rank-failed", "hang", "interrupted", "launch-error", "environment", "engine", "device-taken",
    "unsupported",
]  # fmt: skip


@dataclass(frozen=True)
class ProcessWork:
    """One process: its argv (never a shell string), what its environment adds, and where its output goes."""

    rank: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class ContainerWork:
    """The container that a node's processes run in. Folders of the host are at the same path within.

    image: its id, or the tag it would have. argv: its first process. user: numbers, "user:group". mounts: path to
    "rw" or "ro". network: "none", "host", or the name of the run's own network, in which this node is `address`.
    memory_bytes: the limit; None for none. The rest has the meaning of contracts.vendor.ContainerOptions.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    user: str
    environment: dict[str, str]
    mounts: dict[str, str]
    network: str
    labels: dict[str, str]
    options: ContainerOptions
    memory_bytes: int | None = None


@dataclass(frozen=True)
class NodeWork:
    """What one node runs. Of a container, `file` tells its first process what to start, and it writes to `ends` how
    each rank ended."""

    node_rank: int
    address: str
    processes: tuple[ProcessWork, ...]
    container: ContainerWork | None = None
    file: str | None = None
    ends: str | None = None


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
    `environment`: it could not be made ready; `engine`: the container engine went away; `device-taken`: another run
    uses a device; `unsupported`: this machine cannot run it.
    oom_kills: how many processes of the run the kernel killed for memory. warnings: sentences for the result."""

    cause: Cause
    ends: tuple[ProcessEnd, ...] = ()
    evidence: str | None = None
    oom_kills: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The content of outcome.json."""
        extra = {"warnings": "\n".join(self.warnings)} if self.warnings else {}
        extra |= {"oom_kills": str(self.oom_kills)} if self.oom_kills else {}
        ends = [asdict(end) for end in self.ends]
        return {"cause": self.cause, "ends": ends, "evidence": self.evidence, "extra": extra}


class NodeSource(Protocol):
    """What plans the work of a node, without side effect."""

    name: str

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """The work of one node, without side effect."""
        ...


class Runtime(NodeSource, Protocol):
    """What a node runs in: a Python environment, or a container."""

    def in_use(self, plan: Plan, say: Callable[[str], None]) -> AbstractContextManager[ReadyRuntime]:
        """Make the plan's environment ready and keep it until the block ends. Raises RunFailed or UsageError."""
        ...


class ReadyRuntime(NodeSource, Protocol):
    """A runtime whose environment exists and stays until the run has ended."""

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        """What a short command prints in the environment. Raises OSError or subprocess.SubprocessError."""
        ...

    def keep(self, plan: Plan, paths: RunPaths) -> None:
        """Leave in the run directory what else belongs to it, such as an image's recipe."""
        ...

    def identity(self, plan: Plan) -> dict[str, Any]:
        """What the processes run in, as it is now, for provenance: package versions, image, engine."""
        ...


class Launcher(Protocol):
    """How nodes are reached."""

    name: str

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request: ...

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Run until the end, calling `watch` a few times a second; leaves no process behind, whatever happens."""
        ...
