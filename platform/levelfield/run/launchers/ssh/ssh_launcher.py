"""Launcher `ssh`: one node's part for each host, over plain OpenSSH or by one mpirun.

Each connection carries one node: its work on standard input, its files back on standard output. The end of standard
input ends the ranks of that node. So nothing stays on a node when the platform ends, however it ends. With mpirun the
same holds by other means (mpirun_job.py).
"""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import (
    NodeEnd,
    NodeSource,
    NodeWork,
    Outcome,
    ProcessEnd,
    Request,
    Submission,
    Watch,
)
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.node_content import node_content, request_for_nodes, secret_values
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import Connection, NodeLine, wait_for_output
from levelfield.run.launchers.ssh.mpirun_job import MpirunJob, keep_works, mpirun_submissions, refuse_without_ssh
from levelfield.run.launchers.ssh.node_run import NodeRun, Supervision
from levelfield.run.launchers.ssh.ssh_places import NodePlaces, moved, places_of, ssh_argv
from levelfield.run.launchers.ssh.ssh_runtime import SshRuntime, in_container
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of

_PROGRAM = re.compile(r"node_agent\.py run - --stream|mpi_part\.py keep")
FILES_OF_A_NODE = 4  # three pipes, and one that is being written
LEAST_SILENCE_SECONDS = 30.0  # ssh itself gives a host up after fifteen

SILENCE_SECONDS = 20.0
# What a node must have left for a whole result.
_EXPECTED = ("nodes/node{node}.record.jsonl", "nodes/node{node}.facts.json", "telemetry/node{node}.raw.jsonl")


class SshLauncher:
    """Launches each node's part by ssh."""

    name = "ssh"

    def runtime(self, plan: Plan) -> SshRuntime:
        """Return the nodes' surroundings. Raises UsageError for what the site's engine does not do."""
        if launch_of(plan).site.ssh.engine == "mpirun":
            refuse_without_ssh(plan)
        return SshRuntime(plan)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """One command of ssh for each host, with the node's work for its standard input; or mpirun's last. Pure."""
        request = request_for_nodes(plan, paths, self.name, runtime)
        contents = {node.node_rank: _content(plan, request, node) for node in request.nodes}
        if launch_of(plan).site.ssh.engine == "mpirun":
            return replace(request, submissions=mpirun_submissions(plan, contents))
        return replace(request, submissions=tuple(_submission(plan, *each) for each in contents.items()))

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all nodes and wait. No process is left on a node that can be reached, and none here."""
        root = Path(request.events_dir).parent
        nodes: list[NodeRun] = []
        try:
            _write_work(root, request)
            _allow_files(FILES_OF_A_NODE * len(request.nodes))
            clock = WatchedTime(time.monotonic)
            for node, line in zip(request.nodes, _lines(request), strict=True):
                nodes.append(NodeRun(node, root, line, clock))
            return _collected(root, request, nodes, _supervised(request, nodes, watch))
        except OSError as error:
            evidence = f"{error.filename or 'ssh'}: {error.strerror}"
            return Outcome("launch-error", _ends(nodes), evidence)
        finally:
            for each in nodes:
                each.connection.end()


def _content(plan: Plan, request: Request, node: NodeWork) -> str:
    """Return the text that a node is given."""
    places = places_of(plan, node.node_rank)
    there = replace(request, events_dir=str(places.run.events))
    own = moved(plan, places)
    content = {
        **node_content(own, places.run, there, node, plan.implementation.rests_on),
        "files": {"job.json": json.dumps(job_of(plan, places.run), indent=2) + "\n"},
    }
    return json.dumps(content) + "\n"


def _submission(plan: Plan, rank: int, content: str) -> Submission:
    places = places_of(plan, rank)
    argv = ssh_argv(launch_of(plan), places.host, _agent(plan, places))
    return Submission(places.host.name, argv, stdin=content)


def _lines(request: Request) -> Iterator[NodeLine]:
    """Start all nodes' parts, and yield the line to each. Raises OSError and NodesNotReady."""
    works = _works(request)
    if len(works) < len(request.submissions):
        keep_works(works)
        yield from MpirunJob(request.submissions[-1].argv, [work.name for work in works]).lines
        return
    for sent in works:
        connection = Connection(sent.name, sent.argv)
        connection.send(_with_secrets(sent, secret_values(request)).encode())
        yield connection


def _works(request: Request) -> tuple[Submission, ...]:
    """Return the submissions that hold a node's work: all but mpirun's own."""
    return request.submissions[: len(request.nodes)]


def _agent(plan: Plan, places: NodePlaces) -> list[str]:
    """Return the command of the node's part, on the node or in a container of it."""
    words = [places.agent, "run", "-", "--stream"]
    if plan.runtime == "docker":
        return in_container(plan, places, [places.python, *words])
    return [places.host.python, *words]


