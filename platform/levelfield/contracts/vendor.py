"""The vendor contract: the methods of an adapter. They run on the host, without any framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from levelfield.contracts.command import Ask, CommandOutput
from levelfield.specs.tool import NodeCommand
from levelfield.specs.vendor import ContainerOptions, VendorFile

__all__ = ["ContainerOptions", "Device", "DeviceList", "Sample", "Vendor"]

# The adapter itself runs on the platform's machine only. A node needs neither it nor the vendor's folder.
NOT_REPLAYABLE = "this vendor's adapter cannot read what another node recorded"


@dataclass(frozen=True)
class Device:
    """One device that a framework can use."""

    index: int  # its number in the vendor's tool and in the names of its files
    chip: str | None  # the name of an entry in vendor.yaml, or None for an unknown chip
    description: str  # the name that the vendor's tool prints
    memory_bytes: int | None  # the whole memory, None if unreadable
    identity: str | None = None
    visible_as: str | None = None  # its value in the visible-devices variable, where that is not the index
    # Why its value in the variable is unknown; where one is, those of all devices are.
    unnumbered_reason: str | None = None
    compute_units: int | None = None  # as the tool counts them, None where it does not

    @property
    def visible(self) -> str:
        """Return its value in the visible-devices variable."""
        return str(self.index) if self.visible_as is None else self.visible_as


class DeviceList(list[Device]):
    """The devices of a vendor on this machine.

    problem: why the vendor's tool, which is here, shows no device or may not show all. None for a whole answer and for
    a tool that is not here. Without devices, a problem means that it is unknown whether there are any.
    """

    def __init__(self, devices: Iterable[Device] = (), problem: str | None = None) -> None:
        super().__init__(devices)
        self.problem = problem


@dataclass(frozen=True)
class Sample:
    """One reading of one device. A value that cannot be read is None. The platform adds the time, not the adapter."""

    index: int
    power_watts: float | None = None  # averaged by the tool over its own interval
    energy_joules: float | None = None  # a running counter, where one exists
    memory_used_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)  # why a value is None, by field name


class Vendor(Protocol):
    """An adapter, created with its vendor.yaml: contracts.declared.DeclaredVendor, or the class `Adapter` of the
    vendor's adapter.py, which has these methods and may derive from DeclaredVendor.

    No method raises for absent hardware: `devices()` is then empty, and samples have no values.
    """

    spec: VendorFile

    def devices(self) -> Sequence[Device]:
        """Return the devices here. When a tool that is here gives no usable answer, return a DeviceList with the
        problem. A plain list has no problem."""

    def container(self, devices: Sequence[Device]) -> ContainerOptions: ...

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        """Return one sample per device, in their order. One thread calls it about once a second."""

    def software(self) -> dict[str, str]:
        """Return versions outside the framework: driver, firmware, kernel, host processor."""


@dataclass(frozen=True)
class NodeCommands:
    """The commands of a vendor's tools that a node runs."""

    sampling_commands: tuple[NodeCommand, ...] = ()  # it repeats these during a run
    # By name; it runs each once.
    fact_commands: Mapping[str, NodeCommand] = field(default_factory=lambda: MappingProxyType({}))


@runtime_checkable
class ReplayableVendor(Protocol):
    """An adapter that can read what its tools printed elsewhere. DeclaredVendor is one, where it has no subclass."""

    def node_commands(self) -> NodeCommands:
        """Return what a node has to run, so that `replayed` can sample from the outputs."""
        ...

    def replayed(self, ask: Ask) -> Vendor | None:
        """Return an adapter whose tools give the answers of `ask`, and that reads nothing of this machine."""
        ...


def replayable_commands(vendor: Vendor) -> NodeCommands:
    """Return what a node has to run for a vendor; nothing for an adapter that could not read it."""
    if isinstance(vendor, ReplayableVendor) and vendor.replayed(replaying_ask(())) is not None:
        return vendor.node_commands()
    return NodeCommands()


def replaying_ask(outputs: Iterable[Any]) -> Ask:
    """Return an `Ask` that gives recorded outputs: objects with `argv`, and `text` or `reason`. Nothing raises."""
    answers = {}
    for output in outputs:
        if not isinstance(output, dict):
            continue
        argv, text = output.get("argv"), output.get("text")
        reason, is_absent = str(output.get("reason", "no output was recorded")), bool(output.get("absent"))
        key = tuple(map(str, argv)) if isinstance(argv, list) else ()
        answers[key] = CommandOutput(text) if isinstance(text, str) else CommandOutput(None, reason, is_absent)
    return lambda argv, _: answers.get(tuple(argv), CommandOutput(None, f"{argv[0]} was not recorded on the node"))
