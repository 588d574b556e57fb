"""Runtimes on nodes that ssh reaches: their own folders, prepared before the run, or containers of their own engines.

The image is built on this machine, as for a run here, and brought to each node that lacks it, once. Its name on the
nodes is a function of the plan, so that a dry run shows the command that is sent.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.contracts.command import run_bounded
from levelfield.contracts.execution import NodeEnd, NodesNotReady, NodeWork, Say
from levelfield.node.device_files import DEFAULT_LOCK_FOLDER
from levelfield.run.launchers.ssh.connection import Connection, wait_for_output
from levelfield.run.launchers.ssh.peer_paths import require_peer_paths
from levelfield.run.launchers.ssh.remote_node import RemoteNode, plan_for_node, remote_node, ssh_argv
from levelfield.run.launchers.ssh.ssh_setup import prepare_nodes
from levelfield.run.runtimes import images
from levelfield.run.runtimes.engine import (
    HOME_VARIABLES,
    RUN_LABEL,
    connect_or_fail,
    remove_leftovers,
    require_container,
)
from levelfield.run.runtimes.process_runtime import NodeFolders, NodeRuntime, require_launch, worker_pythonpath
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

if TYPE_CHECKING:
    from docker import DockerClient

# Runs a container as the node's user, whose ids only the node knows. Its arguments are the options, the image and the
# command. It makes the folder of locks, which the engine would make for root alone.
_RUN_AS_USER_SCRIPT = f'mkdir -p -m 1777 {DEFAULT_LOCK_FOLDER} && exec {{client}} run --user "$(id -u):$(id -g)" "$@"'
PROGRESS_BYTES = 256 * 2**20  # between two reports of progress
INSPECT_SECONDS = 60.0  # the longest wait for a node's container engine
LOAD_SECONDS = 600.0  # the same, while it takes nothing of an image, and while it unpacks one
LOAD_POLL_SECONDS = 0.1


class SshRuntime(NodeRuntime):
    """The runtime of nodes with folders of their own; with `--runtime docker` in containers of their engines.

    `output` runs its commands on the first node.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(require_launch(plan).hosts[0].peer_address)
        self._built_image: images.BuiltImage | None = None

    @contextmanager
    def in_use(self, plan: Plan, say: Say) -> Iterator[SshRuntime]:
        """Prepare every node. A missing image is built here first. Raises NodesNotReady."""
        prepare_nodes(plan, say)
        require_peer_paths(require_launch(plan), say)
        if plan.runtime == "docker":
            with connect_or_fail() as client:
                remove_leftovers(client, say)
                self._built_image = images.prepare_image(client, require_container(plan), say)
                client.images.get(self._built_image.id).tag(node_image_name(plan))
                for node_rank in range(plan.hardware.nodes):
                    NodeEngine(plan, node_rank).load_image(client, self._built_image.id, say)
        yield self

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the packages, and the image with `--runtime docker`."""
        image = {"image": self._built_image.to_dict()} if self._built_image else {}
        return {**super().identity(plan), **image}

    def write_files(self, plan: Plan, paths: RunPaths) -> None:
        """Write the image's recipe to the run directory."""
        if self._built_image:
            self._built_image.write_recipe(require_container(plan).image, paths.image)

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the work of one node, with that node's paths. paths: unused, as they are this machine's."""
        remote = remote_node(plan, node_rank)
        self._folders = NodeFolders(remote.code, plan_for_node(plan, remote).implementation.folder, remote.python)
        return super().node(plan, remote.run, node_rank)

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        remote = remote_node(plan, 0)
        assignments = [f"{name}={value}" for name, value in (worker_pythonpath(remote.code) | environment).items()]
        command, node_plan = ["env", *assignments], plan_for_node(plan, remote)
        node_folders = {plan.environment.python: node_plan.environment.python}
        node_folders[plan.implementation.folder] = node_plan.implementation.folder
        for word in argv:  # each path of this machine becomes the node's
            local_folder = next((folder for folder in node_folders if f"{word}/".startswith(f"{folder}/")), "")
            command.append(node_folders.get(local_folder, "") + word[len(local_folder) :])
        if plan.runtime == "docker":
            command = list(container_command(plan, remote, command))
        completed = run_bounded(ssh_argv(require_launch(plan), remote.host, command), seconds)
        completed.check_returncode()
        return completed.stdout


def node_image_name(plan: Plan) -> str:
    """Return the image's name on the nodes: that of the recipe, with the digest of the environment."""
    return f"{require_container(plan).image.name}:node-{plan.environment.digest.removeprefix('sha256:')[:16]}"