def _write_work(root: Path, request: Request) -> None:
    """Keep each node's work, without secrets. Raises OSError."""
    (root / "nodes").mkdir(exist_ok=True)
    for node, sent in zip(request.nodes, _works(request), strict=True):
        content = json.loads(sent.stdin or "{}")
        write_atomically(root / f"nodes/node{node.node_rank}.json", json.dumps(content, indent=2) + "\n")


def _allow_files(count: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(soft + count, hard) if hard != resource.RLIM_INFINITY else soft + count
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _with_secrets(sent: Submission, secrets: Mapping[str, str]) -> str:
    """Return what is sent: the submission's text as it is, or with the run's secrets."""
    if not secrets:
        return sent.stdin or ""
    return json.dumps({**json.loads(sent.stdin or "{}"), "secrets": secrets}) + "\n"


def _supervised(request: Request, nodes: Sequence[NodeRun], watch: Watch) -> Outcome:
    silence = max(request.heartbeat_seconds, LEAST_SILENCE_SECONDS)
    supervision = Supervision(nodes, Liveness(request), silence, watch)
    try:
        supervision.run()
    except KeyboardInterrupt:
        supervision.cause, supervision.evidence = "interrupted", "interrupted by the user"
        supervision.stop()
    kills = [node.memory_kills() for node in nodes]
    return Outcome(
        supervision.cause,
        _ends(nodes),
        supervision.evidence,
        oom_kills=sum(number for number, _ in kills),
        oom_evidence="; ".join(said for _, said in kills if said) or None,
    )


def _ends(nodes: Sequence[NodeRun]) -> tuple[ProcessEnd, ...]:
    return tuple(end for node in nodes for end in node.ends())


def _collected(root: Path, request: Request, nodes: Sequence[NodeRun], outcome: Outcome) -> Outcome:
    """Return the outcome with how each node ended, after what is missing was fetched."""
    found: list[NodeEnd] = []
    try:
        for node, sent in zip(nodes, _works(request), strict=True):
            found.append(_end_of(root, node, sent))
    except KeyboardInterrupt:
        outcome = replace(outcome, cause="interrupted", evidence="interrupted by the user while files were fetched")
    return replace(outcome, ends=_ends(nodes), nodes=tuple(found), evidence=_evidence(request, outcome, found))


def _evidence(request: Request, outcome: Outcome, found: Sequence[NodeEnd]) -> str | None:
    """Return the outcome's evidence. mpirun ends for one lost node and takes all others along.

    Of them that one is meant from which nothing more could be fetched.
    """
    lost = [end for end in found if end.word == "lost"]
    away = [end for end in lost if end.missing]
    is_shared = len(request.submissions) > len(request.nodes)
    return away[0].detail if is_shared and outcome.cause == "node-lost" and away else outcome.evidence


def _end_of(root: Path, node: NodeRun, sent: Submission) -> NodeEnd:
    finding = node.finding()
    assert finding is not None, "a node is collected after its end"
    end = finding[1]
    if node.stream.is_complete() or end.word == "unreachable":
        return end
    work = json.loads(sent.stdin or "{}")
    argv = (*sent.argv[:-1], _PROGRAM.sub("node_agent.py fetch", sent.argv[-1]))
    again = fetch(Connection(sent.name, argv), root, node.work.node_rank, Path(work["root"]), node.stream)
    node.stream.received.update(again.received)
    missing = missing_of(node.work.node_rank, again.received, again.is_complete())
    return replace(end, missing=missing)


def fetch(connection: Connection, root: Path, node_rank: int, remote: Path, stream: NodeStream) -> NodeStream:
    """Return the stream of what was missing. Where it is not complete, something stayed away."""
    ranks = stream.ranks
    asked = {"root": str(remote), "node_rank": node_rank, "ranks": ranks, "offsets": stream.received}
    connection.send((json.dumps(asked) + "\n").encode())
    again = NodeStream(root, node_rank, ranks, stream.received)
    last = time.monotonic()
    try:
        while time.monotonic() - last < SILENCE_SECONDS:
            wait_for_output([connection], 0.1)
            connection.flush()
            part = connection.read()
            if part is None:
                break
            if part:
                last = time.monotonic()
                again.receive(part)
    except BrokenStream:
        pass
    finally:
        connection.end()
    return again


def missing_of(node_rank: int, received: Mapping[str, int], is_complete: bool) -> tuple[str, ...]:
    """Return the names of a node's files that did not come; of an incomplete stream also those that may be short."""
    if is_complete:
        return ()
    absent = [name.format(node=node_rank) for name in _EXPECTED if not received[name.format(node=node_rank)]]
    return tuple([*absent, *(f"{name} (its end)" for name, size in sorted(received.items()) if size)])
