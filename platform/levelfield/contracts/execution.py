"""The contract between a plan and its processes: launchers reach nodes, runtimes define what runs on a node.

A request is built without side effect, and --dry-run prints it. Only `execute` has effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from levelfield.environment_folder import Say as Say  # for plugins, which import it from here
from levelfield.errors import RunFailed
from levelfield.node.common_work import divide_works
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.variables import mask_secrets
from levelfield.specs.vendor import ContainerOptions

PORT_CHOSEN_AT_START = "{port}"  # in a rank's variables
DISK_IS_FULL = "the disk of its run's folder is full"  # in the evidence of a node whose rank failed
FIRST_NODE = "{first_node}"  # in a rank's variables: the address of node 0, where only the engine knows it
Watch = Callable[[], None]  # what `execute` calls a few times a second
Cause = Literal[
    "exited", "rank-failed", "hang", "interrupted", "launch-error", "environment", "engine", "device-taken",
    "unsupported", "corpus", "preflight", "node-lost", "node-differs", "unreachable", "cancelled", "preempted",
    "time-limit", "code-changed", "inputs-changed", "storage",
]  # fmt: skip
NodeWord = Literal[
    "ended", "failed", "stopped", "lost", "differs", "unreachable", "device-taken", "cancelled", "preempted",
    "time-limit",
]  # fmt: skip


@dataclass(frozen=True)
class ProcessWork:
    """One process: its argv (never a shell string), its additional environment, and the file of its output."""

    rank: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    log: str


@dataclass(frozen=True)
class ContainerWork:
    """The container that a node's processes run in. Folders of the host have the same path inside."""

    name: str
    image: str  # its id, or the tag that it will have
    argv: tuple[str, ...]  # of its first process
    user: str  # numbers, "user:group"
    environment: dict[str, str]
    mounts: dict[str, str]  # path to "rw" or "ro"
    network: str  # "none", "host", or the name of the run's own network, where `address` is this node
    labels: dict[str, str]
    options: ContainerOptions
    memory_bytes: int | None = None  # the limit


@dataclass(frozen=True)
class NodeWork:
    """The work of one node."""

    node_rank: int
    address: str
    processes: tuple[ProcessWork, ...]
    container: ContainerWork | None = None
    file: str | None = None  # in a container, the path where the first process reads which processes to start
    ends: str | None = None  # and the path where it writes how each rank ended
    name: str | None = None  # of the host, where it is known before the start


@dataclass(frozen=True)
class Submission:
    """What a launcher gives to its engine: exactly this, and --dry-run prints it."""

    name: str  # of the node or of the job
    argv: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # text by name, written before the command runs
    # the text for its standard input, without secrets; the secrets of the plan are added when it is sent
    stdin: str | None = None


