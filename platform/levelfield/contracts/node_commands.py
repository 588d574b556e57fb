"""What a node runs for a vendor's adapter, and the adapter that later reads what was printed there.

The adapter itself runs on the platform's machine only. A node needs neither it nor the vendor's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from levelfield.contracts.command import Ask, CommandOutput
from levelfield.contracts.vendor import Vendor
from levelfield.specs.site import NodeCommand

NOT_REPLAYABLE = "this vendor's adapter cannot read what another node recorded"


@dataclass(frozen=True)
class NodeCommands:
    """samples: the commands that a node repeats during a run. facts: by name, those that it runs once."""

    samples: tuple[NodeCommand, ...] = ()
    facts: Mapping[str, NodeCommand] = field(default_factory=lambda: MappingProxyType({}))


@runtime_checkable
class ReplayableVendor(Protocol):
    """An adapter that can read what its tools printed elsewhere. DeclaredVendor is one, where it has no subclass."""

    def node_commands(self) -> NodeCommands:
        """Return what a node has to run, so that `replayed` can sample from the outputs."""
        ...

    def replayed(self, ask: Ask) -> Vendor | None:
        """Return an adapter whose tools give the answers of `ask`, and that reads nothing of this machine."""
        ...


def recorded_commands(vendor: Vendor) -> NodeCommands:
    """Return what a node has to run for a vendor; nothing for an adapter that could not read it."""
    if isinstance(vendor, ReplayableVendor) and vendor.replayed(_silent) is not None:
        return vendor.node_commands()
    return NodeCommands()


def replayed(vendor: Vendor, ask: Ask) -> Vendor | None:
    """Return the vendor's adapter over recorded answers; None where it cannot read them."""
    return vendor.replayed(ask) if isinstance(vendor, ReplayableVendor) else None


def answers_of(outputs: Iterable[Any]) -> Ask:
    """Return an `Ask` that gives recorded outputs: objects with `argv`, and `text` or `reason`. Nothing raises."""
    found = {_argv(output): _answer(output) for output in outputs if isinstance(output, dict)}
    return lambda argv, seconds: found.get(tuple(argv), CommandOutput(None, f"{argv[0]} was not recorded on the node"))


def _argv(output: Mapping[str, Any]) -> tuple[str, ...]:
    argv = output.get("argv")
    return tuple(map(str, argv)) if isinstance(argv, list) else ()


def _answer(output: Mapping[str, Any]) -> CommandOutput:
    text = output.get("text")
    if isinstance(text, str):
        return CommandOutput(text)
    return CommandOutput(None, str(output.get("reason", "no output was recorded")), bool(output.get("absent")))


def _silent(argv: object, seconds: float) -> CommandOutput:
    return CommandOutput(None, "nothing was recorded")
