"""Prepares the nodes over ssh before a run: their code, and the framework's environment, each once."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from levelfield import installer
from levelfield.contracts.execution import Cause, NodeEnd, NodesNotReady, NodeWord, Say
from levelfield.errors import RunFailed
from levelfield.node import node_setup
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.node.rank_processes import SETTLE_SECONDS
from levelfield.run.launchers.node_content import code_archive, wheels_archive
from levelfield.run.launchers.ssh.connection import (
    SSH_FAILURE_CODE,
    Connection,
    ConnectionStarts,
    allow_descriptors,
    printable_text,
    wait_for_output,
)
from levelfield.run.launchers.ssh.host_tasks import ANSWER_SECONDS, WaitReport, name_list
from levelfield.run.launchers.ssh.remote_node import LOADER_SCRIPT, remote_node, ssh_argv
from levelfield.run.runtimes.process_runtime import require_launch
from levelfield.specs.plan import Plan

POLL_SECONDS = 0.1
SILENCE_SECONDS = 60.0  # without an answer or a transfer; a node that installs or waits reports it
MAX_ANSWERS = 10_000  # of one node; more are a fault of it
NO_INDEX_ADVICE = (
    "where the node reaches no index, set LEVELFIELD_WHEELS to a folder that `environment wheels fetch DIR` made: its "
    "wheels are brought to every node"
)
INCOMPLETE_WHEELS_ADVICE = (
    "the wheels of LEVELFIELD_WHEELS were brought; make them again with `environment wheels fetch DIR`"
)


class Archive(NamedTuple):
    """An archive that may be brought to a node."""

    description: Mapping[str, Any]  # what the node is told about the archive: kind, name there, bytes, digest
    content: memoryview


def _pack_archives(plan: Plan) -> dict[str, Archive]:
    """Return by kind the archives of the code, and of LEVELFIELD_WHEELS where an environment is made from wheels."""
    remote = remote_node(plan, 0)
    contents = {"code": memoryview(code_archive(Path(plan.implementation.folder)))}
    wheels = installer.wheels_folder()
    if wheels and remote.environment:
        contents["wheels"] = wheels_archive(wheels)
    archives = {}
    for kind, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        name = remote.code.name if kind == "code" else digest[:16]
        description = {"kind": kind, "name": name, "bytes": len(content), "sha256": digest}
        archives[kind] = Archive(description, content)
    return archives


def prepare_nodes(plan: Plan, say: Say) -> None:
    """Prepare all nodes of a plan. Raises NodesNotReady with every node that cannot be reached, fails or differs."""
    try:
        archives = _pack_archives(plan)
    except OSError as error:
        raise RunFailed(f"what the nodes need cannot be packed: {error.filename}: {error.strerror}") from None
    allow_descriptors(plan.hardware.nodes)
    starts, report = ConnectionStarts(), WaitReport(say)
    ready_nodes: list[NodeSetup] = []
    failures: dict[NodeSetup, NodesNotReady] = {}
    try:
        ready_nodes += (NodeSetup(plan, node, archives, starts) for node in range(plan.hardware.nodes))
        deadline = math.inf
        while pending := [node for node in ready_nodes if node.ready_answer is None and node not in failures]:
            silent_names = [node.name for node in pending if not node.connection.has_answered]
            if time.monotonic() > deadline and not silent_names:
                break  # the others install for minutes, for a run that will not begin
            wait_for_output([node.connection for node in pending], POLL_SECONDS)
            for node in pending:
                try:
                    node.poll(say)
                except NodesNotReady as error:
                    failures[node] = error
                    deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
            report.look("the nodes are prepared", silent_names, ready_nodes[0].first_answer_seconds)
    finally:
        for node in ready_nodes:
            node.connection.end()
    if failures:
        raise _all_failures(list(failures.values()))
    versions = {
        setup: ".".join(str((setup.ready_answer or {}).get("environment")).split(".")[:2]) for setup in ready_nodes
    }
    first = ready_nodes[0]
    differing_nodes = [
        setup.not_ready_error(
            "node-differs",
            "differs",
            f"{setup.name} has Python {version}, and {first.name} has {versions[first]}: give all nodes the same",
        )
        for setup, version in versions.items()
        if version != versions[first]
    ]
    if differing_nodes:
        raise _all_failures(differing_nodes)


def _all_failures(errors: Sequence[NodesNotReady]) -> NodesNotReady:
    """Return one error for all nodes. Its evidence has the reason of the first and the names of the others."""
    ends = [end for error in errors for end in error.nodes]
    more = f"; also not ready: {name_list(end.name for end in ends[1:])}" if len(ends) > 1 else ""
    return NodesNotReady(errors[0].cause, f"{errors[0]}{more}", tuple(ends))


class NodeSetup:
    """The preparation of one node."""

    def __init__(self, plan: Plan, node_rank: int, archives: Mapping[str, Archive], starts: ConnectionStarts) -> None:
        self._node_rank, self._archives, self._partial_line = node_rank, archives, b""
        remote = remote_node(plan, node_rank)
        self.name = remote.host.name
        argv = ssh_argv(require_launch(plan), remote.host, [remote.host.python, "-c", LOADER_SCRIPT])
        self.connection = Connection(self.name, argv, starts=starts)
        environment: dict[str, Any] = {"name": remote.environment.name if remote.environment else None}
        if remote.environment:
            environment |= {
                "digest": plan.environment.digest,
                "requirements": list(plan.environment.requirements),
                "builds": [step.model_dump(mode="json") for step in plan.environment.builds],
                "index": installer.index_variables(plan.environment.index),
            }
        else:  # the image's interpreter is not on the node
            environment["python"] = remote.host.python if plan.runtime == "docker" else remote.python
        header = {
            "folder": str(remote.folder),
            "code": archives["code"].description,
            "wheels": archives["wheels"].description if "wheels" in archives else None,
            "environment": environment,
        }
        program = Path(node_setup.__file__).read_bytes()
        self.connection.send(b"%d\n%s%s\n" % (len(program), program, json.dumps(header).encode()))
        self.ready_answer: Mapping[str, Any] | None = None  # the node's answer once it is prepared
        self.first_answer_seconds = require_launch(plan).site.ssh.connect_seconds + ANSWER_SECONDS
        self._answer_count = 0
        self._clock = WatchedTime(time.monotonic)
        self._last_sign = self._clock.watched_seconds()

    def poll(self, say: Say) -> None:
        """Read and handle what the node has answered. Raises NodesNotReady."""
        has_sent = self.connection.flush()
        received = self.connection.read()
        if received is None and self.connection.has_ended():
            is_reached = self.connection.has_answered or self.connection.code != SSH_FAILURE_CODE
            if is_reached or self.connection.start_problem:
                raise self.not_ready_error("environment", "failed", self.connection.failure())
            raise self.not_ready_error("unreachable", "unreachable", self.connection.failure())
        now = self._clock.watched_seconds()
        if received or (has_sent and self.connection.has_answered) or not self.connection.seconds_since_start():
            self._last_sign = now
        limit_seconds = SILENCE_SECONDS if self.connection.has_answered else self.first_answer_seconds
        if now - self._last_sign > limit_seconds:
            raise self.not_ready_error("unreachable", "unreachable", self.connection.silence(limit_seconds))
        received = received or b""
        *lines, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in lines:
            self._handle_answer(line, say)
        if len(self._partial_line) > 2**16:
            raise self._setup_error("found an answer without an end")

    def _handle_answer(self, line: bytes, say: Say) -> None:
        try:
            answer = json.loads(line)
            (key, value) = next(iter(answer.items()))
        except (ValueError, RecursionError, AttributeError, StopIteration):
            text = printable_text(line.decode(errors="replace"), 120)
            reason = f"found {text!r}, expected an answer as JSON; its shell must print nothing by itself"
            raise self._setup_error(reason) from None
        text = printable_text(str(value), 1000)
        self._answer_count += 1
        if self._answer_count > MAX_ANSWERS:
            raise self._setup_error(f"found more than {MAX_ANSWERS} answers, the last one {text[:120]!r}")
        if key == "say":
            say(f"{self.name}: {text}")
        elif key == "need" and text in self._archives:
            content = self._archives[text].content
            say(f"{self.name}: bringing the {text} ({len(content) / 2**20:.1f} MiB)")
            self.connection.send(content)
        elif key == "ready" and isinstance(value, dict):
            self.ready_answer = value
        else:
            advice = INCOMPLETE_WHEELS_ADVICE if "wheels" in self._archives else NO_INDEX_ADVICE
            raise self._setup_error(f"{text}; {advice}" if "pip install" in text else text)

    def _setup_error(self, reason: str) -> NodesNotReady:
        return self.not_ready_error("environment", "failed", f"{self.name}: {reason}")

    def not_ready_error(self, cause: Cause, word: NodeWord, reason: str) -> NodesNotReady:
        return NodesNotReady(cause, reason, (NodeEnd(self._node_rank, self.name, word, reason),))
