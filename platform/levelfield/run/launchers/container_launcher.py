"""Launcher `containers`: every node is a container of one engine. It watches them until the last one has ended."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.contracts.execution import (
    Cause,
    ContainerWork,
    NodeSource,
    Outcome,
    ProcessEnd,
    Request,
    Say,
    Watch,
)
from levelfield.errors import RunFailed
from levelfield.node.process_identity import identify_process, is_alive
from levelfield.node.rank_processes import KILL_SECONDS, SETTLE_SECONDS, TERMINATE_SECONDS, process_state
from levelfield.run.launchers.launched_ranks import (
    build_request,
    failure_evidence,
    fill_in_port,
    find_free_port,
    first_failure,
    is_exit_known,
    read_rank_ends,
)
from levelfield.run.launchers.liveness import Liveness, wait_until
from levelfield.run.runtimes.engine import (
    OWNER_LABEL,
    SILENT_TIMEOUT_SECONDS,
    EngineError,
    connect,
    connect_or_fail,
    engine_errors,
    owner_label,
    remove_leftovers,
    running_container,
    shorten_timeout,
)
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

POLL_SECONDS = 0.3
STOP_SECONDS = int(SETTLE_SECONDS + TERMINATE_SECONDS + 2)
END_POLL_SECONDS = 0.1  # between two looks at first processes that are being ended


class ContainerLauncher:
    """Launches each node as a container of the local engine."""

    name = "containers"

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """Return the request with a container for each node. No side effect."""
        return build_request(plan, paths, self.name, runtime, plan.hardware.nodes)

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all containers and wait. Containers and network are removed before it returns or raises. If the engine
        is gone, their processes are ended, and the next start removes them."""
        not_removed: list[str] = []
        try:
            port = find_free_port()
            mask = os.umask(0o077)  # the user's mask can only be read by setting another one; this one is the strictest
            os.umask(mask)
            for node in request.nodes:  # write what the first process of its container starts
                processes = [{**asdict(p), "environment": fill_in_port(p, port)} for p in node.processes]
                file = Path(str(node.file))
                file.parent.mkdir(exist_ok=True)
                content = {"processes": processes, "ends": node.ends, "umask": mask}
                file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            return Outcome("launch-error", (), f"{error.filename or 'the run directory'}: {error.strerror}")
        try:
            with connect() as client, engine_errors(), ExitStack() as stack:
                outcome = self._run(client, request, watch, stack, not_removed)
        except EngineError as error:
            outcome = Outcome("engine", _rank_ends(request, {}), f"the container engine: {error}")
        except RunFailed as error:
            outcome = Outcome("engine", (), str(error))
        return _end_leftover_processes(request, outcome, not_removed) if not_removed else outcome

    def remove_leftovers(self, say: Say) -> None:
        """Remove the containers and networks of runs whose platform was killed, as the next run would."""
        try:
            with connect_or_fail() as client:
                remove_leftovers(client, say)
        except RunFailed as error:
            say(f"containers of a killed run stay until the next run with --runtime docker: {error}")

    def _run(
        self, client: DockerClient, request: Request, watch: Watch, stack: ExitStack, not_removed: list[str]
    ) -> Outcome:
        """Run all containers and return how they ended.

        not_removed: receives the names of the containers that the engine did not remove.
        """
        from docker.errors import APIError

        works = [node.container for node in request.nodes if node.container]  # each node of this launcher has one
        for network in sorted({work.network for work in works} - {"none", "host"}):
            stack.enter_context(_network(client, network))
        containers: dict[int, Container] = {}
        warnings: list[str] = []
        try:
            for node, work in zip(request.nodes, works, strict=True):
                container, option_warnings = stack.enter_context(
                    running_container(client, work, node.address, not_removed)
                )
                containers[node.node_rank] = container
                warnings += option_warnings
            outcome = _supervise(request, containers, Liveness(request), watch)
        except OSError as error:
            if error.filename is None:  # an error of the connection to the engine, not of the run's files
                if not isinstance(error, APIError):  # an engine that answers still removes its containers
                    shorten_timeout(client, SILENT_TIMEOUT_SECONDS)
                raise
            outcome = _stop_containers(request, containers, "storage", f"{error.filename}: {error.strerror}")
        except KeyboardInterrupt:
            shorten_timeout(client)
            try:
                with engine_errors():
                    outcome = _stop_containers(request, containers, "interrupted", "interrupted by the user")
            except EngineError as error:
                shorten_timeout(client, SILENT_TIMEOUT_SECONDS)
                warning = f"the container engine did not answer an interrupt ({error})"
                return Outcome("interrupted", _rank_ends(request, {}), "interrupted by the user", warnings=(warning,))
        for node in request.nodes:  # the first processes of containers print nothing in a good run
            if node.node_rank in containers and (output := containers[node.node_rank].logs()):
                with suppress(OSError):  # a full disk: the ranks' own files show it
                    (Path(node.processes[0].log).parent / f"node{node.node_rank}.log").write_bytes(output)
        # the flag counts only beside a killed rank: the kernel may have killed a child, and the rank went on
        kill_count = sum(bool(c.attrs["State"]["OOMKilled"]) for c in containers.values())
        evidence = "the engine reports that its container ran out of memory" if kill_count else None
        return replace(outcome, oom_kills=kill_count, oom_evidence=evidence, warnings=tuple(warnings))


