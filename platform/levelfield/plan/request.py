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
    repeats: int | None = None  # the number of runs; None takes it from the case string
    python: str | None = None  # an interpreter to use as it is
    may_lack_hardware: bool = False  # plan for hardware that may be absent
    save_weights: bool = False
    capture_step: int | None = None  # the step whose tensors are written
    probe: bool = False  # measure the devices' peak again
    runtime: RuntimeName = "process"
    base_image: str | None = None  # the user's, for runtime docker
    base_has_framework: bool = False  # the user's image brings the framework, and nothing is installed
    offline: bool = False  # nothing is fetched from a network
    container_memory_bytes: int | None = None  # for runtime docker
    allow: tuple[str, ...] = ()  # permissions that a vendor's container may get beyond the closed list
    assumed_hardware: NamedHardware | None = None  # the value of --assume-hardware
    derivation: Derivation = field(default_factory=Derivation)  # changes that make a derived case
    # How other machines are reached, with all hosts of the site; None: the run is on this machine.
    launch: LaunchPlan | None = None
    preflight: bool | None = None  # measure the nodes before the training; None: where there are several
    quiet_machine: bool = False  # refuse the run while others use the machines
    devices: tuple[int, ...] = ()  # the numbers of the devices of this machine to take; empty: any
    base: bool = False  # the case's defaults alone, without a vendor's or suite's choice
    node_power: NodePowerSite | None = None  # the site's command that prints the power of whole nodes
    explain_steps: int | None = None  # the number of steps to record for `explain`, after the last one


@dataclass(frozen=True)
class Suggestion:
    """Free fields that a suite or a strategy file sets. The user's own choice has priority."""

    choice: TuningChoice = field(default_factory=TuningChoice)
    source: str = ""  # such as `suite NAME`


@dataclass(frozen=True)
class Entry:
    """One entry of work. The fields from `scale` on come from a suite's entry."""

    text: str  # the case string
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"
    suggestion: Suggestion = field(default_factory=Suggestion)
    hardware: NamedHardware | None = None  # that the suite names
    suite_entry: EntryUsed | None = None


@dataclass(frozen=True)
class Decision:
    """An entry whose hardware and documents are settled: the input of `resolve`."""

    text: str  # the case string as the user wrote it
    selector: Selector  # the same with the chosen hardware
    selection: Selection  # the documents and devices that it names
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"
    scale_reason: str | None = None  # why, where it is not the scale of the command line
    suggestion: Suggestion = field(default_factory=Suggestion)
    suite_entry: EntryUsed | None = None
    deviations: tuple[str, ...] = ()  # differences from the request, as sentences
    refusal: str | None = None  # why this machine cannot run it; the plan is then a record and is not checked
    # The version of the devices' driver, where packages that the platform installs need a certain one.
    driver: str | None = None
