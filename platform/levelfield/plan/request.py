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
    """The options of a run beside the case string."""

    scale: RequestedScale = "auto"
    choice: TuningChoice = field(default_factory=TuningChoice)  # free fields that the user sets
    repeat: int | None = None  # the number of runs; None takes it from the case string
    python: str | None = None  # an interpreter to use as it is
    assume: bool = False  # plan for devices that may be absent
    save_weights: bool = False
    capture_step: int | None = None  # the step whose tensors are written
    probe: bool = False  # measure the peak again
    runtime: RuntimeName = "process"
    base_image: str | None = None  # the user's, for runtime docker
    base_has_framework: bool = False  # the user's image brings the framework, and nothing is installed
    offline: bool = False  # nothing is fetched from a network
    container_memory_bytes: int | None = None  # for runtime docker
    allow: tuple[str, ...] = ()  # what a vendor's container may be given beyond the closed list
    hardware: NamedHardware | None = None  # the value of --assume-hardware
    derivation: Derivation = field(default_factory=Derivation)  # changes that make a derived case
    launch: LaunchPlan | None = None  # how other machines are reached, with all hosts of the site; None: this one
    preflight: bool | None = None  # whether the nodes are measured before the training; None: where there are several
    quiet_machine: bool = False  # others on the machines refuse the run
    devices: tuple[int, ...] = ()  # the numbers of the devices of this machine to take; empty: any
    base: bool = False  # no vendor and no suite chooses
    node_power: NodePowerSite | None = None  # the site's command that prints the power of whole nodes
    explain_steps: int | None = None  # how many steps after the last one are recorded; None: none


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
    """The input of `resolve`."""

    text: str  # the case string as the user wrote it
    selector: Selector  # the same with the chosen hardware
    selection: Selection  # the documents and devices that it names
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"  # the requested one
    scale_reason: str | None = None  # where the scale is not the command line's
    suggestion: Suggestion = field(default_factory=Suggestion)
    suite: EntryUsed | None = None  # the suite's entry
    deviations: tuple[str, ...] = ()  # differences from the request, as sentences
    refusal: str | None = None  # why this machine cannot run it; the plan is then a record and is not checked
    # The version of the devices' driver, where packages that the platform installs need a certain one.
    driver: str | None = None
