"""Prepares the nodes over ssh before a run: their code, and the framework's environment, each once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from levelfield import installer
from levelfield.contracts.execution import Cause, NodeEnd, NodesNotReady, NodeWord, Say
from levelfield.errors import RunFailed
from levelfield.node import node_setup
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.run.launchers.node_content import code_archive, wheels_archive
from levelfield.run.launchers.ssh.connection import (
    FAILURE_OF_SSH,
    Connection,
    explained,
    printable_text,
    wait_for_output,
)
from levelfield.run.launchers.ssh.ssh_places import LOADER, places_of, ssh_argv
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.plan import Plan

AT_ONCE = 64  # connections that are made at the same time
POLL_SECONDS = 0.1
SILENCE_SECONDS = 60.0  # of a node that gets nothing either; one that installs or waits says so each fifteen
MOST_ANSWERS = 10_000
SOURCES_NEEDED = (
    "where the node reaches no index, set LEVELFIELD_WHEELS to a folder that `environment wheels fetch DIR` made: its "
    "wheels are brought to every node"
)
INCOMPLETE = "the wheels of LEVELFIELD_WHEELS were brought; make them again with `environment wheels fetch DIR`"


class Archive(NamedTuple):
    """What may be brought to a node."""

    description: Mapping[str, Any]  # as the node gets it, with the archive's name there
    content: memoryview


def _archives(plan: Plan) -> dict[str, Archive]:
    """Return the code, and the wheels of LEVELFIELD_WHEELS where an environment is made from them."""
    places = places_of(plan, 0)
    contents = {"code": memoryview(code_archive(Path(plan.implementation.folder)))}
    wheels = installer.wheels_folder()
    if wheels and places.environment:
        contents["wheels"] = wheels_archive(wheels)
    archives = {}
    for kind, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        name = places.code.name if kind == "code" else digest[:16]
        description = {"kind": kind, "name": name, "bytes": len(content), "sha256": digest}
        archives[kind] = Archive(description, content)
    return archives


def prepare(plan: Plan, say: Say) -> None:
    """Prepare all nodes of a plan. Raises NodesNotReady with the first node that cannot be prepared or differs."""
    try:
        archives, nodes = _archives(plan), range(plan.hardware.nodes)
    except OSError as error:
        raise RunFailed(f"what the nodes need cannot be packed: {error.filename}: {error.strerror}") from None
    ready: list[NodeSetup] = []
    for begin in range(0, len(nodes), AT_ONCE):
        part: list[NodeSetup] = []
        try:
            part += (NodeSetup(plan, node, archives) for node in nodes[begin : begin + AT_ONCE])
            while left := [setup for setup in part if setup.ready is None]:
                wait_for_output([setup.connection for setup in left], POLL_SECONDS)
                for setup in left:
                    setup.turn(say)
        finally:
            for setup in part:
                setup.connection.end()
        ready += part
    versions = {setup: ".".join(str((setup.ready or {}).get("environment")).split(".")[:2]) for setup in ready}
    first = ready[0]
    for setup, version in versions.items():
        if version != versions[first]:
            reason = (
                f"{setup.name} has Python {version}, and {first.name} has {versions[first]}: give all nodes the same"
            )
            raise setup.failed("node-differs", "differs", reason)


class NodeSetup:
    """The preparation of one node."""

    def __init__(self, plan: Plan, node_rank: int, archives: Mapping[str, Archive]) -> None:
        self._node_rank, self._archives, self._rest = node_rank, archives, b""
        places = places_of(plan, node_rank)
        self.name = places.host.name
        argv = ssh_argv(launch_of(plan), places.host, [places.host.python, "-c", LOADER])
        try:
            self.connection = Connection(self.name, argv)
        except OSError as error:
            reason = f"{argv[0]} cannot be started here: {error.strerror}; install OpenSSH's client"
            raise self._failed(reason) from None
        environment: dict[str, Any] = {"name": places.environment.name if places.environment else None}
        if places.environment:
            environment |= {
                "digest": plan.environment.digest,
                "requirements": list(plan.environment.requirements),
                "builds": [step.model_dump(mode="json") for step in plan.environment.builds],
                "index": installer.index_variables(plan.environment.index),
            }
        else:  # the image's interpreter is not on the node
            environment["python"] = places.host.python if plan.runtime == "docker" else places.python
        header = {
            "folder": str(places.folder),
            "code": archives["code"].description,
            "wheels": archives["wheels"].description if "wheels" in archives else None,
            "environment": environment,
        }
        program = Path(node_setup.__file__).read_bytes()
        self.connection.send(b"%d\n%s%s\n" % (len(program), program, json.dumps(header).encode()))
        self.ready: Mapping[str, Any] | None = None  # its answer when it is prepared
        self._answered, self._answers = False, 0
        self._clock = WatchedTime(time.monotonic)
        self._last = self._clock.watched_seconds()

    def turn(self, say: Say) -> None:
        """Take what the node answered. Raises NodesNotReady."""
        is_taking = self.connection.flush()
        part = self.connection.read()
        if part is None:
            if not self.connection.has_ended() or self.ready is not None:
                time.sleep(POLL_SECONDS / 10)
                return
            reason = explained(self.name, self.connection.code, self.connection.complaint)
            if self._answered or self.connection.code != FAILURE_OF_SSH:
                raise self.failed("environment", "failed", reason)
            raise self.failed("unreachable", "unreachable", reason)
        now = self._clock.watched_seconds()
        if part or is_taking:
            self._last = now
        if now - self._last > SILENCE_SECONDS:
            reason = f"{self.name} sent nothing for {now - self._last:.0f} s while it was prepared"
            raise self.failed(
                "unreachable", "unreachable", f"{reason} (limit {SILENCE_SECONDS:g} s); look at the machine"
            )
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._take(line, say)
        if len(self._rest) > 2**16:
            raise self._failed("found an answer without an end")

    def _take(self, line: bytes, say: Say) -> None:
        try:
            answer = json.loads(line)
            (key, value) = next(iter(answer.items()))
        except (ValueError, RecursionError, AttributeError, StopIteration):
            text = printable_text(line.decode(errors="replace"), 120)
            reason = f"found {text!r}, expected an answer as JSON; its shell must print nothing by itself"
            raise self._failed(reason) from None
        text = printable_text(str(value), 1000)
        self._answered, self._answers = True, self._answers + 1
        if self._answers > MOST_ANSWERS:
            raise self._failed(f"found more than {MOST_ANSWERS} answers, the last one {text[:120]!r}")
        if key == "say":
            say(f"{self.name}: {text}")
        elif key == "need" and text in self._archives:
            content = self._archives[text].content
            say(f"{self.name}: bringing the {text} ({len(content) / 2**20:.1f} MiB)")
            self.connection.send(content)
        elif key == "ready" and isinstance(value, dict):
            self.ready = value
        else:
            advice = INCOMPLETE if "wheels" in self._archives else SOURCES_NEEDED
            raise self._failed(f"{text}; {advice}" if "pip install" in text else text)

    def _failed(self, reason: str) -> NodesNotReady:
        return self.failed("environment", "failed", f"{self.name}: {reason}")

    def failed(self, cause: Cause, word: NodeWord, reason: str) -> NodesNotReady:
        return NodesNotReady(cause, reason, (NodeEnd(self._node_rank, self.name, word, reason),))
