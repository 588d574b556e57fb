"""docs/verified/rehearsed.json: the real code at full scale on devices that only keep books of their memory.

tools/rehearse_all.py writes it, and nobody edits it by hand.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.layout import parse_layout
from levelfield.specs.tuning import Tuning


class RecordedRow(Value):
    """When a row was measured, and by which code."""

    date: str = Field(pattern=r"^20\d\d-\d\d-\d\d$")
    # Of the checkout; None outside of git.
    commit: str | None = Field(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")
    # The digest of the code that its figures follow from (`training_code_digest` of catalog/code_basis.py); None where
    # that is unknown, and then the row does not count.
    code: str | None = Field(pattern="^sha256:[0-9a-f]{64}$")

    def stale_reason(self, code: str) -> str | None:
        """Return why the row does not count for the code of this digest; None where it does."""
        if self.code == code:
            return None
        return f"its code has changed since {f'{self.commit[:12]} of ' if self.commit else ''}{self.date}"


class RehearsedRow(RecordedRow):
    """One plan that ran without its devices. No figure of it is one of speed."""

    case: str = Field(min_length=1)
    framework: str = Field(min_length=1)
    chip: str = Field(min_length=1)
    nodes: int = Field(ge=1)
    devices: int = Field(ge=1)  # of each node
    layout: str = Field(min_length=1)  # in the plan's words, such as `DP8TP1PP1SH3SP8`
    micro_batch: int = Field(ge=1)
    recompute: Literal["none", "selective", "full"]
    recompute_layers: int | None = Field(default=None, ge=1)
    # By the planner, of the fullest device, without its margin; None where it has no estimate.
    planned_bytes: int | None = Field(default=None, ge=1)
    # The peaks of the framework's allocator on the fullest device.
    allocated_bytes: int = Field(ge=1)
    reserved_bytes: int = Field(ge=1)
    failed_allocations: int = Field(ge=0)  # of all ranks that were run
    virtual_pipeline: int = Field(default=1, ge=1)
    ranks: int = Field(default=1, ge=1)  # how many were run
    delivered: bool = False  # all ranks were run, with their messages
    # The following are of the last step, of the rank with the most.
    flushes: int = Field(default=0, ge=0)  # of the allocator
    product_flops: float = Field(default=0, ge=0)
    gathered_bytes: int = Field(default=0, ge=0)
    scattered_bytes: int = Field(default=0, ge=0)
    all_reduced_bytes: int = Field(default=0, ge=0)
    sent_bytes: int = Field(default=0, ge=0)
    waits: int = Field(default=0, ge=0)  # for the device
    copies_to_host: int = Field(default=0, ge=0)
    kernels_a_layer: float = Field(default=0, ge=0)
    attention: str | None = None  # the kernel that the framework would take on this chip
    layers: str | None = None  # the maker of the layers and its version; None: they are the framework's own

    @model_validator(mode="after")
    def _reserved_holds_allocated(self) -> RehearsedRow:
        if self.reserved_bytes < self.allocated_bytes:
            raise ValueError(f"reserved_bytes: found {self.reserved_bytes:,}, less than allocated_bytes")
        return self

    @property
    def tuning(self) -> Tuning:
        return Tuning(
            layout=parse_layout(self.layout).layout,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers,
            virtual_pipeline=self.virtual_pipeline,
        )


class RehearsedRuns(Document):
    """All rehearsed plans."""

    KIND: ClassVar[str] = "rehearsed"
    VERSION: ClassVar[int] = 2

    rows: tuple[RehearsedRow, ...] = Field(min_length=1)
