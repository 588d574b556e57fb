"""tested-references.json of torch: the curves that recorded runs of all frameworks are compared with.

tests/models/matrix.py writes it; nobody edits it by hand.
"""

from __future__ import annotations

import hashlib
import json
from typing import ClassVar

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.basis import KEY_LENGTH, Basis
from levelfield.specs.tested import Difference, OwnNoise


class CurveFigures(Value):
    """The figures of one training that a comparison reads, as levelfield.testing has them."""

    losses: tuple[float, ...] = Field(min_length=1)
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]
    gradients: dict[int, dict[str, float]]

    @property
    def key(self) -> str:
        """The begin of the digest of all figures. A run records it as that of its reference."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


class ReferenceCurve(Value):
    """torch's curve of one family in one process in float32.

    key: of `figures`. difference: of the last training, by the code that `rests_on` names, from `figures`: zero, or
    within `noise`. noise: of torch's honest runs of the family. date, machine: of the last training.
    """

    family: str
    key: str
    figures: CurveFigures
    noise: OwnNoise
    difference: Difference
    date: str
    machine: str
    rests_on: str

    @model_validator(mode="after")
    def _key_is_that_of_the_figures(self) -> ReferenceCurve:
        if self.key != self.figures.key:
            raise ValueError(f"{self.family}: found key {self.key}, expected {self.figures.key} of its figures")
        return self


class ReferenceCurves(Document):
    """torch's curves by family. The pins of torch are among what each rests on."""

    KIND: ClassVar[str] = "references"

    basis: Basis
    curves: tuple[ReferenceCurve, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _sets_are_there(self) -> ReferenceCurves:
        lost = [curve.rests_on for curve in self.curves if curve.rests_on not in self.basis.sets]
        if lost:
            raise ValueError(f"basis.sets: found no '{lost[0]}', which a curve rests on. Train the references again")
        return self

    def of(self, family: str) -> ReferenceCurve | None:
        return next((curve for curve in self.curves if curve.family == family), None)
