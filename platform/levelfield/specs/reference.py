"""A reference: the unrounded training curve of one run, and the noise of runs that differ in arithmetic only."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from levelfield.specs.base import LATER, Document, Value
from levelfield.specs.case import Precision, Scale

Difference = Annotated[float, Field(ge=0)]  # relative to the reference


class Identity(Value):
    """Digests that show whether two runs did the same work."""

    work: str = Field(description="Digest of all that the case fixes at this scale.")
    corpus: str = Field(description="Digest of the corpus.")
    initial_weights: str | None = Field(description="Digest of the initial weights of every parameter.")
    tokens: str | None = Field(description="Checksum of all tokens that the run read.")


class NoiseRow(Value):
    """How far a run that differs in arithmetic only is from the reference, as relative differences."""

    changed: str  # framework, layout, micro-batch, threads of the run
    run_id: str
    # The largest difference in the first step's loss, in gradient norms and in the curve of losses. Rows of older
    # versions have only these three.
    first_step: float = Field(ge=0)
    gradient: float | None = Field(default=None, ge=0)
    curve: float = Field(ge=0)
    losses: tuple[Difference, ...] = ()  # of each step's loss
    # The largest of gradient norms by step and group. A group has the parameters of one name in all layers.
    gradients: dict[int, dict[str, Difference]] = Field(default_factory=dict)
    # The largest of the last weights, by group and "norm" or "projection".
    weights: dict[str, dict[str, Difference]] = Field(default_factory=dict)
    hardware: str | None = None  # the processor or chip
    by: str | None = None  # who recorded it
    recorded: str | None = None  # the date
    why: str | None = None  # given with --replace, because the run was beyond the limits
    # In a mixture, by step: the least number of choices of experts that differ. Steps without any are left out.
    routing: dict[int, int] = Field(default_factory=dict, json_schema_extra=LATER)
    norms: tuple[Difference, ...] = Field(default=(), json_schema_extra=LATER)  # of the whole gradient at each step
    # Of gradient norms, by third of the steps of the window, and group.
    window: dict[str, dict[str, Difference]] = Field(default_factory=dict, json_schema_extra=LATER)


class Reference(Document):
    """configs/references/<case>_<scale>_<precision>.json; steps count from 1."""

    KIND: ClassVar[str] = "reference"

    case: str
    scale: Scale
    precision: Precision
    identity: Identity
    losses: tuple[float, ...] = Field(min_length=2)
    grad_norms: tuple[float | None, ...]
    gradients: dict[int, dict[str, float]]  # norms by step and canonical parameter
    # By parameter after the last step: its norm, then its projections. Empty in references of older versions.
    weights: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    noise: tuple[NoiseRow, ...] = ()
    # The run that was promoted to the reference, and its environment.
    run_id: str
    framework: str
    framework_version: str
    hardware: str
    layout: str
    settings: str | None = None  # framework, layout, micro-batch and threads, as in a row of noise
    promoted: str  # the date of the promotion
    by: str  # who promoted the run
    why: str
    # In a mixture, by step and layer: how many tokens chose each expert.
    routing: dict[int, dict[int, tuple[int, ...]]] = Field(default_factory=dict, json_schema_extra=LATER)
    # In a mixture: the experts of every token in every step and layer, encoded by worker/choices.py. Runs that are
    # compared with this reference follow them.
    choices: str | None = Field(default=None, json_schema_extra=LATER)
    # In 16 bits: gradient norms by step of the window and group; the whole gradient is a group, too.
    window: dict[int, dict[str, float]] = Field(default_factory=dict, json_schema_extra=LATER)
    # In fp8: the gradient norms of the same training in bf16, by parameter, at the first step that has them.
    in_bf16: dict[str, float] = Field(default_factory=dict, json_schema_extra=LATER)

    @property
    def name(self) -> str:
        return reference_name(self.case, self.scale, self.precision)

    @model_validator(mode="after")
    def _lengths_match(self) -> Reference:
        steps = len(self.losses)
        if len(self.grad_norms) != steps:
            raise ValueError(f"grad_norms: found {len(self.grad_norms)}, expected {steps}, one per loss")
        for row in self.noise:
            if row.losses and len(row.losses) != steps:
                raise ValueError(f"noise of {row.run_id}: found {len(row.losses)} losses, expected {steps}")
            if row.norms and len(row.norms) != steps:
                raise ValueError(f"noise of {row.run_id}: found {len(row.norms)} norms, expected {steps}")
        return self


def reference_name(case: str, scale: str, precision: str) -> str:
    return f"{case}_{scale}_{precision}"
