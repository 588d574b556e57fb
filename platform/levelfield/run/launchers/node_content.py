"""What the node's part is given: one JSON object for each node. docs/many-machines.md describes its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from levelfield.contracts.execution import PORT_CHOSEN_AT_START, NodeSource, NodeWork, ProcessWork, Request
from levelfield.plan.environment import STAMP
from levelfield.run.launchers.launched_ranks import request_of
from levelfield.run.runtimes.process_runtime import REMOVED_VARIABLES, launch_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import rendezvous_port
from levelfield.specs.variables import is_secret

SCHEMA = "levelfield.node/1"
SAMPLE_SECONDS = 1.0


def request_for_nodes(plan: Plan, paths: RunPaths, launcher: str, runtime: NodeSource) -> Request:
    """Return the request of all nodes. Its port is a function of the run id. paths: of the run as the nodes see it."""
    request = request_of(plan, paths, launcher, runtime, plan.hardware.nodes, REMOVED_VARIABLES)
    port = rendezvous_port(plan.run_id, launch_of(plan).site.ports)
    return replace(request, nodes=tuple(_with_port(node, port) for node in request.nodes))


def node_content(plan: Plan, paths: RunPaths, request: Request, node: NodeWork, code: str | None) -> dict[str, Any]:
    """Return what one node is given, without secrets. paths: as the node sees them. code: the expected digest."""
    launch, hardware = launch_of(plan), plan.hardware
    return {
        "schema": SCHEMA,
        "run_id": plan.run_id,
        "node_rank": node.node_rank,
        "nodes": hardware.nodes,
        "name": node.name,
        "root": str(paths.root),
        "port": rendezvous_port(plan.run_id, launch.site.ports),
        "first_node": request.nodes[0].address,
        "processes": [_public(process) for process in node.processes],
        "events_dir": request.events_dir,
        "limits": {
            "start_seconds": request.start_seconds,
            "step_seconds": request.step_seconds,
            "heartbeat_seconds": request.heartbeat_seconds,
        },
        "locks": [f"{hardware.vendor}-{index}" for index in hardware.device_indices],
        "samples": {
            "commands": [command.model_dump(mode="json") for command in launch.samples],
            "interval_seconds": SAMPLE_SECONDS,
        },
        "facts": {name: command.model_dump(mode="json") for name, command in launch.facts.items()},
        "expected": _expected(plan, code),
        "inherit": sorted(secrets_of(plan)),
        "removed": list(request.removed_variables),
    }


def secrets_of(plan: Plan) -> dict[str, str]:
    """Return the user's variables that look like secrets. They reach a node outside of every file of the run."""
    return {name: value for name, value in plan.tuning.environment.items() if is_secret(name, value)}


def _expected(plan: Plan, code: str | None) -> dict[str, str | None]:
    """Return what a node checks before it trains: the digests of its code and of its environment, and their places."""
    made = plan.environment.folder
    return {
        "code": code,
        "folder": plan.implementation.folder,
        "environment": plan.environment.digest if made else None,
        "stamp": f"{made}/{STAMP}" if made else None,
    }


def secret_values(request: Request) -> dict[str, str]:
    """Return the ranks' variables that look like secrets, for a launcher that sends them. No submission has them."""
    ranks = (process.environment for node in request.nodes for process in node.processes)
    return {name: value for rank in ranks for name, value in rank.items() if is_secret(name, value)}


def _public(process: ProcessWork) -> Mapping[str, Any]:
    """Return a rank without the variables that look like secrets: the node's part adds them."""
    kept = {name: value for name, value in process.environment.items() if not is_secret(name, value)}
    return asdict(replace(process, environment=kept))


def _with_port(node: NodeWork, port: int) -> NodeWork:
    def filled(process: ProcessWork) -> ProcessWork:
        variables = {k: v.replace(PORT_CHOSEN_AT_START, str(port)) for k, v in process.environment.items()}
        return replace(process, environment=variables)

    return replace(node, processes=tuple(map(filled, node.processes)))
