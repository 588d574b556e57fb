"""tested.json beside implementation.yaml: the difference of an implementation from torch in each tested layout.

tests/models/matrix.py writes it; nobody edits it by hand.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.basis import Basis
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout


class DifferenceLimits(Value):
    """The largest relative differences that pass."""

    first_loss: float
    loss: float
    grad_norm: float


# fp32: the limits allow for rounding in another order. 16 bits: they allow for the rounding of the format, because the
# reference is torch in fp32. So they show only that the layout works; docs/alignment.md compares the arithmetic.
LIMITS: dict[Precision, DifferenceLimits] = {
    "fp32": DifferenceLimits(first_loss=1e-6, loss=1e-5, grad_norm=1e-4),
    "bf16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
}


# A shape may be noisier than those of the matrix: then its limits are so many times its own noise, but no more than
# LOOSEST times the fixed ones. A shape beyond that is chaotic, and no run of it shows anything.
OVER_NOISE = 4
LOOSEST = 100


class OwnNoise(DifferenceLimits):
    """The largest relative differences of torch's honest runs of a shape among themselves."""

    first_loss: float = 0
    loss: float = 0
    grad_norm: float = 0
    parameter_norm: float = 0


def _scaled(fixed: float, own: float) -> float:
    return min(max(fixed, OVER_NOISE * own), LOOSEST * fixed)


class Difference(Value):
    """The largest relative differences of a run from the reference; None: not finite, or not available.

    first_loss, loss: of the loss at step 1, and at any step. grad_norm: of the global gradient norm at any step.
    parameter_norm: of one parameter's gradient norm, at the steps that record it. total_norm: between the norm of all
    parameters' gradients and the run's own gradient norm, at the same steps.
    """

    first_loss: float | None
    loss: float | None
    grad_norm: float | None
    parameter_norm: float | None
    total_norm: float | None
    same_weights: bool
    same_tokens: bool

    def beyond(
        self, precision: Precision = "fp32", noise: OwnNoise | None = None
    ) -> dict[str, tuple[float | None, float]]:
        """Return each figure that is not within its limit of `precision`, with the limit, for a shape of this noise."""
        limits, own = LIMITS[precision], noise or OwnNoise()
        bounds = {
            "first_loss": _scaled(limits.first_loss, own.first_loss),
            "loss": _scaled(limits.loss, own.loss),
            "grad_norm": _scaled(limits.grad_norm, own.grad_norm),
            "total_norm": 1e-5,
        }
        if precision == "fp32":  # in 16 bits the norm of a small parameter is mostly rounding error
            bounds["parameter_norm"] = _scaled(limits.grad_norm, own.parameter_norm)
        figures = ((name, getattr(self, name), limit) for name, limit in bounds.items())
        return {name: (value, limit) for name, value, limit in figures if value is None or not value <= limit}

    def within(self, precision: Precision = "fp32", noise: OwnNoise | None = None) -> bool:
        """Return whether every difference is within the limits of `precision`, for a shape of this noise."""
        return not self.beyond(precision, noise) and self.same_weights and self.same_tokens


class MatrixRun(Value):
    """One run of a family's small model. failure: the error message of a failed run; its difference is None.

    noise: of torch's honest runs of this model, in float32; None in files from before it was recorded.
    rests_on: the key of the files that its ranks imported. reference: the key of torch's curve that it was compared
    with; None for a curve that was recorded for all checkouts. Both are None in files without `basis`.
    """

    name: str
    family: str
    precision: Precision
    layout: Layout
    steps: int
    difference: Difference | None
    failure: str | None = None
    noise: OwnNoise | None = None
    rests_on: str | None = None
    reference: str | None = None

    @property
    def passed(self) -> bool:
        return self.difference is not None and self.difference.within(self.precision, self.noise)


class LayoutRuns(Document):
    """The runs of one version on one kind of device, compared with torch in one process.

    basis: what each run rests on. A file from before it has None, and all of its runs rest on one digest: rests_on, of
    all code that the framework's own runs follow from (node/code_digest.py). sources: the same with torch's code.
    """

    KIND: ClassVar[str] = "tested"

    framework: str
    version: str
    device_kind: str
    date: str
    machine: str
    sources: str | None = None
    rests_on: str | None = None
    basis: Basis | None = None
    runs: tuple[MatrixRun, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> LayoutRuns:
        sets = {} if self.basis is None else self.basis.sets
        lost = [run for run in self.runs if (self.basis or run.rests_on) and run.rests_on not in sets]
        if lost:
            why = f"found no '{lost[0].rests_on}', which {lost[0].family} {lost[0].name} rests on"
            raise ValueError(f"basis.sets: {why}. Train the runs again")
        return self
