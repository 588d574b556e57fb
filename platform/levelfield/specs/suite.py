"""A suite: case strings that are run one after another."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.tuning import TuningChoice


class SuiteEntry(Value):
    case: str
    scale: Literal["auto", "smoke", "full"] = "auto"
    set: TuningChoice = TuningChoice()


class Suite(Document):
    """configs/suites/<name>.yaml"""

    KIND: ClassVar[str] = "suite"

    title: str
    entries: tuple[SuiteEntry, ...] = Field(min_length=1)
