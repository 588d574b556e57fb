"""tested.json beside implementation.yaml: how far an implementation came from torch in each layout that was run.

Written by tests/models/matrix.py, never by hand.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Family, Precision
from levelfield.specs.layout import Layout


class Limits(Value):
    """The largest relative differences that pass."""

    first_loss: float
    loss: float
    grad_norm: float


# fp32: rounding in another order. 16 bits against torch's fp32: the rounding of the format itself, so that only the
# layout is shown to work; their arithmetic is compared in docs/alignment.md's way, run against run.
LIMITS: dict[Precision, Limits] = {
    "fp32": Limits(first_loss=1e-6, loss=1e-5, grad_norm=1e-4),
    "bf16": Limits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp16": Limits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
}


class Difference(Value):
    """A run's largest relative differences from the reference; None: not finite, or not to be had.

    first_loss, loss: of the loss at step 1, and at any step. grad_norm: of the global gradient norm at any step.
    parameter_norm: of one parameter's gradient norm, at the steps that record them. total_norm: of all parameters'
    norms together from the run's own gradient norm, at those steps.
    """

    first_loss: float | None
    loss: float | None
    grad_norm: float | None
    parameter_norm: float | None
    total_norm: float | None
    same_weights: bool
    same_tokens: bool

    def within(self, precision: Precision = "fp32") -> bool:
        limits = LIMITS[precision]
        bounds = [
            (self.first_loss, limits.first_loss),
            (self.loss, limits.loss),
            (self.grad_norm, limits.grad_norm),
            (self.total_norm, 1e-5),
        ]
        if precision == "fp32":  # in 16 bits a small parameter's own norm is mostly rounding
            bounds.append((self.parameter_norm, limits.grad_norm))
        near = all(value is not None and value <= limit for value, limit in bounds)
        return near and self.same_weights and self.same_tokens


class Run(Value):
    """One run of the small model of a family. failure: what it said where it did not end; difference is None then."""

    name: str
    family: Family
    precision: Precision
    layout: Layout
    steps: int
    difference: Difference | None
    failure: str | None = None

    @property
    def passed(self) -> bool:
        return self.difference is not None and self.difference.within(self.precision)


class LayoutRuns(Document):
    """What was run of one version on one kind of device, against torch in one process.

    sources: digest of the code that was run, by tests/models/matrix.py; None in files from before it was recorded.
    """

    KIND: ClassVar[str] = "tested"

    framework: str
    version: str
    device_kind: str
    date: str
    machine: str
    sources: str | None = None
    runs: tuple[Run, ...] = Field(min_length=1)