def container_command(plan: Plan, remote: RemoteNode, command: Sequence[str]) -> Iterator[str]:
    """Yield the words that run a command in a container on a node. Its standard input is the container's.

    The options are those that `run/runtimes/engine.py` sets for containers of this machine. The network is the node's
    own: the ranks of other nodes must reach it.
    """
    yield from ("sh", "-c", _RUN_AS_USER_SCRIPT.format(client=require_launch(plan).site.ssh.container), "levelfield")
    container = require_container(plan)
    options = container.options
    yield from ("--rm", "--interactive", "--init", "--network=host", "--entrypoint=", "--cap-drop=ALL")
    yield from ("--security-opt=no-new-privileges", f"--label={RUN_LABEL}={plan.run_id}")
    yield from (f"--env={name}={value}" for name, value in {**HOME_VARIABLES, **options.environment}.items())
    corpus = {str(Path(plan.corpus.prefix).absolute().parent): "ro"} if plan.corpus.prefix else {}
    mounts = {
        str(remote.folder): "rw",
        DEFAULT_LOCK_FOLDER: "rw",
        **corpus,
        **dict.fromkeys(options.read_only_mounts, "ro"),
    }
    yield from (f"--volume={folder}:{folder}:{mode}" for folder, mode in mounts.items())  # at the node's own paths
    yield from (f"--cap-add={name}" for name in options.capabilities)
    yield from (f"--security-opt={name}" for name in options.security_options)
    yield from (f"--device={node}" for node in options.device_nodes)
    yield from (f"--group-add={name}" for name in options.groups)
    yield from (f"--ulimit={name}={value}" for name, value in options.ulimits.items())
    if options.device_request:
        yield f'--gpus="device={",".join(options.device_request)}"'
    if options.engine_runtime:
        yield f"--runtime={options.engine_runtime}"
    if options.host_ipc:
        yield "--ipc=host"
    if options.shm_bytes:
        yield f"--shm-size={options.shm_bytes}"
    if container.memory_bytes:
        yield from (f"--memory={container.memory_bytes}", f"--memory-swap={container.memory_bytes}")
    yield from (node_image_name(plan), *command)


class NodeEngine:
    """The container engine of one node. Each of its failures raises NodesNotReady."""

    def __init__(self, plan: Plan, node_rank: int) -> None:
        self._launch, self._image_name, self._node_rank = require_launch(plan), node_image_name(plan), node_rank
        self._host, self._engine_command = remote_node(plan, node_rank).host, self._launch.site.ssh.container

    def load_image(self, client: DockerClient, image_id: str, say: Say) -> None:
        """Send the image from this machine's engine to a node that lacks it."""
        if self.image_id() == image_id:
            return
        name, image = self._host.name, client.images.get(self._image_name)
        say(f"{name}: bringing the image {self._image_name} ({image.attrs['Size'] / 2**20:,.0f} MiB unpacked)")
        argv = ssh_argv(self._launch, self._host, [self._engine_command, "load", "--quiet"])
        connection, sent_bytes = Connection(name, argv), 0
        try:
            for part in image.save(named=self._image_name):
                connection.send(part)
                self._wait_for_load(connection, lambda: not connection.unsent)
                if connection.has_ended():
                    break
                sent_before, sent_bytes = sent_bytes, sent_bytes + len(part)
                if sent_bytes // PROGRESS_BYTES > sent_before // PROGRESS_BYTES:
                    say(f"{name}: sent {sent_bytes >> 20:,} MiB")
            connection.close_input()
            say(f"{name}: unpacking the image, at most {LOAD_SECONDS:g} s")
            self._wait_for_load(connection, lambda: False)
        finally:
            connection.end()
        error_output = " ".join(connection.complaint.split())[-300:]
        error_output = f": {error_output or f'exit code {connection.code}'}" if connection.code else ""
        if (loaded := self.image_id()) != image_id:
            raise self._not_ready_error(f"found image {loaded}, expected {image_id} after it was brought{error_output}")

    def _wait_for_load(self, connection: Connection, is_done: Callable[[], bool]) -> None:
        """Wait until it is done or the command has ended, at most LOAD_SECONDS without a byte that is taken."""
        last_progress = time.monotonic()
        while not is_done() and not (connection.read() is None and connection.has_ended()):
            if connection.flush():
                last_progress = time.monotonic()
            if time.monotonic() - last_progress > LOAD_SECONDS:
                raise self._not_ready_error(f"its container engine took nothing of the image in {LOAD_SECONDS:g} s")
            if not is_done():
                wait_for_output([connection], LOAD_POLL_SECONDS)

    def image_id(self) -> str | None:
        """Return the image's id on the node; None where the node does not have it."""
        command = [self._engine_command, "image", "inspect", "--format", "{{json .Id}}", self._image_name]
        try:
            completed = run_bounded(ssh_argv(self._launch, self._host, command), INSPECT_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._not_ready_error(f"its container engine gave no answer in {INSPECT_SECONDS:g} s") from None
        except subprocess.SubprocessError as error:
            raise self._not_ready_error(f"its container engine printed {error}") from None
        if completed.returncode == 0:
            try:
                return str(json.loads(completed.stdout))
            except ValueError:
                raise self._not_ready_error(
                    f"its container engine printed {completed.stdout[:80]!r}, expected an image's id"
                ) from None
        if "o such image" in completed.stderr or "o such object" in completed.stderr:
            return None
        error_output = " ".join(completed.stderr.split())[-300:] or f"exit code {completed.returncode}"
        answer = f"its container engine does not answer `{self._engine_command}`: {error_output}"
        raise self._not_ready_error(f"{answer}; name its command as ssh.container")

    def _not_ready_error(self, problem: str) -> NodesNotReady:
        reason = f"{self._host.name}: {problem}"
        return NodesNotReady("environment", reason, (NodeEnd(self._node_rank, self._host.name, "failed", reason),))
