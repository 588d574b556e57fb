"""The container engine, by the docker SDK: the connection, its errors, and how containers are made and removed."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from levelfield.contracts.execution import ContainerWork, Say
from levelfield.errors import RunFailed, connection_failure_text
from levelfield.node.process_identity import identify_process, is_alive, parse_identity
from levelfield.specs.plan import ContainerPlan, Plan

if TYPE_CHECKING:  # the SDK loads slowly, and most commands need no engine
    from docker import DockerClient
    from docker.models.containers import Container

RUN_LABEL = "levelfield.run"
OWNER_LABEL = "levelfield.owner"
IMAGE_LABEL = "levelfield.image"
TIMEOUT_SECONDS = 60  # for each answer of the engine
INTERRUPTED_TIMEOUT_SECONDS = 5  # for each answer after an interrupt
SILENT_TIMEOUT_SECONDS = 1  # for each answer of an engine that did not answer before
HOME_VARIABLES = {  # the image does not know the user
    "HOME": "/tmp",
    "USER": "levelfield",
    "LOGNAME": "levelfield",
}


class EngineError(Exception):
    """The engine does not respond any more, or it responds with an error that a retry cannot solve."""


@contextmanager
def connect() -> Iterator[DockerClient]:
    """Connect to the engine of DOCKER_HOST, else to the local one. Raises RunFailed with what to do."""
    from docker import DockerClient
    from docker.errors import DockerException

    try:
        client = DockerClient.from_env(timeout=TIMEOUT_SECONDS)
        client.ping()
    except (DockerException, OSError):
        address = os.environ.get("DOCKER_HOST", "the usual socket of Docker's")
        raise RunFailed(
            f"no container engine answers at {address}: start one, or set DOCKER_HOST. A run without --runtime docker "
            "needs none"
        ) from None
    with closing(client):
        yield client


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn every error of the engine or its connection into EngineError, with the first line of its message."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException, OSError) as error:
        raise EngineError(first_error_line(error)) from None


@contextmanager
def connect_or_fail() -> Iterator[DockerClient]:
    """Connect to the engine for the block. Its errors become RunFailed there: a run then ends with a result."""
    try:
        with connect() as client, engine_errors():
            yield client
    except EngineError as error:
        raise RunFailed(f"the container engine: {error}") from None


def shorten_timeout(client: DockerClient, seconds: int = INTERRUPTED_TIMEOUT_SECONDS) -> None:
    """Let each later call wait at most so long for the engine: after an interrupt, or where it is silent."""
    client.api.timeout = seconds


def require_container(plan: Plan) -> ContainerPlan:
    assert plan.container is not None, "a plan for runtime docker has a container"
    return plan.container


def first_error_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    explanation = getattr(error, "explanation", None)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = str(explanation or (connection_failure_text(error) if isinstance(error, OSError) else error)).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def owner_label() -> str:
    """Return the label that names this process as the owner; `is_owner_alive` reads it."""
    identity = identify_process(os.getpid())
    return identity.to_text() if identity else ""


def is_owner_alive(labels: Mapping[str, str]) -> bool:
    """Return whether the label's process still runs; true for one of another machine, and for an unknown label."""
    identity = parse_identity(labels[OWNER_LABEL])
    return identity is None or is_alive(identity) is not False


def remove_leftovers(client: DockerClient, say: Say) -> None:
    """Remove containers and networks of runs whose platform was killed. A failure to remove one is ignored."""
    from docker.errors import APIError

    filters: dict[str, str | list[str] | bool] = {"label": OWNER_LABEL}
    for container in client.containers.list(all=True, filters=filters, ignore_removed=True):
        if not is_owner_alive(container.labels):
            say(f"removing {container.name}, which a killed run left")
            with suppress(APIError):
                container.remove(force=True, v=True)
    for network in client.networks.list(filters=filters):
        if not is_owner_alive(network.attrs["Labels"]):
            with suppress(APIError):
                network.remove()


@contextmanager
def running_container(
    client: DockerClient, work: ContainerWork, address: str | None = None, not_removed: list[str] | None = None
) -> Iterator[tuple[Container, list[str]]]:
    """Yield the running container and sentences about refused options. The block's end removes it.

    not_removed: receives the container's name where the engine did not remove it.
    """
    from docker.errors import APIError

    ulimits, warnings = dict(work.options.ulimits), []
    while True:
        with _created_container(client, _container_arguments(client, work, ulimits, address), not_removed) as container:
            try:
                container.start()
            except APIError as error:
                if "rlimit" not in str(error) or not ulimits:
                    raise
                name, value = ulimits.popitem()  # the engine does not name the refused one; all are optional
                warnings.append(f"the engine refused ulimit {name}={value}; the container ran without it")
                continue
            yield container, warnings
            return


@contextmanager
def _created_container(
    client: DockerClient, arguments: dict[str, Any], not_removed: list[str] | None = None
) -> Iterator[Container]:
    """Yield the container before its start, with its standard input open.

    The system closes that input when the platform is killed. The container's first process then ends all ranks.
    """
    from docker.errors import NotFound

    container_id: str = client.api.create_container(**arguments)["Id"]
    container = client.containers.get(container_id)
    try:
        with closing(client.api.attach_socket(container_id, params={"stdin": 1, "stream": 1})):
            yield container
    except KeyboardInterrupt:
        shorten_timeout(client)
        raise
    finally:
        try:
            container.remove(force=True, v=True)
        except NotFound:
            pass
        except Exception:  # the engine is gone: the next start finds the container by its label and removes it
            if not_removed is not None:
                not_removed.append(arguments["name"])


def _container_arguments(
    client: DockerClient, work: ContainerWork, ulimits: dict[str, int], address: str | None
) -> dict[str, Any]:
    """Return the arguments for the engine. The only capabilities are those that the vendor names with a reason."""
    from docker.types import DeviceRequest, Ulimit

    options, device_ids = work.options, list(work.options.device_request)
    groups = []  # by their numbers on the host: the image may lack the group or use another number
    for name in options.groups:
        try:
            groups.append(str(grp.getgrnam(name).gr_gid))
        except KeyError:
            groups.append(name)
    device_request = DeviceRequest(driver=options.request_driver or "", device_ids=device_ids, capabilities=[["gpu"]])
    host_config = client.api.create_host_config(
        binds={path: {"bind": path, "mode": mode} for path, mode in work.mounts.items()},
        network_mode=work.network,
        mem_limit=work.memory_bytes,
        memswap_limit=work.memory_bytes,
        cap_drop=["ALL"],
        cap_add=list(options.capabilities),
        security_opt=["no-new-privileges", *options.security_options],
        devices=[f"{node}:{node}:rw" for node in options.device_nodes],
        device_requests=[device_request] if device_ids else [],
        group_add=groups,
        runtime=options.engine_runtime,
        ipc_mode="host" if options.host_ipc else None,
        shm_size=options.shm_bytes,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
    )
    has_alias = work.network not in ("none", "host") and address is not None
    return {
        "image": work.image,
        "name": work.name,
        "command": list(work.argv),
        "entrypoint": [],
        "user": work.user,
        "environment": work.environment,
        "labels": work.labels,
        "hostname": None if address in (None, "127.0.0.1") else address,
        "stdin_open": True,
        "host_config": host_config,
        "networking_config": {"EndpointsConfig": {work.network: {"Aliases": [address]}}} if has_alias else None,
    }
