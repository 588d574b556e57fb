"""A reference: the unrounded training curve of one run, and the noise of runs that differ in arithmetic only."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision, Scale
from levelfield.specs.result import Identity


class NoiseRow(Value):
    """The largest relative differences from the reference of a run in which only `changed` differed."""

    changed: str
    run_id: str
    first_step: float = Field(ge=0)
    gradient: float | None = Field(default=None, ge=0)
    curve: float = Field(ge=0)


class Reference(Document):
    """configs/references/<case>_<scale>_<precision>.json

    losses, grad_norms: of steps 1, 2, ... gradients: norms by step and canonical parameter. by, why, promoted: who
    promoted the run to the reference, the reason and the date. run_id to layout: the promoted run and its environment.
    """

    KIND: ClassVar[str] = "reference"

    case: str
    scale: Scale
    precision: Precision
    identity: Identity
    losses: tuple[float, ...] = Field(min_length=2)
    grad_norms: tuple[float | None, ...]
    gradients: dict[int, dict[str, float]]
    noise: tuple[NoiseRow, ...] = ()
    run_id: str
    framework: str
    framework_version: str
    hardware: str
    layout: str
    promoted: str
    by: str
    why: str

    @property
    def name(self) -> str:
        return reference_name(self.case, self.scale, self.precision)

    @model_validator(mode="after")
    def _whole(self) -> Reference:
        if len(self.grad_norms) != len(self.losses):
            raise ValueError(f"grad_norms: found {len(self.grad_norms)}, expected {len(self.losses)}, one per loss")
        return self


def reference_name(case: str, scale: str, precision: str) -> str:
    return f"{case}_{scale}_{precision}"
