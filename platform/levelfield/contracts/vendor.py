"""The vendor contract: what the platform asks of an adapter, on the host, without any framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from levelfield.specs.vendor import VendorFile


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


@dataclass(frozen=True)
class ContainerOptions:
    """What a container needs to see exactly the chosen devices; built without side effect."""

    device_nodes: tuple[str, ...] = ()
    read_only_mounts: tuple[str, ...] = ()
    device_request: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Vendor(Protocol):
    """An adapter. `vendors/<name>/adapter.py` holds a class `Adapter` with this shape, made with its vendor.yaml.

    No method raises for absent hardware: `devices()` is then empty and samples are empty of values.
    """

    spec: VendorFile

    def devices(self) -> Sequence[Device]: ...

    def container(self, devices: Sequence[Device]) -> ContainerOptions: ...

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        """One reading per device, in their order. Called about once a second, from one thread."""

    def software(self) -> dict[str, str]:
        """Versions outside the framework: driver, firmware, kernel, host processor."""
