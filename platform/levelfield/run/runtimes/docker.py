"""Runtime `docker`: a node's ranks run in a container. A missing image is built first.

A container has exactly the chosen devices, the run directory, and read-only the files that the training reads. It has
no further capability and no network that the run does not need. It runs as the user who started the run. Paths are
the same inside and outside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.contracts.execution import ContainerWork, NodeWork, Say
from levelfield.node.regular_files import read_regular
from levelfield.run.runtimes import images
from levelfield.run.runtimes.engine import (
    HOME_VARIABLES,
    OWNER_LABEL,
    RUN_LABEL,
    EngineError,
    connect,
    connect_or_fail,
    engine_errors,
    owner_label,
    remove_leftovers,
    require_container,
    running_container,
)
from levelfield.run.runtimes.process_runtime import list_packages, rank_work, worker_pythonpath
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.variables import is_secret
from levelfield.user_folders import own_cache

LIST_PACKAGES_SECONDS = 120.0


class DockerRuntime:
    """Plans containers. A request has the name of the image until the image is ready."""

    name = "docker"
    _image_id: str | None = None  # its id, once it is ready

    @contextmanager
    def in_use(self, plan: Plan, say: Say) -> Iterator[ReadyDockerRuntime]:
        """Prepare the image. Raises RunFailed."""
        with connect_or_fail() as client:
            remove_leftovers(client, say)
            image = images.prepare_image(client, require_container(plan), say)
        yield ReadyDockerRuntime(image)

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        """Return the container and the processes of one node, without side effect."""
        first_address, device_variables = node_address(plan, 0), require_container(plan).visible
        rank_works = (
            rank_work(plan, paths, rank, first_address, device_variables) for rank in plan.ranks_of(node_rank)
        )
        # the file of the node has no secrets: its processes take them from the container
        secrets = {name: value for name, value in plan.tuning.environment.items() if is_secret(name, value)}
        processes = (
            replace(rank, environment={name: text for name, text in rank.environment.items() if name not in secrets})
            for rank in rank_works
        )
        file = paths.nodes / f"node{node_rank}.json"
        script = checkout() / "platform" / "levelfield" / "node" / "rank_processes.py"
        return NodeWork(
            node_rank=node_rank,
            address=node_address(plan, node_rank),
            processes=tuple(processes),
            container=self._container_work(
                plan, f"node{node_rank}", (str(script), str(file)), {str(paths.root): "rw"}, secrets
            ),
            file=str(file),
            ends=str(paths.nodes / f"node{node_rank}.ends.json"),
        )

    def _container_work(
        self,
        plan: Plan,
        role: str,
        arguments: tuple[str, ...],
        writable_mounts: dict[str, str],
        environment: Mapping[str, str],
    ) -> ContainerWork:
        container = require_container(plan)
        network = container.options.network
        if network != "host" and plan.hardware.nodes > 1:  # nodes of one engine share a network without other access
            network = f"levelfield-{plan.run_id}"
        # by default Gloo resolves the hostname, which fails in a container without network
        interface = {} if network == "host" else {"GLOO_SOCKET_IFNAME": "lo" if network == "none" else "eth0"}
        # the worker, all models (some import others), the corpus
        read_only_folders = [checkout() / "platform", Path(plan.implementation.folder).parent]
        read_only_folders += [Path(plan.corpus.prefix).parent] if plan.corpus.prefix else []
        return ContainerWork(
            name=f"levelfield-{plan.run_id}-{role}",
            image=self._image_id or container.image.name,
            argv=(plan.environment.python, *arguments),
            user=f"{os.getuid()}:{os.getgid()}",
            environment={**HOME_VARIABLES, **interface, **container.options.environment, **environment},
            mounts={
                **dict.fromkeys((*map(str, read_only_folders), *container.options.read_only_mounts), "ro"),
                **writable_mounts,
            },
            network=network,
            labels={RUN_LABEL: plan.run_id, OWNER_LABEL: owner_label()},
            options=container.options,
            memory_bytes=container.memory_bytes,
        )


class ReadyDockerRuntime(DockerRuntime):
    """The docker runtime whose image is ready: containers are made from its id."""

    def __init__(self, image: images.BuiltImage) -> None:
        self._built_image, self._image_id = image, image.id

    def output(self, plan: Plan, argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
        """Return the output of a command in its own container. Raises OSError when it fails or takes too long."""
        variables = {**worker_pythonpath(checkout()), **environment}
        work = self._container_work(plan, f"ask-{os.urandom(3).hex()}", tuple(argv[1:]), {}, variables)
        try:
            with connect() as client, engine_errors(), running_container(client, work) as (container, _):
                code = container.wait(timeout=seconds)["StatusCode"]
                printed = container.logs(stdout=True, stderr=False).decode(errors="replace")
        except EngineError as error:
            raise OSError(str(error)) from None
        if code:
            raise OSError(f"{argv[0]} ended with exit code {code}")
        return str(printed)

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the image and its packages. A container lists an image's packages once, and a file keeps them."""
        file = own_cache() / "images" / f"{self._built_image.id.rpartition(':')[2]}.json"
        versions: dict[str, str] | None
        try:
            versions = dict(json.loads(read_regular(file, "wheels")))
        except (OSError, ValueError):
            try:
                versions = list_packages(self, plan, LIST_PACKAGES_SECONDS)
                write_atomically(file, json.dumps(versions, indent=2) + "\n")
            except OSError:
                versions = None
        with connect_or_fail() as client:
            version = client.version()
        engine = {key: version.get(key) for key in ("Version", "ApiVersion", "Os", "Arch")}
        return {"environment_packages": versions, "image": self._built_image.to_dict(), "engine": engine}

    def write_files(self, plan: Plan, paths: RunPaths) -> None:
        """Leave the recipe in the run directory, and the log of the build if it was built for this run."""
        self._built_image.write_recipe(require_container(plan).image, paths.image)


def node_address(plan: Plan, node_rank: int) -> str:
    """Return a node's name in the run's own network, or the loopback address of a single node."""
    return "127.0.0.1" if plan.hardware.nodes == 1 else f"node{node_rank}"
