"""The vendor contract: what the platform asks of an adapter, on the host, without any framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from levelfield.specs.container import ContainerOptions
from levelfield.specs.vendor import ContainerAccess, VendorFile

__all__ = ["ContainerOptions", "Device", "Sample", "Vendor", "container_options"]


@dataclass(frozen=True)
class Device:
    """One device that a framework can use. `index` is what the visible-devices variable takes.

    chip: the name of an entry in vendor.yaml, or None when the device is of an unknown kind.
    description: what the maker's tool calls it. memory_bytes: the whole memory, None if unreadable.
    """

    index: int
    chip: str | None
    description: str
    memory_bytes: int | None
    identity: str | None = None


@dataclass(frozen=True)
class Sample:
    """One reading of one device; what cannot be read is None, and `reasons` says why, by field name.

    power_watts: averaged by the tool over its own interval. energy_joules: a running counter, where one exists.
    utilisation: 0 to 1. Times are the platform's: an adapter does not stamp its samples.
    """

    index: int
    power_watts: float | None = None
    energy_joules: float | None = None
    memory_used_bytes: int | None = None
    utilisation: float | None = None
    temperature_celsius: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def container_options(access: ContainerAccess, devices: Sequence[Device]) -> ContainerOptions:
    """vendor.yaml's `container`, for these devices: `{index}` filled in for each of them, once what is common."""
    requested = tuple(device.identity or str(device.index) for device in devices)
    return ContainerOptions(
        device_nodes=_for_each(access.device_nodes, devices),
        read_only_mounts=tuple(mount.path for mount in access.mounts),
        device_request=requested if access.device_request else (),
        request_driver=access.device_request,
        groups=access.groups,
        engine_runtime=access.engine_runtime,
        environment={name: _listed(text, devices) for name, text in access.environment.items()},
        capabilities=tuple(access.capabilities),
        security_options=tuple(access.security_options),
        host_ipc=access.host_ipc,
        shm_bytes=access.shm_bytes,
        network=access.network,
        ulimits=dict(access.ulimits),
    )


def _for_each(texts: Sequence[str], devices: Sequence[Device]) -> tuple[str, ...]:
    filled = [text.replace("{index}", str(d.index)) for text in texts for d in devices]
    return tuple(dict.fromkeys(filled))


def _listed(text: str, devices: Sequence[Device]) -> str:
    return text.replace("{index}", ",".join(str(d.index) for d in devices))


class Vendor(Protocol):
    """An adapter, made with its vendor.yaml: contracts.declared.DeclaredVendor, or the class `Adapter` of the vendor's
    adapter.py, which has this shape and may take DeclaredVendor as its base.

    No method raises for absent hardware: `devices()` is then empty and samples are empty of values.
    """

    spec: VendorFile

    def devices(self) -> Sequence[Device]: ...

    def container(self, devices: Sequence[Device]) -> ContainerOptions: ...

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        """One reading per device, in their order. Called about once a second, from one thread."""

    def software(self) -> dict[str, str]:
        """Versions outside the framework: driver, firmware, kernel, host processor."""