@contextmanager
def _network(client: DockerClient, name: str) -> Iterator[None]:
    """Create a network without access to other networks, and remove it at the block's end."""
    network = client.networks.create(name, driver="bridge", internal=True, labels={OWNER_LABEL: owner_label()})
    try:
        yield
    finally:
        with suppress(Exception):  # the engine is gone: the next start finds the network by its label and removes it
            network.remove()


def _supervise(request: Request, containers: dict[int, Container], liveness: Liveness, watch: Watch) -> Outcome:
    while any([_is_running(container) for container in containers.values()]):  # a list: every container is reloaded
        watch()
        states = [container.attrs["State"] for container in containers.values()]
        if any(not state["Running"] and state["ExitCode"] != 0 for state in states):
            break
        if evidence := liveness.hang_evidence(_alive_ranks(request)):
            return _stop_containers(request, containers, "hang", evidence)
        time.sleep(POLL_SECONDS)
    # a moment for the others to end by themselves and write their errors, after one has failed
    wait_until(lambda: not any(map(_is_running, containers.values())), SETTLE_SECONDS, POLL_SECONDS)
    watch()
    ends = _rank_ends(request, containers)
    for node in request.nodes:
        container = containers[node.node_rank]
        recorded_ends = () if container.attrs["State"]["Running"] else read_rank_ends(node)
        if any(end.stopped_by_us for end in recorded_ends) and not first_failure(
            recorded_ends
        ):  # and nothing here requested it
            evidence = f"{container.name} was stopped from outside, as by `docker stop`: its first process got a signal"
            return _stop_containers(request, containers, "cancelled", evidence)
    failed = first_failure(ends)
    return (
        _stop_containers(request, containers, "rank-failed", failure_evidence(failed))
        if failed
        else Outcome("exited", ends)
    )


def _alive_ranks(request: Request) -> list[int]:
    """Return the ranks that have not ended. An ended rank has no heartbeat."""
    return [end.rank for node in request.nodes for end in read_rank_ends(node) if not is_exit_known(end)]


def _is_running(container: Container) -> bool:
    container.reload()
    return bool(container.attrs["State"]["Running"])


def _stop_containers(request: Request, containers: dict[int, Container], cause: Cause, evidence: str) -> Outcome:
    still_running = {node_rank for node_rank, container in containers.items() if _is_running(container)}
    for node_rank in still_running:
        with suppress(EngineError), engine_errors():  # it reports an error for a container that SIGKILL does not end
            containers[node_rank].stop(timeout=STOP_SECONDS)
        containers[node_rank].reload()
    return Outcome(cause, _rank_ends(request, containers, still_running), evidence)


