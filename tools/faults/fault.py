"""A fault that implementations have had, as some lines that plant it, and what must find it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from layouts import SINGLE, Variant


@dataclass(frozen=True)
class Fault:
    """code: lines of Python that run before the training starts; `job` is in their scope.

    layer: the layer of the alignment that decides in float32. tensor, step: what `diagnose` finds; tensor is None
    where one process is right, and in other frameworks. model: what `diagnose` needs to be otherwise than in the small
    model of the family.
    """

    name: str
    code: str
    layer: str
    tensor: str | None
    family: str = "gpt"
    variant: Variant = SINGLE
    step: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"
