"""The argv and the variables of one rank, the same in every runtime."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.contracts.execution import PORT_CHOSEN_AT_START, ProcessWork
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

# Prints the packages of the Python that runs it, as name==version. -I ignores the caller's variables.
LISTING = (
    "-I",
    "-c",
    "from importlib.metadata import distributions as d; "
    "print(*sorted({'%s==%s' % (m['Name'], m['Version']) for m in (x.metadata for x in d())}))",  # each is parsed once
)


def ranks_of(plan: Plan, node_rank: int) -> range:
    per_node = plan.hardware.devices_per_node
    return range(node_rank * per_node, (node_rank + 1) * per_node)


def worker_path(code: Path) -> dict[str, str]:
    """Return the variable by which a framework's Python finds the worker. code: has platform/."""
    return {"PYTHONPATH": str(code / "platform")}


@dataclass(frozen=True)
class NodeFolders:
    """The folders of a node. code: has platform/. implementation: of the framework. python: an executable."""

    code: Path
    implementation: str
    python: str


def folders_here(plan: Plan) -> NodeFolders:
    """Return the folders of this machine."""
    return NodeFolders(checkout(), plan.implementation.folder, plan.environment.python)


def rank_work(
    plan: Plan, paths: RunPaths, rank: int, address: str, visible: dict[str, str], folders: NodeFolders | None = None
) -> ProcessWork:
    """Return the work of one rank: its complete argv and all its variables. `address`: of rank 0.

    paths: of the run on the rank's node. folders: of that node; by default this machine's.
    """
    folders = folders or folders_here(plan)
    per_node = plan.hardware.devices_per_node
    values = {
        "python": folders.python,
        "folder": folders.implementation,
        "rank": rank,
        "local_rank": rank % per_node,
        "node_rank": rank // per_node,
        "world_size": plan.world_size,
    }
    own = {key: text.format_map(values) for key, text in plan.implementation.environment.items()}
    return ProcessWork(
        rank=rank,
        argv=tuple(text.format_map(values) for text in plan.implementation.argv),
        environment={
            **_place(plan, rank, address),
            **_threads(plan),
            **visible,
            **own,
            **plan.hardware.environment,
            **plan.tuning.environment,
        }
        | {"LEVELFIELD_JOB": str(paths.job), **worker_path(folders.code)}
        | _reporting(plan, paths, rank, folders.code),
        log=str(paths.logs / f"rank{rank}.log"),
    )


def imports_file(paths: RunPaths, rank: int) -> Path:
    """Return where a rank writes what it imported from elsewhere."""
    return paths.logs / f"rank{rank}.imported.json"


def _reporting(plan: Plan, paths: RunPaths, rank: int, code: Path) -> dict[str, str]:
    """Return the variables by which a rank of this machine reports what it imported."""
    if plan.launch is not None:
        return {}
    start = code / "platform" / "levelfield" / "node" / "imported"
    both = os.pathsep.join((worker_path(code)["PYTHONPATH"], str(start)))
    return {"PYTHONPATH": both, "LEVELFIELD_IMPORTS_FILE": str(imports_file(paths, rank))}


def _place(plan: Plan, rank: int, address: str) -> dict[str, str]:
    per_node = plan.hardware.devices_per_node
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_RANK": str(rank % per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "NODE_RANK": str(rank // per_node),
        "MASTER_ADDR": address,
        "MASTER_PORT": PORT_CHOSEN_AT_START,
        "PYTHONUNBUFFERED": "1",
    }


def _threads(plan: Plan) -> dict[str, str]:
    threads = plan.tuning.threads
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads)}


def packages(listed: str) -> dict[str, str]:
    """Return the output of LISTING as versions by name."""
    return dict(item.split("==", 1) for item in listed.split())