def _rank_ends(
    request: Request, containers: dict[int, Container], stopped_nodes: set[int] | None = None
) -> tuple[ProcessEnd, ...]:
    """Return the ends that each node's first process wrote. If it was killed, its running ranks ended with it."""
    ends = []
    for node in request.nodes:
        state = containers[node.node_rank].attrs["State"] if node.node_rank in containers else {}
        is_stopped, exit_code = node.node_rank in (stopped_nodes or ()), state.get("ExitCode")
        for end in read_rank_ends(node):
            if is_exit_known(end):
                ends.append(end)
            elif state.get("Running") and is_stopped:  # it could not be stopped; this is its first process on the host
                process = int(state["Pid"])
                ends.append(ProcessEnd(end.rank, None, None, is_stopped, process=process, state=process_state(process)))
            elif exit_code is not None and exit_code > 128:  # 128 + the signal that ended the container's first process
                ends.append(ProcessEnd(end.rank, None, exit_code - 128, is_stopped))
            else:
                ends.append(ProcessEnd(end.rank, exit_code, None, is_stopped))
    return tuple(ends)


def _end_leftover_processes(request: Request, outcome: Outcome, container_names: Collection[str]) -> Outcome:
    """End the processes of these containers. Return the outcome with the ranks' ends as they are then, and a warning.

    This needs no engine: its containers are processes of this machine. A later run on the engine removes the
    containers.
    """
    works = {n.node_rank: n.container for n in request.nodes if n.container and n.container.name in container_names}
    first_processes = _end_first_processes(works)
    ends, running_names = {end.rank: end for end in outcome.ends}, []
    for node in (node for node in request.nodes if node.node_rank in works):
        ends.update({end.rank: end for end in read_rank_ends(node) if is_exit_known(end) or end.rank not in ends})
        process = first_processes.get(node.node_rank)
        still_runs = process is not None and process_state(process) not in "ZX?"
        unknown_ends = [ends[rank_work.rank] for rank_work in node.processes if not is_exit_known(ends[rank_work.rank])]
        if still_runs or (unknown_ends and process is None):
            running_names.append(works[node.node_rank].name)
        if process is not None:
            for end in unknown_ends:  # nobody wrote how the rank ended
                if still_runs:
                    ends[end.rank] = replace(end, process=process, state=process_state(process))
                else:
                    ends[end.rank] = replace(end, signal=int(signal.SIGKILL), stopped_by_us=True)
    warnings = [*outcome.warnings]
    if running_names:
        warnings.append(
            f"the container engine did not remove {', '.join(running_names)}, which may still train: start the engine, "
            f"then run `docker rm --force {' '.join(running_names)}`. The next run on this engine does the same"
        )
    if ended_names := sorted(set(container_names) - set(running_names)):
        warnings.append(
            f"the container engine did not remove {', '.join(ended_names)}: no process of it is left, and the next run "
            "on this engine removes the rest"
        )
    return replace(outcome, ends=tuple(ends[rank] for rank in sorted(ends)), warnings=tuple(warnings))


def _end_first_processes(works: Mapping[int, ContainerWork]) -> dict[int, int]:
    """End the first processes of containers that run here, and return them, by the nodes' ranks.

    On SIGTERM they end their ranks; SIGKILL ends every process of the container.
    """
    first_processes: dict[int, int] = {}
    for node_rank, work in works.items():
        arguments = "\0".join(work.argv[1:]).encode() + b"\0"  # unique, as they have the run's path
        for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if cmdline.read_bytes().partition(b"\0")[2] == arguments:
                    first_processes[node_rank] = int(cmdline.parent.name)
                    break
    alive = [identity for process in first_processes.values() if (identity := identify_process(process)) is not None]
    for signal_number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        alive = [identity for identity in alive if is_alive(identity)]
        for identity in alive:
            with suppress(OSError):
                os.kill(identity.process, signal_number)
        deadline = time.monotonic() + seconds
        with suppress(KeyboardInterrupt):  # the user does not want to wait: SIGKILL is next
            while any(map(is_alive, alive)) and time.monotonic() < deadline:
                time.sleep(END_POLL_SECONDS)
    return first_processes
