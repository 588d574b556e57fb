"""A container as values: the parts of the host that it sees, and the image that it is made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import Field

from levelfield.specs.base import LATER, Value
from levelfield.specs.requirements import BuildStep
from levelfield.specs.vendor import Image


@dataclass(frozen=True)
class ContainerOptions:
    """The options with which a container sees exactly the chosen devices. Building them has no side effect.

    device_request: identities for the driver `request_driver`. groups: names or numbers. security_options,
    capabilities: each has its reason in vendor.yaml. specs.vendor.ContainerAccess defines all fields.
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
    """The recipe of a run's image. `dockerfile` is complete, except for the wheels of `requirements`.

    python: the interpreter in the image. builds, index: of the wheels, as in an environment's plan.
    """

    name: str
    base: Image
    python: str
    requirements: tuple[str, ...]
    dockerfile: str
    builds: tuple[BuildStep, ...] = Field(default=(), json_schema_extra=LATER)
    index: str | None = Field(default=None, json_schema_extra=LATER)

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that are installed in the image."""
        return (*self.requirements, *(package for step in self.builds for package in step.packages))


class ContainerPlan(Value):
    """The container of each node.

    visible: the visible-devices variable with its value inside the container. offline: neither wheels nor a base image
    are downloaded. memory_bytes: the memory limit of a node's container. allowed: what the user allowed beyond the
    closed list, as values of --allow.
    """

    image: ImagePlan
    options: ContainerOptions
    visible: dict[str, str]
    memory_bytes: int | None = None
    offline: bool = False
    allowed: tuple[str, ...] = ()
