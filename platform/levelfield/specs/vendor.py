"""vendor.yaml: a maker's chips and how frameworks reach them, as data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value

PeakDtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]


class Peak(Value):
    """A dense peak in TFLOP/s and where the number comes from. A peak without a source is not written down."""

    tflops: float = Field(gt=0)
    source: str = Field(min_length=3)


class Chip(Value):
    """One device as the framework sees it. `device_is` says whether that is a card or a die of one.

    match: substrings (any case) of the name that the maker's tool prints, to recognise the chip.
    """

    name: str
    aliases: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    device_is: Literal["card", "die", "host share"]
    memory_bytes: int | None = Field(default=None, gt=0)
    memory_source: str | None = None
    memory_bandwidth_bytes_per_second: float | None = Field(default=None, gt=0)
    bandwidth_source: str | None = None
    peaks: dict[PeakDtype, Peak] = Field(default_factory=dict)


class FrameworkAccess(Value):
    """How a framework names this vendor's device, and its collective backend."""

    device: str
    backend: str
    preload: tuple[str, ...] = ()


class VendorFile(Document):
    """vendors/<vendor>/vendor.yaml

    device_kind: the key under which implementations list their requirements (`cpu`, `nvidia`, ...).
    divisible: one machine may be divided into any number of devices (true of the cpu only).
    """

    KIND: ClassVar[str] = "vendor"

    name: str
    title: str
    device_kind: str
    divisible: bool = False
    visible_devices_variable: str | None = None
    frameworks: dict[str, FrameworkAccess]
    chips: tuple[Chip, ...]
    verified: str

    @model_validator(mode="after")
    def _names_are_unique(self) -> VendorFile:
        names = [n.lower() for c in self.chips for n in (c.name, *c.aliases)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"chips: names used twice: {', '.join(twice)}")
        return self

    def chip(self, name: str) -> Chip | None:
        """The chip with this name or alias, any case; None when there is none."""
        wanted = name.lower()
        return next((c for c in self.chips if wanted in [n.lower() for n in (c.name, *c.aliases)]), None)
