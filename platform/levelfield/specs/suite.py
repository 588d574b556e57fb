"""A suite: case strings that are run one after another, each on the hardware that it names or on what is here."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.hardware import HardwareText
from levelfield.specs.tuning import TuningChoice


class SuiteEntry(Value):
    """name: of the published row that it is, where it is one; group: the heading that it stands under.

    hardware: where the row was measured; where it is not here, a run is scaled to what is. note: what a reader of the
    row has to know.
    """

    case: str
    name: str | None = None
    group: str | None = None
    scale: Literal["auto", "smoke", "full"] = "auto"
    set: TuningChoice = TuningChoice()
    hardware: HardwareText | None = None
    note: str | None = None

    @property
    def label(self) -> str:
        """The name; without one the case string and the layout."""
        return self.name or " ".join(part for part in (self.case, self.set.layout) if part)


class Suite(Document):
    """configs/suites/<name>.yaml; `hardware`: of every entry that names none itself."""

    KIND: ClassVar[str] = "suite"

    title: str
    hardware: HardwareText | None = None
    entries: tuple[SuiteEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_rows(self) -> Suite:
        counts = Counter(entry.name for entry in self.entries if entry.name)
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"entries: found the name '{twice[0]}' twice; expected one entry for each row")
        return self


class EntryUsed(Value):
    """Which entry of which suite a run is."""

    suite: str
    name: str
    group: str | None = None
    note: str | None = None
