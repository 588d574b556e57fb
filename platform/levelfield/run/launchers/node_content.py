"""What nodes get: their work as one JSON object each (docs/many-machines.md), and code and wheels as archives."""

from __future__ import annotations

import io
import json
import mmap
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import levelfield
from levelfield import installer
from levelfield.contracts.execution import NodeSource, NodeWork, Request
from levelfield.errors import UsageError
from levelfield.node.code_digest import shared_folders, source_files
from levelfield.node.common_work import COMMON_FILE, COMMON_KEY, NEXT_LINE, divide_works, join_work
from levelfield.plan.environment import STAMP
from levelfield.run.launchers.launched_ranks import build_request, fill_in_port
from levelfield.run.runtimes.process_runtime import REMOVED_VARIABLES, require_launch
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import LaunchPlan, rendezvous_port
from levelfield.specs.variables import is_secret

SCHEMA = "levelfield.node/1"
# Seconds between two samples of a node: one, but on many nodes their files would have gigabytes an hour. Gaps of more
# than LONGEST_GAP_SECONDS do not count as measured, and a tool takes up to a second.
MIN_SAMPLE_INTERVAL_SECONDS, MAX_SAMPLE_INTERVAL_SECONDS = 1.0, 4.0
MAX_SAMPLES_A_SECOND = 250  # of all nodes
TAR_FORMAT = tarfile.GNU_FORMAT  # has names of any length, and no time of the packing


def request_for_nodes(plan: Plan, paths: RunPaths, launcher: str, runtime: NodeSource) -> Request:
    """Return the request of all nodes. Its port is a function of the run id. paths: of the run as the nodes see it."""
    request = build_request(plan, paths, launcher, runtime, plan.hardware.nodes, REMOVED_VARIABLES)
    port = rendezvous_port(plan.run_id, require_launch(plan).site.ports)
    nodes = []
    for node in request.nodes:
        processes = (replace(process, environment=fill_in_port(process, port)) for process in node.processes)
        nodes.append(replace(node, processes=tuple(processes)))
    return replace(request, nodes=tuple(nodes))


def node_content(
    plan: Plan, paths: RunPaths, request: Request, node: NodeWork, expected_code: str | None
) -> dict[str, Any]:
    """Return the work of one node as JSON, without secrets. paths: as the node sees them. expected_code: its digest."""
    launch, hardware, environment_folder = require_launch(plan), plan.hardware, plan.environment.folder
    # without the variables that look like secrets: the node's agent adds them
    public_processes = [
        (process, {name: value for name, value in process.environment.items() if not is_secret(name, value)})
        for process in node.processes
    ]
    # how a node finds the NUMA domains of its devices; ranks on shares of a host are bound to none
    binding = None if hardware.is_host or launch.site.bind == "none" else {"pci_vendor": launch.pci_vendor}
    return {
        "schema": SCHEMA,
        "run_id": plan.run_id,
        "node_rank": node.node_rank,
        "nodes": hardware.nodes,
        "name": node.name,
        "root": str(paths.root),
        "port": rendezvous_port(plan.run_id, launch.site.ports),
        "first_node": request.nodes[0].address,
        "peer": _peer_address(launch, node.node_rank),
        "processes": [{**vars(process), "environment": environment} for process, environment in public_processes],
        "events_dir": request.events_dir,
        "limits": {
            "start_seconds": request.start_seconds,
            "step_seconds": request.step_seconds,
            "heartbeat_seconds": request.heartbeat_seconds,
        },
        "locks": [f"{hardware.vendor}-{index}" for index in hardware.device_indices],
        "samples": {
            "commands": [command.model_dump(mode="json") for command in launch.samples],
            "interval_seconds": sample_interval_seconds(hardware.nodes),
        },
        "facts": {name: command.model_dump(mode="json") for name, command in launch.facts.items()},
        "binding": binding,
        "expected": {  # the digests of code and environment, which a node checks before it trains, and their places
            "code": expected_code,
            "folder": plan.implementation.folder,
            "environment": plan.environment.digest if environment_folder else None,
            "stamp": f"{environment_folder}/{STAMP}" if environment_folder else None,
        },
        "inherit": sorted(secrets_of(plan)),
        "removed": list(request.removed_variables),
    }


def sample_interval_seconds(nodes: int) -> float:
    """Return the seconds between two samples of each of so many nodes."""
    return min(max(MIN_SAMPLE_INTERVAL_SECONDS, nodes / MAX_SAMPLES_A_SECOND), MAX_SAMPLE_INTERVAL_SECONDS)


