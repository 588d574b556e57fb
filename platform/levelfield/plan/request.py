"""The user's request: the options of a run, and one entry of work with the values of a suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from levelfield.catalog.lookup import Selection
from levelfield.specs.derivation import Derivation
from levelfield.specs.plan import RuntimeName
from levelfield.specs.selector import Selector
from levelfield.specs.site import LaunchPlan, NodePowerSite
from levelfield.specs.suite import EntryUsed, NamedHardware
from levelfield.specs.tuning import TuningChoice

RequestedScale = Literal["auto", "smoke", "full"]


@dataclass(frozen=True)
class UserRequest:
    """The options of a run beside the case string.

    choice: free fields that the user sets. repeat: the number of runs; None takes it from the case string.
    python: an interpreter to use as it is. assume: plan for devices that may be absent. probe: measure the peak again.
    capture_step: the step whose tensors are written. offline: nothing is fetched from a network. base_image,
    base_has_framework, container_memory_bytes, allow: for runtime docker; base_has_framework: the user's image brings
    the framework, and nothing is installed; allow: what a vendor's container may be given beyond the closed
    list.
    hardware: the value of --assume-hardware. derivation: changes that make a derived case. launch: how other machines
    are reached, with all hosts of the site; None for this machine alone. preflight: whether the nodes are measured
    before the training; None: where there are several machines. quiet_machine: others on the machines refuse the run.
    devices: the numbers of the devices of this machine to take; empty: any. base: no vendor and no suite chooses.
    node_power: the site's command that prints the power of whole nodes. explain_steps: how many steps after the last
    one are recorded; None: none.
    """

    scale: RequestedScale = "auto"
    choice: TuningChoice = field(default_factory=TuningChoice)
    repeat: int | None = None
    python: str | None = None
    assume: bool = False
    save_weights: bool = False
    capture_step: int | None = None
    probe: bool = False
    runtime: RuntimeName = "process"
    base_image: str | None = None
    base_has_framework: bool = False
    offline: bool = False
    container_memory_bytes: int | None = None
    allow: tuple[str, ...] = ()
    hardware: NamedHardware | None = None
    derivation: Derivation = field(default_factory=Derivation)
    launch: LaunchPlan | None = None
    preflight: bool | None = None
    quiet_machine: bool = False
    devices: tuple[int, ...] = ()
    base: bool = False
    node_power: NodePowerSite | None = None
    explain_steps: int | None = None


@dataclass(frozen=True)
class Suggestion:
    """Free fields that a suite's entry sets, and the name of the suite. The user's own choice has priority."""

    choice: TuningChoice = field(default_factory=TuningChoice)
    by: str = ""


@dataclass(frozen=True)
class Entry:
    """One entry of work: a case string and the user's request. The other fields come from a suite's entry."""

    text: str
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"
    suggestion: Suggestion = field(default_factory=Suggestion)
    hardware: NamedHardware | None = None
    suite: EntryUsed | None = None


@dataclass(frozen=True)
class Decision:
    """The input of `resolve`.

    text: the case string as the user wrote it. selector: the same with the chosen hardware. selection: the documents
    and devices that it names. scale, scale_reason: the requested scale, and the reason where it is not the command
    line's. suite: the suite's entry. deviations: differences from the request, as sentences. refusal: why this machine
    cannot run it; the plan is then a record and is not checked. driver: the version of the devices' driver, where
    packages that the platform installs need a certain one.
    """

    text: str
    selector: Selector
    selection: Selection
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"
    scale_reason: str | None = None
    suggestion: Suggestion = field(default_factory=Suggestion)
    suite: EntryUsed | None = None
    deviations: tuple[str, ...] = ()
    refusal: str | None = None
    driver: str | None = None
