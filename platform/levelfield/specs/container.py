"""What a container is: what it shows of the host, and the image it is made from, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from levelfield.specs.base import Value
from levelfield.specs.vendor import Image


@dataclass(frozen=True)
class ContainerOptions:
    """What a container needs to see exactly the chosen devices; built without side effect.

    device_request: identities for the driver `request_driver`. groups: names or numbers. security_options,
    capabilities: each has its reason in vendor.yaml. The meaning of all is that of specs.vendor.ContainerAccess.
    """

    device_nodes: tuple[str, ...] = ()
    read_only_mounts: tuple[str, ...] = ()
    device_request: tuple[str, ...] = ()
    request_driver: str | None = None
    groups: tuple[str, ...] = ()
    engine_runtime: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    security_options: tuple[str, ...] = ()
    host_ipc: bool = False
    shm_bytes: int | None = None
    network: str = "none"
    ulimits: dict[str, int] = field(default_factory=dict)


class ImagePlan(Value):
    """The recipe of a run's image. `dockerfile` is the whole of it, but for the wheels of `requirements`.

    python: the interpreter in it.
    """

    name: str
    base: Image
    python: str
    requirements: tuple[str, ...]
    dockerfile: str


class ContainerPlan(Value):
    """visible: the visible-devices variable as it holds within. offline: neither wheels nor a base image are fetched.
    memory_bytes: the limit of a node's container."""

    image: ImagePlan
    options: ContainerOptions
    visible: dict[str, str]
    memory_bytes: int | None = None
    offline: bool = False
