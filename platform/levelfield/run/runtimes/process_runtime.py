"""A rank as a process: its argv and its environment variables, on this machine and on a launcher's nodes.

Runtime `inside` is for a machine that is already a container: the vendor's image has the framework, and no environment
is created.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.catalog.machine import usable_cores
from levelfield.checkout import checkout
from levelfield.contracts.command import run_bounded
from levelfield.contracts.execution import PORT_CHOSEN_AT_START, NodeWork, ProcessWork, ReadyRuntime, Say
from levelfield.node.peer_calls import INTERFACE_VARIABLES
from levelfield.run.runtimes.environments import use_environment
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import LaunchPlan

LIST_PACKAGES_SECONDS = 60.0
REMOVED_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "LEVELFIELD_BOOTSTRAPPED", "GROUP_RANK",
    "TORCHELASTIC_RUN_ID", "ROCR_VISIBLE_DEVICES",  # the plan chose its devices by it (outer_devices_variable)
)  # fmt: skip
# Prints the packages of the Python that runs it, as name==version. -I ignores the caller's variables.
_LIST_PACKAGES_ARGUMENTS = (
    "-I",
    "-c",
    "from importlib.metadata import distributions as d; "
    "print(*sorted({'%s==%s' % (m['Name'], m['Version']) for m in (x.metadata for x in d())}))",  # each is parsed once
)


class ProcessRuntime:
    """Ranks as processes of this machine, in the framework's own Python environment."""

    name = "process"

    @contextmanager
    def in_use(self, plan: Plan, say: Say) -> Iterator[ProcessRuntime]:
        with use_environment(plan.environment, say):
            yield self

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        ranks = plan.ranks_of(node_rank)
        rank_works = (rank_work(plan, paths, rank, "127.0.0.1", plan.hardware.visible) for rank in ranks)
        return NodeWork(node_rank, "127.0.0.1", tuple(rank_works))

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        return command_output(argv, environment, seconds)

    def write_files(self, plan: Plan, paths: RunPaths) -> None:
        """Write nothing: a process has no files of its own."""

    def identity(self, plan: Plan) -> dict[str, Any]:
        try:
            return {"environment_packages": list_packages(self, plan, LIST_PACKAGES_SECONDS)}
        except (OSError, subprocess.SubprocessError, ValueError):
            return {"environment_packages": None}


class InsideRuntime(ProcessRuntime):
    name = "inside"

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the packages, and the files that identify this machine as a container."""
        markers = [path for path in ("/.dockerenv", "/run/.containerenv") if Path(path).exists()]
        return {**super().identity(plan), "container": {"signs": markers}}


def command_output(argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
    """Return the output of a command of this machine. Raises OSError or subprocess.SubprocessError."""
    completed = run_bounded(argv, seconds, {**inherited_variables(), **worker_pythonpath(checkout()), **environment})
    completed.check_returncode()
    return completed.stdout


def inherited_variables(environment: dict[str, str] | None = None) -> dict[str, str]:
    """Return the user's variables without those that would change the training's Python or look like a launcher's."""
    variables = dict(os.environ) if environment is None else environment
    return {key: value for key, value in variables.items() if key not in REMOVED_VARIABLES}


def worker_pythonpath(code_folder: Path) -> dict[str, str]:
    """Return the variable by which a framework's Python finds the worker. code_folder: the checkout."""
    return {"PYTHONPATH": str(code_folder / "platform")}


@dataclass(frozen=True)
class NodeFolders:
    """Where a node has the code and the interpreter."""

    code: Path  # the checkout, which contains platform/
    implementation: str  # the folder of the framework's implementation
    python: str  # the path of an executable


def rank_work(
    plan: Plan,
    paths: RunPaths,
    rank: int,
    first_node_address: str,
    device_variables: dict[str, str],
    folders: NodeFolders | None = None,
) -> ProcessWork:
    """Return the work of one rank: its complete argv and all its variables.

    device_variables: show the rank its devices. paths: of the run on the rank's node. folders: of that node; by default
    this machine's.
    """
    folders = folders or NodeFolders(checkout(), plan.implementation.folder, plan.environment.python)
    devices_per_node, threads = plan.hardware.devices_per_node, plan.tuning.threads
    if threads is None and plan.launch is None:  # a launcher's node divides its own cores among its ranks
        threads = max(1, usable_cores() // plan.world_size)
    node_rank, local_rank = divmod(rank, devices_per_node)
    placeholders = {
        "python": folders.python,
        "folder": folders.implementation,
        "rank": rank,
        "local_rank": local_rank,
        "node_rank": node_rank,
        "world_size": plan.world_size,
    }
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(devices_per_node),
        "NODE_RANK": str(node_rank),
        "MASTER_ADDR": first_node_address,
        "MASTER_PORT": PORT_CHOSEN_AT_START,
        "PYTHONUNBUFFERED": "1",
        **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
        **device_variables,
        **{name: text.format_map(placeholders) for name, text in plan.implementation.environment.items()},
        **plan.hardware.environment,
        **plan.tuning.environment,
        "LEVELFIELD_JOB": str(paths.job),
        **worker_pythonpath(folders.code),
    }
    if plan.launch is None:  # a rank of this machine reports what it imported
        environment["PYTHONPATH"] += os.pathsep + str(folders.code / "platform/levelfield/node/imported")
        environment["LEVELFIELD_IMPORTS_FILE"] = str(imports_file(paths, rank))
    return ProcessWork(
        rank=rank,
        argv=tuple(text.format_map(placeholders) for text in plan.implementation.argv),
        environment=environment,
        log=str(paths.logs / f"rank{rank}.log"),
    )


def imports_file(paths: RunPaths, rank: int) -> Path:
    """Return where a rank writes which modules it imported from outside the environment and the checkout."""
    return paths.logs / f"rank{rank}.imported.json"


def list_packages(runtime: ReadyRuntime, plan: Plan, seconds: float) -> dict[str, str]:
    """Return the versions of the environment's packages by name. Raises as the runtime's `output`, and ValueError."""
    printed = runtime.output(plan, [plan.environment.python, *_LIST_PACKAGES_ARGUMENTS], {}, seconds)
    return dict(item.split("==", 1) for item in printed.split())


class NodeRuntime(ProcessRuntime):
    """The ranks of nodes that share this machine's folders: its checkout, environments and runs.

    first_node_address: where ranks reach node 0; FIRST_NODE where a launcher only knows it at the start.
    """

    def __init__(self, first_node_address: str, folders: NodeFolders | None = None) -> None:
        self._first_node_address, self._folders = first_node_address, folders

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the work of one node. paths: of the run as the node sees it."""
        launch, first_node = require_launch(plan), self._first_node_address
        host = launch.hosts[node_rank] if launch.hosts else None
        device_variables = {**plan.hardware.visible, **launch.site.environment}
        if interface := launch.interface_of(host) if host else launch.site.interface:
            device_variables |= dict.fromkeys(INTERFACE_VARIABLES, interface)
        rank_works = (
            rank_work(plan, paths, rank, first_node, device_variables, self._folders)
            for rank in plan.ranks_of(node_rank)
        )
        return NodeWork(
            node_rank=node_rank,
            address=host.peer_address if host else first_node if node_rank == 0 else f"node{node_rank}",
            processes=tuple(rank_works),
            name=host.name if host else f"node{node_rank}",
        )


def require_launch(plan: Plan) -> LaunchPlan:
    """Return the plan's LaunchPlan. A plan for this machine alone, which has none, is a fault of the caller."""
    assert plan.launch is not None, "a plan for a launcher of many machines has `launch`"
    return plan.launch
