"""Tuning: the closed list of fields that a vendor or a user may choose. The case fixes all others."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_serializer, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.layout import Layout
from levelfield.specs.locked_fields import reason, refuse_locked
from levelfield.specs.variables import TuningVariables, masked

Recompute = Literal["none", "selective", "full"]
Attention = Literal["sdpa", "flash_attn"]


class Tuning(Value):
    """The values of all free fields for one run.

    micro_batch: sequences per forward pass of one data-parallel rank.
    virtual_pipeline: model chunks of each pipeline stage; above 1 it is the interleaved schedule of Narayanan et al.,
    2021 (section 2.2).
    threads: CPU threads per process (None: the framework's default).
    environment: variables for the training process; they are recorded, and --dry-run shows them.
    """

    layout: Layout = Layout()
    micro_batch: int = Field(default=1, ge=1)
    virtual_pipeline: int = Field(default=1, ge=1)
    recompute: Recompute = "none"
    compile: bool = False
    attention: Attention = "sdpa"
    threads: int | None = Field(default=None, ge=1)
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def parallelism(self) -> tuple[str, ...]:
        """Return the kinds of parallelism that these fields need, by their names in implementation.yaml."""
        layout = self.layout
        needed = {
            "tensor": layout.tensor > 1,
            "pipeline": layout.pipeline > 1,
            "interleaved": self.virtual_pipeline > 1,
            "sequence": layout.sequence_parallel,
            f"zero{layout.sharding_stage}": layout.sharding_stage > 0,
            "data": layout.data > 1,
            "context": layout.context > 1,
            "expert": layout.expert > 1,
        }
        return tuple(name for name, used in needed.items() if used)

    @field_serializer("environment")
    def _without_secrets(self, variables: dict[str, str]) -> dict[str, str]:
        """The value in memory is whole; no dump of it, and so no file, holds what looks like a secret."""
        return masked(variables)


class TuningChoice(Value):
    """The values of some free fields. None keeps the value of the previous choice."""

    layout: str | None = None
    micro_batch: int | None = Field(default=None, ge=1)
    virtual_pipeline: int | None = Field(default=None, ge=1)
    recompute: Recompute | None = None
    compile: bool | None = None
    attention: Attention | None = None
    threads: int | None = Field(default=None, ge=1)
    environment: TuningVariables | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_free_fields(cls, content: Any) -> Any:
        if isinstance(content, dict):
            refuse_locked(map(str, content), cls.model_fields)
        return content


class TuningRow(Value):
    """A vendor's choice for a chip, a framework, the devices of a node and the nodes (None: any), and the reason."""

    chip: str | None = None
    framework: str | None = None
    devices: int | None = Field(default=None, ge=1)
    nodes: int | None = Field(default=None, ge=1)
    scale: Literal["full", "smoke"] = "full"
    set: TuningChoice
    why: str = Field(min_length=3)

    def applies(
        self, scale: str, chip: str | None, framework: str | None, devices: int | None, nodes: int | None
    ) -> bool:
        """Return whether every condition of the row holds. A condition on an unknown value (None) does not hold."""
        known = {"chip": chip, "framework": framework, "devices": devices, "nodes": nodes}
        return self.scale == scale and all(known[name] == value for name, value in self.conditions.items())

    @property
    def conditions(self) -> dict[str, str | int]:
        """The conditions beside the scale, by name; empty for a row that always applies."""
        named = {"chip": self.chip, "framework": self.framework, "devices": self.devices, "nodes": self.nodes}
        return {name: value for name, value in named.items() if value is not None}

    @model_validator(mode="before")
    @classmethod
    def _conditions_are_not_locked_fields(cls, content: Any) -> Any:
        for name in content if isinstance(content, dict) else ():
            if name not in cls.model_fields and (why := reason(str(name))):
                raise ValueError(f"'{name}' is locked, the case fixes it: {why}")
        return content


class TuningFile(Document):
    """vendors/<vendor>/tuning/<case>.yaml"""

    KIND: ClassVar[str] = "tuning"

    case: str
    rows: tuple[TuningRow, ...]
