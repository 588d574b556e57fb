"""Tuning: the closed list of what a vendor or a user may choose. All else is the case's."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.layout import Layout

Recompute = Literal["none", "selective", "full"]
Attention = Literal["sdpa", "flash_attn"]


class Tuning(Value):
    """The free fields, all set: one run's choice.

    micro_batch: sequences per forward pass of one data-parallel rank.
    virtual_pipeline: model chunks of each pipeline stage; above 1 the stages take them by turns, which is the
    interleaved schedule of Narayanan et al., 2021 (section 2.2).
    threads: CPU threads per process (None: the framework's own choice).
    environment: variables for the training process; they are recorded and shown by --dry-run.
    """

    layout: Layout = Layout()
    micro_batch: int = Field(default=1, ge=1)
    virtual_pipeline: int = Field(default=1, ge=1)
    recompute: Recompute = "none"
    compile: bool = False
    attention: Attention = "sdpa"
    threads: int | None = Field(default=None, ge=1)
    environment: dict[str, str] = Field(default_factory=dict)


class TuningChoice(Value):
    """A choice of some free fields; None leaves them to whoever chose before."""

    layout: str | None = None
    micro_batch: int | None = Field(default=None, ge=1)
    virtual_pipeline: int | None = Field(default=None, ge=1)
    recompute: Recompute | None = None
    compile: bool | None = None
    attention: Attention | None = None
    threads: int | None = Field(default=None, ge=1)
    environment: dict[str, str] | None = None


class TuningRow(Value):
    """What a vendor chooses for a chip, a framework and a number of devices per node (None: any), and why."""

    chip: str | None = None
    framework: str | None = None
    devices: int | None = Field(default=None, ge=1)
    scale: Literal["full", "smoke"] = "full"
    set: TuningChoice
    why: str


class TuningFile(Document):
    """vendors/<vendor>/tuning/<case>.yaml"""

    KIND: ClassVar[str] = "tuning"

    case: str
    rows: tuple[TuningRow, ...]
