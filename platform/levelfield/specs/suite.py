"""A suite: case strings that run one after another, each on its named hardware or on this machine.

Hardware is written as size and chip: "4x8 V100-SXM2-16GB" is four nodes with eight devices each.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from levelfield.specs.base import MAX_DEVICES, MAX_NODES, Document, Value, repeated_names
from levelfield.specs.derivation import Extension
from levelfield.specs.tuning import TuningChoice

WITHHELD = "withheld"
_HARDWARE_FORM = re.compile(r"(\d+)x(\d+) +(\S.*)")


class NamedHardware(Value):
    """Nodes, devices per node and chip."""

    nodes: int = Field(ge=1, le=MAX_NODES)
    devices: int = Field(ge=1, le=MAX_DEVICES)  # of each node
    chip: str  # a name or an alias of vendor.yaml, or `withheld` when it is not public

    def __str__(self) -> str:
        return f"{self.nodes}x{self.devices} {self.chip}"


def read_hardware(text: str) -> NamedHardware:
    """Read hardware from its text form. Raises ValueError with what was found and expected."""
    match = _HARDWARE_FORM.fullmatch(text.strip())
    if match is None or 0 in (int(match[1]), int(match[2])):
        raise ValueError(f"found '{text}', expected nodes x devices per node and a chip, as in '4x8 V100-SXM2-16GB'")
    return NamedHardware(nodes=int(match[1]), devices=int(match[2]), chip=match[3])


HardwareText = Annotated[
    NamedHardware, BeforeValidator(lambda value: read_hardware(value) if isinstance(value, str) else value)
]


class SuiteEntry(Value):
    """One run of a suite."""

    case: str
    name: str | None = None  # of the published row that it repeats, if any
    group: str | None = None  # the heading above it
    scale: Literal["auto", "smoke", "full"] = "auto"
    set: TuningChoice = TuningChoice()
    # Where the row was measured; on another machine the run is scaled to the devices that exist.
    hardware: HardwareText | None = None
    note: str | None = None  # a remark for the reader of the row

    @property
    def label(self) -> str:
        """The name, or the case string and the layout when there is no name."""
        return self.name or " ".join(part for part in (self.case, self.set.layout) if part)


class Suite(Document):
    """configs/suites/<name>.yaml"""

    KIND: ClassVar[str] = "suite"

    title: str
    hardware: HardwareText | None = None  # of every entry without its own
    cases: tuple[Extension, ...] = ()  # what rows train that is no case by itself, such as another batch of a case
    entries: tuple[SuiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Suite:
        for key, expected in (("entries", "one entry for each row"), ("cases", "one case of each name")):
            if repeated := repeated_names(entry.name for entry in getattr(self, key) if entry.name):
                raise ValueError(f"{key}: found the name '{repeated[0]}' twice; expected {expected}")
        return self


class EntryUsed(Value):
    """The suite's entry that a run is."""

    suite: str
    name: str
    group: str | None = None
    note: str | None = None