@dataclass(frozen=True)
class Request:
    """All processes of a run. MASTER_PORT is `{port}` until the start chooses a free port."""

    launcher: str
    runtime: str
    nodes: tuple[NodeWork, ...]
    events_dir: str
    start_seconds: float
    step_seconds: float
    heartbeat_seconds: float
    removed_variables: tuple[str, ...] = ()
    # what a launcher of many machines gives to its engine; none for this machine's own processes
    submissions: tuple[Submission, ...] = ()
    common_stdin: str = ""  # the text that follows the `stdin` of each submission

    def redacted(self) -> Request:
        """Return the request as files and prints show it, without the values of variables that look like secrets."""
        nodes = []
        for node in self.nodes:
            processes = tuple(replace(work, environment=mask_secrets(work.environment)) for work in node.processes)
            container = node.container and replace(node.container, environment=mask_secrets(node.container.environment))
            nodes.append(replace(node, processes=processes, container=container))
        return replace(self, nodes=tuple(nodes))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of request.json, without secrets."""
        content = asdict(self.redacted())
        for node in content["nodes"]:
            if node["name"] is None:
                del node["name"]
        if not self.common_stdin:
            del content["common_stdin"]
        if not self.submissions:
            del content["submissions"]
        elif len(self.nodes) > 1:  # of thousands of ranks: their common values once, as `node/common_work.py` has them
            content["common"], content["nodes"] = divide_works(content["nodes"])
        return content


@dataclass(frozen=True)
class ProcessEnd:
    """How a process ended: its exit code or its signal."""

    rank: int
    exit_code: int | None
    signal: int | None
    stopped_by_us: bool  # the launcher ended it
    process: int | None = None  # the number of a process that did not end by SIGKILL
    state: str | None = None  # the kernel's letter for what that process does


@dataclass(frozen=True)
class NodeEnd:
    """How the part of a run on one node ended."""

    node_rank: int
    name: str
    word: NodeWord
    detail: str | None = None  # the evidence
    missing: tuple[str, ...] = ()  # which evidence of the node is missing


@dataclass(frozen=True)
class Outcome:
    """How a run ended, with its processes' ends and a line of evidence.

    cause `exited`: all processes ended by themselves; `rank-failed`: one failed and the others were stopped;
    `hang`: no heartbeat or no step in time; `interrupted`: by the user; `launch-error`: nothing could be started;
    `environment`: it could not be prepared; `engine`: the connection to the container engine failed;
    `device-taken`: another run uses a device; `unsupported`: this machine cannot run it; `corpus`: the corpus is not
    the one that the plan was made for; `node-lost`: a node or the connection to it went away; `node-differs`: a node
    has other code or another environment; `unreachable`: a node could not be reached; `cancelled`, `preempted`,
    `time-limit`: an engine ended the run, by another's request, for another job, or at its limit; `code-changed`: the
    code is another one than when the plan was made; `inputs-changed`: a file that the platform wrote for the run was
    overwritten; `storage`: the run directory could not be read or written.
    """

    cause: Cause
    ends: tuple[ProcessEnd, ...] = ()
    evidence: str | None = None
    oom_kills: int = 0  # how many processes of the run the kernel killed for memory
    oom_evidence: str | None = None  # how that is known
    warnings: tuple[str, ...] = ()  # sentences for the result
    # The platform fills in the next three. The window as it saw it, by rank (rundir/follower.py).
    seen: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    # The digest of the code, by where and when it was read (run/input_watch.py).
    code: Mapping[str, str] = field(default_factory=dict)
    # Digests of files that ranks imported and `code` does not cover, by path; None: nobody looked for them.
    uncovered_imports: Mapping[str, str] | None = None
    nodes: tuple[NodeEnd, ...] = ()  # how each node's part ended, for a launcher of many machines

    def to_dict(self) -> dict[str, Any]:
        """Return the content of outcome.json."""
        kills = str(self.oom_kills or "")
        extra = {"warnings": "\n".join(self.warnings), "oom_kills": kills, "oom_evidence": self.oom_evidence}
        optional = {
            "seen": self.seen,
            "code": self.code,
            "elsewhere": [{"path": path, "sha256": digest} for path, digest in (self.uncovered_imports or {}).items()],
            "nodes": [{**asdict(node), "missing": list(node.missing)} for node in self.nodes],
        }
        ends = [asdict(end) for end in self.ends]
        for end in ends:
            if end["process"] is None:  # it ended by SIGKILL at the latest
                del end["process"], end["state"]
        return {
            "cause": self.cause,
            "ends": ends,
            "evidence": self.evidence,
            "extra": {name: text for name, text in extra.items() if text},
            **{name: content for name, content in optional.items() if content},
        }


class NodesNotReady(RunFailed):
    """A node of a run cannot be prepared. cause: of the outcome; nodes: how each node's part ended."""

    def __init__(self, cause: Cause, evidence: str, nodes: tuple[NodeEnd, ...]) -> None:
        super().__init__(evidence)
        self.cause, self.nodes = cause, nodes


class NodeSource(Protocol):
    """A planner of a node's work, without side effect."""

    name: str

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the work of one node, without side effect."""
        ...


class Runtime(NodeSource, Protocol):
    """The surroundings of a node's processes: a Python environment or a container."""

    def in_use(self, plan: Plan, say: Say) -> AbstractContextManager[ReadyRuntime]:
        """Prepare the plan's environment and lock it for the block. Raises RunFailed or UsageError."""
        ...


class ReadyRuntime(NodeSource, Protocol):
    """A runtime whose environment exists and stays until the run has ended."""

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        """Return the output of a short command in the environment. Raises OSError or subprocess.SubprocessError."""
        ...

    def write_files(self, plan: Plan, paths: RunPaths) -> None:
        """Write further files to the run directory, such as an image's recipe."""
        ...

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the current state of the environment, for provenance: package versions, image, engine."""
        ...


class Launcher(Protocol):
    """The way to reach nodes."""

    name: str

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request: ...

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Run until the end and call `watch` a few times a second. No process stays that SIGKILL can end."""
        ...


class RemoteLauncher(Launcher, Protocol):
    """A launcher that reaches other machines. Its plan has `launch`."""

    def runtime(self, plan: Plan) -> Runtime:
        """Return the surroundings of the nodes' processes, without side effect."""
        ...
