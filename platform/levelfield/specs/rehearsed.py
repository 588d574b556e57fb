"""docs/verified/rehearsed.json: the real code at full scale on devices that only keep books of their memory.

tests/gpu/rehearse_all.py writes it; nobody edits it by hand.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.basis import Basis


class RehearsedRow(Value):
    """One plan that ran without its devices. No figure of it is one of speed.

    layout: in the plan's words, such as `DP8 SH3`. devices: on each of `nodes`. planned_bytes: by the planner, of the
    fullest device, without its margin; None where it has none. allocated_bytes, reserved_bytes: the peaks of the
    framework's allocator on the fullest device. failed_allocations: of all ranks that were run. rests_on: the key of
    the files that they imported.

    ranks: that were run; delivered: whether they were all, with their messages. Of the last step, of the rank with the
    most: flushes of the allocator, FLOPs of matrix products, bytes by kind of collective, waits for the device and
    copies from it, kernels a layer. attention: the kernel that the framework would take on this chip. layers: the maker
    of the layers and its version; None: they are the framework's own.
    """

    case: str = Field(min_length=1)
    framework: str = Field(min_length=1)
    chip: str = Field(min_length=1)
    nodes: int = Field(ge=1)
    devices: int = Field(ge=1)
    layout: str = Field(min_length=1)
    micro_batch: int = Field(ge=1)
    recompute: Literal["none", "selective", "full"]
    planned_bytes: int | None = Field(default=None, ge=1)
    allocated_bytes: int = Field(ge=1)
    reserved_bytes: int = Field(ge=1)
    failed_allocations: int = Field(ge=0)
    virtual_pipeline: int = Field(default=1, ge=1)
    ranks: int = Field(default=1, ge=1)
    delivered: bool = False
    flushes: int = Field(default=0, ge=0)
    product_flops: float = Field(default=0, ge=0)
    gathered_bytes: int = Field(default=0, ge=0)
    scattered_bytes: int = Field(default=0, ge=0)
    all_reduced_bytes: int = Field(default=0, ge=0)
    sent_bytes: int = Field(default=0, ge=0)
    waits: int = Field(default=0, ge=0)
    copies_to_host: int = Field(default=0, ge=0)
    kernels_a_layer: float = Field(default=0, ge=0)
    attention: str | None = None
    layers: str | None = None
    date: str = Field(pattern=r"^20\d\d-\d\d-\d\d$")
    rests_on: str

    @model_validator(mode="after")
    def _reserved_holds_allocated(self) -> RehearsedRow:
        if self.reserved_bytes < self.allocated_bytes:
            raise ValueError(f"reserved_bytes: found {self.reserved_bytes:,}, less than allocated_bytes")
        return self


class RehearsedRuns(Document):
    """All rehearsed plans, and the files that each rests on."""

    KIND: ClassVar[str] = "rehearsed"

    basis: Basis
    rows: tuple[RehearsedRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> RehearsedRuns:
        lost = [row for row in self.rows if row.rests_on not in self.basis.sets]
        if lost:
            why = f"found no '{lost[0].rests_on}', which {lost[0].case} {lost[0].layout} rests on"
            raise ValueError(f"basis.sets: {why}. Rehearse it again")
        return self
