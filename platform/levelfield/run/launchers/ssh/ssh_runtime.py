"""Runtime `process` on nodes that ssh reaches: their own folders, prepared before the run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from levelfield.contracts.execution import NodeWork
from levelfield.run.launchers.ssh.connection import Connection, wait_for_output
from levelfield.run.launchers.ssh.ssh_container import container_of, in_container
from levelfield.run.launchers.ssh.ssh_places import NodePlaces, moved, node_folders, places_of, ssh_argv
from levelfield.run.launchers.ssh.ssh_setup import prepare
from levelfield.run.runtimes.process_runtime import NodeRuntime, launch_of, worker_path
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

if TYPE_CHECKING:
    from levelfield.run.runtimes.images import Built


class SshRuntime(NodeRuntime):
    """The ranks of nodes with folders of their own, in containers of the nodes' engines with `--runtime docker`.

    Short commands run on the first node.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(launch_of(plan).hosts[0].reached_at)
        self._image: Built | None = None

    @contextmanager
    def in_use(self, plan: Plan, say: Callable[[str], None]) -> Iterator[SshRuntime]:
        """Prepare every node. Raises NodesNotReady with the node that cannot be prepared."""
        prepare(plan, say)
        if plan.runtime == "docker":
            # imported here: only runs in containers need the engine's library
            from levelfield.run.launchers.ssh.ssh_images import bring_images

            self._image = bring_images(plan, say)
        yield self

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the packages, and the image with `--runtime docker`."""
        image = {"image": self._image.to_dict()} if self._image else {}
        return {**super().identity(plan), **image}

    def keep(self, plan: Plan, paths: RunPaths) -> None:
        """Leave the image's recipe in the run directory."""
        if self._image:
            self._image.keep(container_of(plan).image, paths.image)

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the work of one node, with the paths of that node. paths: not used, they are this machine's."""
        places = places_of(plan, node_rank)
        self._folders = node_folders(plan, places)
        return super().node(plan, places.run, node_rank)

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        places = places_of(plan, 0)
        assigned = [f"{name}={value}" for name, value in (worker_path(places.code) | environment).items()]
        command = ["env", *assigned, *(_moved_word(plan, places, word) for word in argv)]
        if plan.runtime == "docker":
            command = in_container(plan, places, command)
        connection = Connection(places.host.name, ssh_argv(launch_of(plan), places.host, command))
        connection.close_input()
        try:
            printed = _printed(connection, time.monotonic() + seconds, command)
        finally:
            connection.end()
        if connection.code != 0:
            raise subprocess.CalledProcessError(connection.code or 255, command, stderr=connection.complaint)
        return printed.decode(errors="replace")


def _printed(connection: Connection, deadline: float, command: list[str]) -> bytes:
    """Return what a command printed. Raises TimeoutExpired."""
    printed = b""
    while time.monotonic() < deadline and len(printed) < 2**22:
        wait_for_output([connection], 0.1)
        part = connection.read()
        if part is None and connection.has_ended():
            return printed
        printed += part or b""
    raise subprocess.TimeoutExpired(command, 0)


def _moved_word(plan: Plan, places: NodePlaces, word: str) -> str:
    """Return a word of a command with the node's folders in place of this machine's."""
    there = moved(plan, places)
    for own, other in (
        (plan.environment.python, there.environment.python),
        (plan.implementation.folder, there.implementation.folder),
    ):
        if word == own or word.startswith(own + "/"):
            return other + word[len(own) :]
    return word
