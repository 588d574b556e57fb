"""Launcher `ssh`: one node's agent on each host, over plain OpenSSH.

Each node has one connection: its work goes in by standard input, and its files come back by standard output. A node
ends its ranks when standard input ends. So no process stays on a node when the platform ends, however it ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import (
    NodeEnd,
    NodeSource,
    Outcome,
    ProcessEnd,
    Request,
    Say,
    Submission,
    Watch,
)
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.node_content import (
    node_content,
    request_for_nodes,
    secret_values,
    sent_works,
    work_lines,
)
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import Connection, ConnectionStarts, allow_descriptors, wait_for_output
from levelfield.run.launchers.ssh.host_tasks import WaitReport
from levelfield.run.launchers.ssh.node_run import NodeRun, Supervision
from levelfield.run.launchers.ssh.remote_node import plan_for_node, remote_node, ssh_argv
from levelfield.run.launchers.ssh.ssh_runtime import SshRuntime, container_command
from levelfield.run.runtimes.process_runtime import require_launch
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content

_STREAM_COMMAND = "node_agent.py run - --stream"
MIN_SILENCE_SECONDS = 30.0  # ssh itself gives up a host after 15 s
FETCH_SILENCE_SECONDS = 20.0  # the longest time in which a fetch receives nothing
FETCH_SECONDS = 600.0  # of all fetches, which run at the same time
# Without these files the evidence of a node is not complete.
_EXPECTED_FILES = ("nodes/node{node}.record.jsonl", "nodes/node{node}.facts.json", "telemetry/node{node}.raw.jsonl")


@dataclass(frozen=True)
class SshLauncher:
    """Launches the agent of each node by ssh. say: gets sentences about what is waited for."""

    say: Say = lambda sentence: None
    name = "ssh"

    def saying(self, say: Say) -> SshLauncher:
        """Return the launcher that reports by `say`."""
        return replace(self, say=say)

    def runtime(self, plan: Plan) -> SshRuntime:
        """Return the runtime on the nodes."""
        return SshRuntime(plan)

    def request(self, plan: Plan, paths: RunPaths, runtime: NodeSource) -> Request:
        """Return one ssh command for each host, with the node's work for its standard input. No side effect."""
        request = request_for_nodes(plan, paths, self.name, runtime)
        commands, contents = [], []
        for node in request.nodes:
            remote = remote_node(plan, node.node_rank)
            node_request = replace(request, events_dir=str(remote.run.events))
            content = node_content(
                plan_for_node(plan, remote), remote.run, node_request, node, plan.implementation.rests_on
            )
            content["recorded_steps"] = plan.explain_steps
            content["files"] = {"job.json": json.dumps(job_content(plan, remote.run), indent=2) + "\n"}
            agent_file = str(remote.code / "platform/levelfield/node/node_agent.py")
            agent_argv = [agent_file, "run", "-", "--stream"]  # run on the node, or in a container there
            if plan.runtime == "docker":
                command = list(container_command(plan, remote, [remote.python, *agent_argv]))
            else:
                command = [remote.host.python, *agent_argv]
            argv = ssh_argv(require_launch(plan), remote.host, command)
            commands.append((remote.host.name, argv))
            contents.append(content)
        lines, common_stdin = work_lines(contents)
        submissions = (Submission(*command, stdin=line) for command, line in zip(commands, lines, strict=True))
        return replace(request, submissions=tuple(submissions), common_stdin=common_stdin)

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all nodes and wait. No process is left on a node that can be reached, and none here."""
        root = Path(request.events_dir).parent
        nodes: list[NodeRun] = []
        try:
            (root / "nodes").mkdir(exist_ok=True)
            for node_rank, content in enumerate(sent_works(request)):  # without secrets
                write_atomically(root / f"nodes/node{node_rank}.json", json.dumps(content, indent=2) + "\n")
            allow_descriptors(len(request.nodes))
            starts = ConnectionStarts()
            clock, secrets = WatchedTime(time.monotonic), secret_values(request)
            for work, submission in zip(request.nodes, request.submissions, strict=True):
                work_text = submission.stdin or "{}"
                connection = Connection(submission.name, submission.argv, starts=starts)
                work_text = json.dumps({**json.loads(work_text), "secrets": secrets}) + "\n" if secrets else work_text
                connection.send((work_text + request.common_stdin).encode())
                nodes.append(NodeRun(work, root, connection, clock))
            return _watch_and_collect(root, request, nodes, watch, self.say)
        except OSError as error:
            evidence = f"{error.filename or 'ssh'}: {error.strerror}"
            return Outcome("launch-error", _process_ends(nodes), evidence)
        finally:
            for node in nodes:
                node.connection.end()


def _watch_and_collect(root: Path, request: Request, nodes: Sequence[NodeRun], watch: Watch, say: Say) -> Outcome:
    """Watch the nodes until they have ended, fetch their missing files, and return the outcome."""
    silence_seconds = max(request.heartbeat_seconds, MIN_SILENCE_SECONDS)
    supervision = Supervision(nodes, Liveness(request), silence_seconds, watch, say)
    try:
        supervision.run()
    except KeyboardInterrupt:
        supervision.cause, supervision.evidence = "interrupted", "interrupted by the user"
        supervision.stop()
    kills = [node.memory_kills() for node in nodes]
    cause, evidence = supervision.cause, supervision.evidence
    node_files = [
        NodeFiles(root, node, submission, work)
        for node, submission, work in zip(nodes, request.submissions, sent_works(request), strict=True)
    ]
    try:
        fetch_files([files.fetch for files in node_files if files.fetch], say)
    except KeyboardInterrupt:
        cause, evidence = "interrupted", "interrupted by the user while files were fetched"
    return Outcome(
        cause,
        _process_ends(nodes),
        evidence,
        oom_kills=sum(number for number, _ in kills),
        oom_evidence="; ".join(text for _, text in kills if text) or None,
        nodes=tuple(files.node_end() for files in node_files),
    )


def _process_ends(nodes: Sequence[NodeRun]) -> tuple[ProcessEnd, ...]:
    return tuple(end for node in nodes for end in node.ends())


class FileFetch:
    """Files that come by a connection of their own, until they are complete or bring nothing new for too long."""

    def __init__(self, connection: Connection, fetch_request: str, stream: NodeStream) -> None:
        self.connection, self.stream = connection, stream
        self.has_ended = False
        self._received, self._last_arrival = dict(stream.received), time.monotonic()
        connection.send(fetch_request.encode())

    def poll(self) -> None:
        """Receive what has arrived. The end of the fetch ends the connection."""
        try:
            self.connection.flush()
            part = self.connection.read()
            if part:
                self.stream.receive(part)
            is_over = part is None and self.connection.has_ended()
        except (BrokenStream, OSError):  # OSError: the disk here is full; the result counts without the fetched files
            is_over = True
        if self.stream.received != self._received or not self.connection.seconds_since_start():
            self._received, self._last_arrival = dict(self.stream.received), time.monotonic()
        is_silent = time.monotonic() - self._last_arrival > FETCH_SILENCE_SECONDS
        if is_over or is_silent or self.stream.is_complete():
            self.end()

    def end(self) -> None:
        self.has_ended = True
        self.connection.end()


class NodeFiles:
    """What the run directory has of an ended node, and the fetch of what its stream lacks."""

    def __init__(self, root: Path, node: NodeRun, submission: Submission, content: Mapping[str, Any]) -> None:
        """content: the work of the node."""
        self._node = node
        _, self._end = node.cause_and_end()
        last_step = content.get("recorded_steps")
        steps = () if last_step is None else range(last_step + 1)  # step 0 is recorded too, and does not count
        # what the ranks recorded of each step (worker/step_profile.py)
        step_files = [f"profile/rank{rank}.step{step}.json.gz" for rank in node.stream.ranks for step in steps]
        self.fetch: FileFetch | None = None
        if self._end.word == "unreachable" or (node.stream.is_complete() and not step_files):
            return
        rank, received = node.work.node_rank, node.stream.received
        stream = NodeStream(root, rank, node.stream.ranks, {**received, **dict.fromkeys(step_files, 0)})
        question = {"root": content["root"], "node_rank": rank, "ranks": stream.ranks, "offsets": stream.received}
        argv = (*submission.argv[:-1], submission.argv[-1].replace(_STREAM_COMMAND, "node_agent.py fetch"))
        self.fetch = FileFetch(Connection(submission.name, argv), json.dumps(question) + "\n", stream)

    def node_end(self) -> NodeEnd:
        """Return how the node ended, with the files that are still missing."""
        stream, rank = self._node.stream, self._node.work.node_rank
        if self.fetch is None:
            return replace(self._end, missing=stream.truncated_files())
        if self.fetch.stream.is_complete():
            return replace(self._end, missing=self.fetch.stream.truncated_files())
        if stream.is_complete():
            return replace(self._end, missing=("profile", *stream.truncated_files()))
        received = {**stream.received, **self.fetch.stream.received}
        expected = (name.format(node=rank) for name in _EXPECTED_FILES)
        absent_files = [name for name in expected if not received[name]]
        truncated_files = [f"{name} (its end)" for name, size in sorted(received.items()) if size]
        return replace(self._end, missing=(*absent_files, *truncated_files))


def fetch_files(fetches: Sequence[FileFetch], say: Say) -> None:
    """Fetch from all nodes at once, at most FETCH_SECONDS. A fetch that does not end by itself is ended."""
    report, deadline = WaitReport(say), time.monotonic() + FETCH_SECONDS
    try:
        while (open_fetches := [fetch for fetch in fetches if not fetch.has_ended]) and time.monotonic() < deadline:
            wait_for_output([fetch.connection for fetch in open_fetches], 0.1)
            for fetch in open_fetches:
                fetch.poll()
            names = [fetch.connection.name for fetch in open_fetches]
            report.look("files that are missing here are fetched", names, FETCH_SECONDS)
    finally:
        for fetch in fetches:
            fetch.end()
