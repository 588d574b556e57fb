"""Prepares the nodes over ssh before a run: their code, and the framework's environment, each once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield import installer
from levelfield.contracts.execution import NodeEnd, NodesNotReady
from levelfield.errors import RunFailed
from levelfield.node import node_setup
from levelfield.run.launchers.code_archive import code_archive, wheels_archive
from levelfield.run.launchers.ssh.connection import Connection, explained, wait_for_output
from levelfield.run.launchers.ssh.ssh_places import LOADER, NodePlaces, code_name, environment_name, places_of, ssh_argv
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.plan import Plan

AT_ONCE = 64  # connections that are made at the same time
POLL_SECONDS = 0.1
SOURCES_NEEDED = (
    "where the node reaches no index, set LEVELFIELD_WHEELS to a folder that `environment wheels fetch DIR` made: its "
    "wheels are brought to every node"
)
INCOMPLETE = "the wheels of LEVELFIELD_WHEELS were brought; make them again with `environment wheels fetch DIR`"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cargo:
    """What may be brought to a node, by kind: the archive's name on the node, and its bytes."""

    names: Mapping[str, str]
    contents: Mapping[str, memoryview]

    def announced(self, kind: str) -> dict[str, Any] | None:
        """Return what the node is told of an archive; None without one."""
        if kind not in self.contents:
            return None
        content = self.contents[kind]
        digest = hashlib.sha256(content).hexdigest()
        return {"kind": kind, "name": self.names[kind], "bytes": len(content), "sha256": digest}


def cargo_of(plan: Plan) -> Cargo:
    """Return the code, and the wheels of LEVELFIELD_WHEELS where an environment is made from them."""
    names = {"code": code_name(plan)}
    contents = {"code": memoryview(code_archive(Path(plan.implementation.folder)))}
    wheels = installer.wheels_folder()
    if wheels and environment_name(plan):
        contents["wheels"] = wheels_archive(wheels)
        names["wheels"] = hashlib.sha256(contents["wheels"]).hexdigest()[:16]
    return Cargo(names, contents)


def prepare(plan: Plan, say: Say) -> None:
    """Prepare all nodes of a plan. Raises NodesNotReady with the first node that cannot be prepared."""
    try:
        cargo, nodes = cargo_of(plan), range(plan.hardware.nodes)
    except OSError as error:
        raise RunFailed(f"what the nodes need cannot be packed: {error.filename}: {error.strerror}") from None
    ready: list[NodeSetup] = []
    for first in range(0, len(nodes), AT_ONCE):
        part: list[NodeSetup] = []
        try:
            part += (NodeSetup(plan, node, cargo) for node in nodes[first : first + AT_ONCE])
            _until_ready(part, say)
        finally:
            for each in part:
                each.connection.end()
        ready += part
    _refuse_differences(ready)


def _until_ready(setups: Sequence[NodeSetup], say: Say) -> None:
    while left := [each for each in setups if each.ready is None]:
        wait_for_output([each.connection for each in left], POLL_SECONDS)
        for each in left:
            each.turn(say)


def _refuse_differences(setups: Sequence[NodeSetup]) -> None:
    """Raises NodesNotReady where the environments of two nodes have different Pythons."""
    found = {setup: ".".join(str((setup.ready or {}).get("environment")).split(".")[:2]) for setup in setups}
    first = setups[0]
    for setup, version in found.items():
        if version != found[first]:
            why = f"{setup.name} has Python {version}, and {first.name} has {found[first]}: give all nodes the same"
            raise setup.failed("node-differs", "differs", why)


class NodeSetup:
    """The preparation of one node. ready: its answer when it is prepared."""

    def __init__(self, plan: Plan, node_rank: int, cargo: Cargo) -> None:
        self._node_rank, self._cargo, self._rest = node_rank, cargo, b""
        places = places_of(plan, node_rank)
        self.name = places.host.name
        argv = ssh_argv(launch_of(plan), places.host, [places.host.python, "-c", LOADER])
        try:
            self.connection = Connection(self.name, argv)
        except OSError as error:
            why = f"{self.name}: {argv[0]} cannot be started here: {error.strerror}; install OpenSSH's client"
            raise self.failed("environment", "failed", why) from None
        program = Path(node_setup.__file__).read_bytes()
        header = json.dumps(setup_header(plan, places, cargo)).encode()
        self.connection.send(b"%d\n%s%s\n" % (len(program), program, header))
        self.ready: Mapping[str, Any] | None = None
        self._answered = False

    def turn(self, say: Say) -> None:
        """Take what the node answered. Raises NodesNotReady."""
        self.connection.flush()
        part = self.connection.read()
        if part is None:
            return self._ended()
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._take(line, say)
        if len(self._rest) > 2**16:
            raise self.failed("environment", "failed", f"{self.name}: found an answer without an end")

    def _take(self, line: bytes, say: Say) -> None:
        try:
            answer = json.loads(line)
            (key, value) = next(iter(answer.items()))
        except (ValueError, RecursionError, AttributeError, StopIteration):
            shown = _printable(line.decode(errors="replace"))[:120]
            why = f"{self.name}: found {shown!r}, expected an answer as JSON; its shell must print nothing by itself"
            raise self.failed("environment", "failed", why) from None
        self._answered = True
        if key == "say":
            say(f"{self.name}: {_printable(str(value))}")
        elif key == "need" and value in self._cargo.contents:
            size = len(self._cargo.contents[value])
            say(f"{self.name}: bringing the {value} ({size / 2**20:.1f} MiB)")
            self.connection.send(self._cargo.contents[value])
        elif key == "ready" and isinstance(value, dict):
            self.ready = value
        else:
            raise self.failed("environment", "failed", f"{self.name}: {self._explained(_printable(str(value)))}")

    def _explained(self, error: str) -> str:
        if "pip install" not in error:
            return error
        return f"{error}; {INCOMPLETE if 'wheels' in self._cargo.contents else SOURCES_NEEDED}"

    def _ended(self) -> None:
        """Raises NodesNotReady where the connection ended before the node was ready."""
        if not self.connection.has_ended() or self.ready is not None:
            time.sleep(POLL_SECONDS / 10)
            return
        why = explained(self.name, self.connection.code, self.connection.complaint)
        if self._answered or self.connection.code != 255:
            raise self.failed("environment", "failed", why)
        raise self.failed("unreachable", "unreachable", why)

    def failed(self, cause: Any, word: Any, why: str) -> NodesNotReady:
        return NodesNotReady(cause, why, (NodeEnd(self._node_rank, self.name, word, why),))


def setup_header(plan: Plan, places: NodePlaces, cargo: Cargo) -> dict[str, Any]:
    """Return what a node is told before its preparation."""
    name = environment_name(plan)
    made = {
        "name": name,
        "digest": plan.environment.digest,
        "requirements": list(plan.environment.requirements),
        "builds": [step.model_dump(mode="json") for step in plan.environment.builds],
        "index": installer.index_variables(plan.environment.index),
    }
    python = places.host.python if plan.runtime == "docker" else places.python  # the image's is not on the node
    return {
        "folder": str(places.folder),
        "code": cargo.announced("code"),
        "wheels": cargo.announced("wheels"),
        "environment": made if name else {"name": None, "python": python},
    }


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:1000]
