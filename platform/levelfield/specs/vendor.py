"""vendor.yaml: a maker's chips and how frameworks reach them, as data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value
from levelfield.specs.tool import Discovery, Tool, VersionCommand

HOST_KIND = "cpu"  # the device kind of the host's own processors
PeakDtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"]


class Peak(Value):
    """A dense peak in TFLOP/s and where the number comes from. A peak without a source is not written down."""

    tflops: float = Field(gt=0)
    source: str = Field(min_length=3)


class Achieved(Value):
    """A rate of large matrix products that somebody measured, in TFLOP/s, and who: what a peak is worth in practice."""

    tflops: float = Field(gt=0)
    source: str = Field(min_length=3)


class Interconnect(Value):
    """What joins devices of this chip in one node, and how fast.

    each_way_bytes_per_second: what one device sends over all of its links, while it may receive as much.
    pair_each_way_bytes_per_second: what it sends to one other device, where only some of the links lead there (a mesh
    without a switch); absent where all of them do. Of uneven links the slowest.
    bytes_per_second: the number that the source prints, and source_counts how it counts: often both ways together.
    """

    description: str = Field(min_length=3)
    each_way_bytes_per_second: float | None = Field(default=None, gt=0)
    pair_each_way_bytes_per_second: float | None = Field(default=None, gt=0)
    bytes_per_second: float | None = Field(default=None, gt=0)
    source_counts: Literal["each way", "both ways"] | None = None
    source: str = Field(min_length=3)

    @model_validator(mode="after")
    def _is_counted_as_said(self) -> Interconnect:
        if self.bytes_per_second is None or self.each_way_bytes_per_second is None:
            return self
        if self.source_counts is None:
            raise ValueError("source_counts: missing; say whether bytes_per_second is `each way` or `both ways`")
        expected = self.each_way_bytes_per_second * (2 if self.source_counts == "both ways" else 1)
        if not math.isclose(self.bytes_per_second, expected):
            raise ValueError(
                f"bytes_per_second: found {self.bytes_per_second:g}, expected {expected:g}, which is "
                f"each_way_bytes_per_second counted {self.source_counts}"
            )
        return self

    @model_validator(mode="after")
    def _pair_is_part_of_all(self) -> Interconnect:
        pair, all_links = self.pair_each_way_bytes_per_second, self.each_way_bytes_per_second
        if pair is not None and (all_links is None or not pair < all_links):
            raise ValueError(
                f"pair_each_way_bytes_per_second: found {pair:g}, expected less than each_way_bytes_per_second "
                f"({'absent' if all_links is None else f'{all_links:g}'}); leave it out where a pair has all links"
            )
        return self


class Chip(Value):
    """One device as the framework sees it. `device_is` says whether that is a card or a die of one.

    match: ends (any case) of the name that the maker's tool prints, to recognise the chip. Ends, because what follows
    a chip's name makes it another: "H200 NVL" is no H200.
    achievable: by dtype, the matrix-multiplication rate that public measurements reached; never above the peak.
    """

    name: str
    aliases: tuple[str, ...] = ()
    match: tuple[str, ...] = ()
    device_is: Literal["card", "die", "host share"]
    memory_bytes: int | None = Field(default=None, gt=0)
    memory_source: str | None = None
    memory_bandwidth_bytes_per_second: float | None = Field(default=None, gt=0)
    bandwidth_source: str | None = None
    interconnect: Interconnect | None = None
    peaks: dict[PeakDtype, Peak] = Field(default_factory=dict)
    achievable: dict[PeakDtype, Achieved] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_more_than_the_peak(self) -> Chip:
        for dtype, achieved in self.achievable.items():
            peak = self.peaks.get(dtype)
            if peak is not None and not achieved.tflops <= peak.tflops:
                raise ValueError(
                    f"achievable.{dtype}.tflops: found {achieved.tflops:g}, expected at most the peak, "
                    f"{peak.tflops:g}; compare units, sparsity and chip of both sources"
                )
        return self


class FrameworkAccess(Value):
    """How a framework names this vendor's device, and its collective backend."""

    device: str
    backend: str
    preload: tuple[str, ...] = ()


class Mount(Value):
    """A folder or file of the host that a container needs, at the same path, read-only."""

    path: str = Field(pattern="^/")
    why: str = Field(min_length=3)


class ContainerAccess(Value):
    """How a container is shown exactly the chosen devices. `{index}` in a text stands for each device's index.

    device_request: the engine is asked for the devices by their identities, by this driver (`docker run --gpus`).
    device_nodes: files under /dev; one with `{index}` is there once for each device.
    renumbered: within the container the devices count from 0, so the visible-devices variable is not passed on.
    capabilities, security_options: beyond what an engine gives, by name, each with the reason. Nothing is privileged.
    ulimits: -1 is unlimited. An engine that refuses one starts the container without it, and the result says so.
    """

    device_request: str | None = None
    device_nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    groups: tuple[str, ...] = ()
    engine_runtime: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    renumbered: bool = False
    capabilities: dict[str, str] = Field(default_factory=dict)
    security_options: dict[str, str] = Field(default_factory=dict)
    host_ipc: bool = False
    shm_bytes: int | None = Field(default=None, gt=0)
    network: Literal["none", "host"] = "none"
    ulimits: dict[str, int] = Field(default_factory=dict)


class Image(Value):
    """An image to build on. With a digest it is that image for ever; without, `source` says where the tag is from.

    python: the interpreter in it. python_version: what wheels are chosen for. system_packages: Debian's, to be
    installed first. has_framework: it brings the framework, so the implementation's requirements are not installed.
    """

    image: str = Field(min_length=1)
    digest: str | None = Field(default=None, pattern="^sha256:[0-9a-f]{64}$")
    python: str = "python3"
    python_version: str = Field(default="3.11", pattern=r"^3\.\d+$")
    system_packages: tuple[str, ...] = ()
    has_framework: bool = False
    source: str = Field(min_length=3)

    @property
    def reference(self) -> str:
        """What FROM takes."""
        return f"{self.image}@{self.digest}" if self.digest else self.image


class VendorFile(Document):
    """vendors/<vendor>/vendor.yaml

    device_kind: the key under which implementations list their requirements (`cpu`, `nvidia`, ...). With `cpu` the
    devices are the host's processors: one machine may be divided into any number of them, and they share its memory.
    images: what containers are built on, by framework; `base` where a framework has none of its own.
    environment: variables for every training process.
    discovery, monitor, software: how the maker's tools are read, where no adapter.py does it. Without `discovery` the
    devices are those of the monitor's records.
    """

    KIND: ClassVar[str] = "vendor"

    name: str
    title: str
    device_kind: str
    visible_devices_variable: str | None = None
    frameworks: dict[str, FrameworkAccess]
    chips: tuple[Chip, ...]
    container: ContainerAccess = ContainerAccess()
    images: dict[str, Image] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    discovery: Discovery | None = None
    monitor: Tool | None = None
    software: dict[str, VersionCommand] = Field(default_factory=dict)
    verified: str

    @property
    def is_host(self) -> bool:
        """Whether the devices are shares of the host's processors and memory."""
        return self.device_kind == HOST_KIND

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
