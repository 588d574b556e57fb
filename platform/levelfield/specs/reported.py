"""Runs that others logged, as `evidence read` reads them: reported figures, each with its origin or why it is absent.

Nobody here has seen the raw files of such a run. So it is shown beside results and enters no store, ranking or gate.
"""

from __future__ import annotations

import datetime
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import MAX_RANKS, MAX_SIZE, Document, Value
from levelfield.specs.case import Precision

FigureName = Literal[
    "tokens_per_second_per_device",
    "samples_per_second",
    "step_seconds",
    "flops_per_second",  # of one device
    "memory_bytes",
    "first_loss",
    "last_loss",
]


class ReportedFigure(Value):
    """A figure in SI units."""

    value: float | None
    how: str = Field(min_length=3)  # how the value was obtained, or why there is none


class ReportedRow(Value):
    """One log. None: the log does not print it, and the user did not state it."""

    name: str = Field(min_length=1, max_length=200)
    format: str
    sha256: str
    case: str | None = None
    framework: str | None = None
    chip: str | None = None
    devices: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    layout: str | None = None
    micro_batch: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    global_batch: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    sequence_length: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    precision: Precision | None = None
    given: tuple[str, ...] = ()  # the fields that the user stated and the log does not print
    steps: tuple[int, int]  # the first and the last step of the window that the figures are medians of
    lines: int = Field(ge=1)  # how many lines of the log the window has
    figures: dict[FigureName, ReportedFigure]
    notes: tuple[str, ...] = ()


class ReportedSet(Document):
    """configs/reported/<name>.json"""

    KIND: ClassVar[str] = "reported"

    name: str = Field(min_length=1)
    where: str = Field(min_length=8, max_length=500)  # the address of the logs, or the document that has them
    date: str
    rows: tuple[ReportedRow, ...] = Field(min_length=1)

    @property
    def source(self) -> str:
        return f"{self.where}, {self.date}"

    @model_validator(mode="after")
    def _has_source(self) -> ReportedSet:
        if not self.where.isprintable() or not self.where.strip():
            raise ValueError(f"where: found {self.where[:40]!r}, expected an address or the title of a document")
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise ValueError(f"date: found {self.date[:40]!r}, expected a day such as 2026-01-31") from None
        return self
