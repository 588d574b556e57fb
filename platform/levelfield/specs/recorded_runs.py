"""Runs whose records the repository keeps, each with the digest of the code that its figures follow from.

tested.json beside implementation.yaml: the difference of an implementation from torch in each tested layout.
tested-references.json of torch: the curves that these runs are compared with. tools/matrix.py writes both, and nobody
edits them by hand.
"""

from __future__ import annotations

import hashlib
import json
from typing import ClassVar

from pydantic import Field

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision
from levelfield.specs.layout import Layout
from levelfield.specs.rehearsed_runs import RecordedRow

# A shape may be noisier than those of the matrix: then its limits are NOISE_FACTOR times its own noise, but at most
# MAX_LIMIT_FACTOR times the fixed ones. A shape beyond that is chaotic, and no run of it shows anything.
NOISE_FACTOR = 4
MAX_LIMIT_FACTOR = 100


class DifferenceLimits(Value):
    """The largest relative differences that pass."""

    first_loss: float
    loss: float
    grad_norm: float


# fp32: the limits allow for rounding in another order. 8 and 16 bits: they allow for the rounding of the format, as the
# matrix's reference is torch in fp32. So they show that the layout works; docs/alignment.md compares the arithmetic.
LIMITS: dict[Precision, DifferenceLimits] = {
    "fp32": DifferenceLimits(first_loss=1e-6, loss=1e-5, grad_norm=1e-4),
    "bf16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp16": DifferenceLimits(first_loss=1e-3, loss=5e-3, grad_norm=0.1),
    "fp8": DifferenceLimits(first_loss=1e-3, loss=1e-2, grad_norm=0.2),
}


class ReferenceNoise(DifferenceLimits):
    """The largest relative differences of torch's honest runs of a shape among themselves."""

    first_loss: float = 0
    loss: float = 0
    grad_norm: float = 0
    parameter_norm: float = 0


def _noisy_limit(fixed: float, noise: float) -> float:
    """Return the limit for a shape of this noise. fixed: the limit for a shape of little noise."""
    return min(max(fixed, NOISE_FACTOR * noise), MAX_LIMIT_FACTOR * fixed)


class Difference(Value):
    """The largest relative differences of a run from the reference; None: not finite, or not available."""

    first_loss: float | None  # of the loss at step 1
    loss: float | None  # of the loss at any step
    grad_norm: float | None  # of the global gradient norm at any step
    parameter_norm: float | None  # of one parameter's gradient norm, at the steps that record it
    # Between the norm of all parameters' gradients and the run's own gradient norm, at the same steps.
    total_norm: float | None
    same_weights: bool  # the initial weights are equal
    same_tokens: bool

    def exceeded_limits(
        self, precision: Precision = "fp32", noise: ReferenceNoise | None = None
    ) -> dict[str, tuple[float | None, float]]:
        """Return each figure that exceeds its limit of `precision`, with that limit, for a shape of this noise."""
        limits, noise = LIMITS[precision], noise or ReferenceNoise()
        bounds = {
            "first_loss": _noisy_limit(limits.first_loss, noise.first_loss),
            "loss": _noisy_limit(limits.loss, noise.loss),
            "grad_norm": _noisy_limit(limits.grad_norm, noise.grad_norm),
            "total_norm": 1e-5,
        }
        if precision == "fp32":  # in 16 bits the norm of a small parameter is mostly rounding error
            bounds["parameter_norm"] = _noisy_limit(limits.grad_norm, noise.parameter_norm)
        figures = ((name, getattr(self, name), limit) for name, limit in bounds.items())
        return {name: (value, limit) for name, value, limit in figures if value is None or not value <= limit}

    def is_within_limits(self, precision: Precision = "fp32", noise: ReferenceNoise | None = None) -> bool:
        """Return whether every difference is within the limits of `precision`, for a shape of this noise."""
        return not self.exceeded_limits(precision, noise) and self.same_weights and self.same_tokens


class MatrixRun(RecordedRow):
    """One run of a family's small model."""

    name: str
    family: str
    precision: Precision
    layout: Layout
    steps: int
    difference: Difference | None  # from torch's curve; None of a run that failed
    failure: str | None = None  # the error message of a run that failed
    # Of torch's honest runs of this model, in float32; None in files from before it was recorded.
    noise: ReferenceNoise | None = None
    # The `digest_key` of torch's curve that it was compared with; None for a curve that was recorded for all checkouts.
    reference: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the run ended and its differences are within the limits."""
        return self.difference is not None and self.difference.is_within_limits(self.precision, self.noise)


class LayoutRuns(Document):
    """The runs of one version on one kind of device, compared with torch in one process."""

    KIND: ClassVar[str] = "tested"
    VERSION: ClassVar[int] = 2

    framework: str
    version: str
    device_kind: str
    machine: str
    runs: tuple[MatrixRun, ...] = Field(min_length=1)


class CurveFigures(Value):
    """The figures of one training that a comparison reads, as levelfield.testing has them."""

    losses: tuple[float, ...] = Field(min_length=1)
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]
    gradients: dict[int, dict[str, float]]

    @property
    def digest_key(self) -> str:
        """The beginning of the digest of all figures. A MatrixRun records it as its `reference`."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class ReferenceCurve(RecordedRow):
    """torch's curve of one family in one process in float32, as it was last confirmed."""

    family: str
    figures: CurveFigures
    noise: ReferenceNoise  # of torch's honest runs of the family
    difference: Difference  # of the last training, by the code of this row, from `figures`: zero, or within `noise`
    machine: str  # of the last training


class ReferenceCurves(Document):
    """torch's curves by family."""

    KIND: ClassVar[str] = "references"
    VERSION: ClassVar[int] = 2

    curves: tuple[ReferenceCurve, ...] = Field(min_length=1)

    def for_family(self, family: str) -> ReferenceCurve | None:
        """Return the curve of a family; None where there is none."""
        return next((curve for curve in self.curves if curve.family == family), None)
