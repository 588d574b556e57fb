"""Runtime `docker` on nodes that ssh reaches: the node's part runs inside a container of the node's own engine.

The image is built on this machine, as for a run here, and brought to each node that lacks it, once. Its name on the
nodes is a function of the plan, so that a dry run shows the command that is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from levelfield.run.launchers.ssh.ssh_places import NodePlaces
from levelfield.run.runtimes.engine import RUN_LABEL
from levelfield.run.runtimes.process_runtime import launch_of
from levelfield.specs.container import ContainerPlan
from levelfield.specs.plan import Plan

LOCKS = "/tmp/levelfield-devices"  # of the node; the engine would make a missing folder for root alone
# Only the node knows the numbers of its user. The words that follow are the options, the image and the command.
_AS_THE_USER = f'mkdir -p -m 1777 {LOCKS} && exec {{client}} run --user "$(id -u):$(id -g)" "$@"'
_HOME = {"HOME": "/tmp", "USER": "levelfield", "LOGNAME": "levelfield"}


def container_of(plan: Plan) -> ContainerPlan:
    assert plan.container is not None, "a plan for runtime docker has a container"
    return plan.container


def image_of(plan: Plan) -> str:
    """Return the image's name on the nodes: that of the recipe, with the digest of the environment."""
    return f"{container_of(plan).image.name}:node-{plan.environment.digest.removeprefix('sha256:')[:16]}"


def in_container(plan: Plan, places: NodePlaces, command: Sequence[str]) -> list[str]:
    """Return the words that run `command` in a container on a node. Its standard input is the container's."""
    script = _AS_THE_USER.format(client=launch_of(plan).site.ssh.container)
    return ["sh", "-c", script, "levelfield", *_options(plan, places), image_of(plan), *command]


def _options(plan: Plan, places: NodePlaces) -> Iterator[str]:
    """Yield what `run/runtimes/engine.py` gives to the engine's interface, as options of the client.

    The network is the node's own: the ranks of other nodes must reach it.
    """
    container = container_of(plan)
    options = container.options
    yield from ("--rm", "--interactive", "--init", "--network=host", "--entrypoint=", "--cap-drop=ALL")
    yield from ("--security-opt=no-new-privileges", f"--label={RUN_LABEL}={plan.run_id}")
    for name, value in {**_HOME, **options.environment}.items():
        yield f"--env={name}={value}"
    for folder, mode in _mounts(plan, places).items():
        yield f"--volume={folder}:{folder}:{mode}"
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


def _mounts(plan: Plan, places: NodePlaces) -> dict[str, str]:
    """Return the node's folders that the container sees, at the same path."""
    corpus = {str(Path(plan.corpus.prefix).absolute().parent): "ro"} if plan.corpus.prefix else {}
    readable = dict.fromkeys(container_of(plan).options.read_only_mounts, "ro")
    return {str(places.folder): "rw", LOCKS: "rw", **corpus, **readable}