def work_files(contents: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the JSON of each node by file name, and of what all have in common where they are several."""
    files = {}
    if len(contents) > 1:
        common, rests = divide_works(contents)
        files[COMMON_FILE] = json.dumps(common, indent=1, ensure_ascii=False) + "\n"
        contents = [{COMMON_KEY: COMMON_FILE, **rest} for rest in rests]
    indent = None if files else 1
    return {
        **files,
        **{
            f"node{node}.json": json.dumps(content, indent=indent, ensure_ascii=False) + "\n"
            for node, content in enumerate(contents)
        },
    }


def work_lines(contents: Sequence[dict[str, Any]]) -> tuple[list[str], str]:
    """Return the first line of each node's standard input, and the second one, which all nodes get.

    The second one is empty for a single node.
    """
    if len(contents) == 1:
        return [json.dumps(contents[0]) + "\n"], ""
    common, rests = divide_works(contents)
    return [json.dumps({COMMON_KEY: NEXT_LINE, **rest}) + "\n" for rest in rests], json.dumps(common) + "\n"


def sent_works(request: Request) -> list[dict[str, Any]]:
    """Return the work of each node of a request whose submissions have `work_lines`."""
    works = [json.loads(submission.stdin or "{}") for submission in request.submissions]
    if not request.common_stdin:
        return works
    common = json.loads(request.common_stdin)
    for work in works:
        work.pop(COMMON_KEY)
    return [join_work(common, work) for work in works]


def sparse_works(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what all nodes have in common, and what a node has beside its number, by that number as text.

    Each node gets all of it. So what a node can tell by its number is not in it.
    """
    common, rests = divide_works(contents)
    for rest in rests:
        rest.pop("node_rank", None)
    return {"common": common, "nodes": {str(node): rest for node, rest in enumerate(rests) if rest}}


def _peer_address(launch: LaunchPlan, node_rank: int) -> str | None:
    """Return an address of another node, which shows a node the interface of its collectives.

    None where the interface is named, and where no other host is known.
    """
    if len(launch.hosts) < 2 or launch.interface_of(launch.hosts[node_rank]):
        return None
    return launch.hosts[1 if node_rank == 0 else 0].peer_address


def secrets_of(plan: Plan) -> dict[str, str]:
    """Return the user's variables that look like secrets. They reach a node without any file of the run."""
    return {name: value for name, value in plan.tuning.environment.items() if is_secret(name, value)}


def secret_values(request: Request) -> dict[str, str]:
    """Return the ranks' variables that look like secrets, for a launcher that sends them beside its submissions."""
    ranks = (process.environment for node in request.nodes for process in node.processes)
    return {name: value for rank in ranks for name, value in rank.items() if is_secret(name, value)}


def code_archive(implementation: Path) -> bytes:
    """Return platform/levelfield/{worker,node}, and models/ with the implementation and the folders that it imports.

    It has no times, owners or modes of this machine.
    """
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=TAR_FORMAT) as archive:
        package = Path(levelfield.__file__).parent
        folders = {f"platform/levelfield/{room}": package / room for room in ("worker", "node")}
        folders |= {f"models/{path.name}": path for path in (implementation, *shared_folders(implementation))}
        members = {"platform/levelfield/__init__.py": package / "__init__.py"}
        for name, folder in folders.items():
            members |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in source_files(folder)}
        for name, path in sorted(members.items()):
            _add_file(archive, name, path)
    return output.getvalue()


def wheels_archive(folder: Path) -> memoryview:
    """Return an archive of a folder's wheels, backed by a file without a name: it may have gigabytes."""
    with tempfile.TemporaryFile() as output:
        with tarfile.open(fileobj=output, mode="w", format=TAR_FORMAT) as archive:
            for path in wheel_files(folder):
                _add_file(archive, path.name, path)
        output.flush()
        return memoryview(mmap.mmap(output.fileno(), 0, access=mmap.ACCESS_READ))


def wheel_files(folder: Path) -> list[Path]:
    """Return what pip may install of a folder. Raises UsageError for a folder without any, and OSError."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".gz") and path.is_file())
    if not files:
        raise UsageError(
            f"{installer.WHEELS}={folder}: found no wheel there. Make them with network: `environment wheels fetch "
            f"{folder}`"
        )
    return files


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = path.stat().st_size, 0o644
    with path.open("rb") as file:
        archive.addfile(member, file)
