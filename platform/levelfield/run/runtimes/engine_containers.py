"""Creates and starts a container of the engine from a ContainerWork."""

from __future__ import annotations

import grp
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container
from docker.types import DeviceRequest, Ulimit

from levelfield.contracts.execution import ContainerWork
from levelfield.run.runtimes.engine import hurry
from levelfield.specs.vendor import ContainerOptions


@contextmanager
def started(
    client: DockerClient, work: ContainerWork, address: str | None = None, left: list[str] | None = None
) -> Iterator[tuple[Container, list[str]]]:
    """Give the running container and sentences about refused options. The block's end removes it.

    left: receives the container's name where the engine did not remove it.
    """
    ulimits, warnings = dict(work.options.ulimits), []
    while True:
        with _created(client, _arguments(client, work, ulimits, address), left) as container:
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
def _created(client: DockerClient, arguments: dict[str, Any], left: list[str] | None = None) -> Iterator[Container]:
    """Give the container before its start, with its standard input open.

    The system closes that input when the platform is killed. The container's first process then ends all ranks.
    """
    created: str = client.api.create_container(**arguments)["Id"]
    container = client.containers.get(created)
    try:
        with closing(client.api.attach_socket(created, params={"stdin": 1, "stream": 1})):
            yield container
    except KeyboardInterrupt:
        hurry(client)
        raise
    finally:
        try:
            container.remove(force=True, v=True)
        except NotFound:
            pass
        except Exception:  # the engine is gone: the next start finds the container by its label and removes it
            if left is not None:
                left.append(arguments["name"])


def _arguments(
    client: DockerClient, work: ContainerWork, ulimits: dict[str, int], address: str | None
) -> dict[str, Any]:
    """Return the arguments for the engine. The only capabilities are those that the vendor names with a reason."""
    options = work.options
    host = client.api.create_host_config(
        binds={path: {"bind": path, "mode": mode} for path, mode in work.mounts.items()},
        network_mode=work.network,
        mem_limit=work.memory_bytes,
        memswap_limit=work.memory_bytes,
        cap_drop=["ALL"],
        cap_add=list(options.capabilities),
        security_opt=["no-new-privileges", *options.security_options],
        devices=[f"{node}:{node}:rw" for node in options.device_nodes],
        device_requests=_device_requests(options),
        group_add=[_group(name) for name in options.groups],
        runtime=options.engine_runtime,
        ipc_mode="host" if options.host_ipc else None,
        shm_size=options.shm_bytes,
        ulimits=[Ulimit(name=name, soft=value, hard=value) for name, value in ulimits.items()],
    )
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
        "host_config": host,
        "networking_config": _alias(work.network, address),
    }


def _device_requests(options: ContainerOptions) -> list[DeviceRequest]:
    if not options.device_request:
        return []
    wanted = list(options.device_request)
    return [DeviceRequest(driver=options.request_driver or "", device_ids=wanted, capabilities=[["gpu"]])]


def _group(name: str) -> str:
    """Return the number of a group on the host. The image may lack the group or use another number."""
    try:
        return str(grp.getgrnam(name).gr_gid)
    except KeyError:
        return name


def _alias(network: str, address: str | None) -> dict[str, Any] | None:
    if network in ("none", "host") or address is None:
        return None
    return {"EndpointsConfig": {network: {"Aliases": [address]}}}
