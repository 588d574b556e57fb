"""Launcher `ssh`: one node's part for each host, over plain OpenSSH.

Each connection carries one node: its work on standard input, its files back on standard output. The end of standard
input ends the ranks of that node. So nothing stays on a node when the platform ends, however it ends.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import (
    NodeEnd,
    NodeSource,
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
from levelfield.run.launchers.ssh.connection import Connection, wait_for_output
from levelfield.run.launchers.ssh.node_run import NodeRun, Supervision
from levelfield.run.launchers.ssh.ssh_places import moved, places_of, ssh_argv
from levelfield.run.launchers.ssh.ssh_runtime import SshRuntime, container_command
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of

_PROGRAM = "node_agent.py run - --stream"
FILES_OF_A_NODE = 4  # three pipes, and one that is being written
LEAST_SILENCE_SECONDS = 30.0  # ssh itself gives a host up after fifteen
SILENCE_SECONDS = 20.0  # that a connection fetches nothing
# What a node must have left for a whole result.
_EXPECTED = ("nodes/node{node}.record.jsonl", "nodes/node{node}.facts.json", "telemetry/node{node}.raw.jsonl")


class SshLauncher:
    """Launches each node's part by ssh."""

    name = "ssh"

    def runtime(self, plan: Plan) -> SshRuntime:
        """Return the nodes' surroundings."""
        return SshRuntime(plan)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """One command of ssh for each host, with the node's work for its standard input. Pure."""
        request, submissions = request_for_nodes(plan, paths, self.name, runtime), []
        for node in request.nodes:
            places = places_of(plan, node.node_rank)
            node_request = replace(request, events_dir=str(places.run.events))
            content = node_content(moved(plan, places), places.run, node_request, node, plan.implementation.rests_on)
            content["recorded_steps"] = plan.explain_steps
            content["files"] = {"job.json": json.dumps(job_of(plan, places.run), indent=2) + "\n"}
            agent = str(places.code / "platform/levelfield/node/node_agent.py")
            words = [agent, "run", "-", "--stream"]  # the node's part, on the node or in a container of it
            if plan.runtime == "docker":
                command = list(container_command(plan, places, [places.python, *words]))
            else:
                command = [places.host.python, *words]
            argv = ssh_argv(launch_of(plan), places.host, command)
            submissions.append(Submission(places.host.name, argv, stdin=json.dumps(content) + "\n"))
        return replace(request, submissions=tuple(submissions))

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all nodes and wait. No process is left on a node that can be reached, and none here."""
        root = Path(request.events_dir).parent
        nodes: list[NodeRun] = []
        try:
            (root / "nodes").mkdir(exist_ok=True)
            for work, sent in zip(request.nodes, request.submissions, strict=True):  # their work, without secrets
                content = json.loads(sent.stdin or "{}")
                write_atomically(root / f"nodes/node{work.node_rank}.json", json.dumps(content, indent=2) + "\n")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            more = soft + FILES_OF_A_NODE * len(request.nodes)
            limit = more if hard == resource.RLIM_INFINITY else min(more, hard)
            if soft != resource.RLIM_INFINITY and limit > soft:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            clock, secrets = WatchedTime(time.monotonic), secret_values(request)
            for work, sent in zip(request.nodes, request.submissions, strict=True):
                text = sent.stdin or "{}"
                connection = Connection(sent.name, sent.argv)
                text = json.dumps({**json.loads(text), "secrets": secrets}) + "\n" if secrets else text
                connection.send(text.encode())
                nodes.append(NodeRun(work, root, connection, clock))
            return _outcome(root, request, nodes, watch)
        except OSError as error:
            evidence = f"{error.filename or 'ssh'}: {error.strerror}"
            return Outcome("launch-error", _ends(nodes), evidence)
        finally:
            for node in nodes:
                node.connection.end()


def _outcome(root: Path, request: Request, nodes: Sequence[NodeRun], watch: Watch) -> Outcome:
    """Watch the nodes until they have ended. Return the outcome, after what is missing was fetched."""
    silence = max(request.heartbeat_seconds, LEAST_SILENCE_SECONDS)
    supervision = Supervision(nodes, Liveness(request), silence, watch)
    try:
        supervision.run()
    except KeyboardInterrupt:
        supervision.cause, supervision.evidence = "interrupted", "interrupted by the user"
        supervision.stop()
    kills = [node.memory_kills() for node in nodes]
    cause, evidence = supervision.cause, supervision.evidence
    ends: list[NodeEnd] = []
    try:
        for node, sent in zip(nodes, request.submissions, strict=True):
            ends.append(_node_end(root, node, sent))
    except KeyboardInterrupt:
        cause, evidence = "interrupted", "interrupted by the user while files were fetched"
    return Outcome(
        cause,
        _ends(nodes),
        evidence,
        oom_kills=sum(number for number, _ in kills),
        oom_evidence="; ".join(text for _, text in kills if text) or None,
        nodes=tuple(ends),
    )


def _ends(nodes: Sequence[NodeRun]) -> tuple[ProcessEnd, ...]:
    return tuple(end for node in nodes for end in node.ends())


def _node_end(root: Path, node: NodeRun, sent: Submission) -> NodeEnd:
    """Return how a node ended. What its stream did not bring is fetched, and what stays away is named."""
    _, end = node.finding()
    content = json.loads(sent.stdin or "{}")
    last_step = content.get("recorded_steps")
    steps = () if last_step is None else range(last_step + 1)  # 0: the one that does not count
    # what the ranks recorded of each step (worker/step_profile.py)
    records = [f"profile/rank{rank}.step{number}.json.gz" for rank in node.stream.ranks for number in steps]
    if end.word == "unreachable" or (node.stream.is_complete() and not records):
        return replace(end, missing=node.stream.cut())
    rank, received = node.work.node_rank, node.stream.received
    again = NodeStream(root, rank, node.stream.ranks, {**received, **dict.fromkeys(records, 0)})
    question = {"root": content["root"], "node_rank": rank, "ranks": again.ranks, "offsets": again.received}
    argv = (*sent.argv[:-1], sent.argv[-1].replace(_PROGRAM, "node_agent.py fetch"))
    fetch(Connection(sent.name, argv), json.dumps(question) + "\n", again)
    if again.is_complete():
        return replace(end, missing=again.cut())
    if node.stream.is_complete():
        return replace(end, missing=("profile", *node.stream.cut()))
    received.update(again.received)
    expected = (name.format(node=rank) for name in _EXPECTED)
    absent = [name for name in expected if not received[name]]
    short = [f"{name} (its end)" for name, size in sorted(received.items()) if size]
    return replace(end, missing=(*absent, *short))


def fetch(connection: Connection, question: str, stream: NodeStream) -> None:
    """Receive files by a connection of its own, as far as they come. Frames without content are no sign of life."""
    connection.send(question.encode())
    received, last = dict(stream.received), time.monotonic()
    try:
        while not stream.is_complete() and time.monotonic() - last < SILENCE_SECONDS:
            wait_for_output([connection], 0.1)
            connection.flush()
            if (part := connection.read()) is None:
                break
            stream.receive(part)
            if stream.received != received:
                received, last = dict(stream.received), time.monotonic()
    except (BrokenStream, OSError):  # OSError: no room here; what was measured counts without what is fetched
        pass
    finally:
        connection.end()
