"""vendor.yaml: a vendor's chips, and how frameworks use them, as data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import MAX_DEVICES, Document, Value, repeated_names
from levelfield.specs.constants import AttentionKernel
from levelfield.specs.tool import Discovery, Numbering, PrintedCommand, Tool, VersionCommand
from levelfield.specs.variables import ContainerVariables, VendorVariables, VisibleVariable

# Of the name of a vendor or a framework, which is a part of file names and of Dockerfiles.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
HOST_KIND = "cpu"  # the device kind of the host's own processors
HOST_SHARE: Literal["host share"] = "host share"  # `device_is` where a device is some cores of the host
DebianPackage = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*(=[A-Za-z0-9.+:~-]+)?$")]
PeakDtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "nvfp4"]


class Peak(Value):
    """A dense peak in TFLOP/s and the source of the number. A peak without a source is not allowed."""

    tflops: float = Field(gt=0)
    source: str = Field(min_length=3)


class AchievedRate(Value):
    """A measured rate of large matrix products in TFLOP/s, and its source: the part of a peak that is reachable."""

    tflops: float = Field(gt=0)
    source: str = Field(min_length=3)


class Interconnect(Value):
    """The links between devices of this chip in one node, and their rates."""

    description: str = Field(min_length=3)
    # The rate at which one device sends over all its links, while it may receive as much.
    each_way_bytes_per_second: float | None = Field(default=None, gt=0)
    # The rate to one other device, when only some of the links lead there (a mesh without a switch); absent when all
    # links do. If links differ, it is the slowest.
    pair_each_way_bytes_per_second: float | None = Field(default=None, gt=0)
    bytes_per_second: float | None = Field(default=None, gt=0)  # the number that the source prints
    # How the source counts, often both ways together.
    source_counts: Literal["each way", "both ways"] | None = None
    source: str = Field(min_length=3)

    @model_validator(mode="after")
    def _rates_agree(self) -> Interconnect:
        if self.bytes_per_second is None or self.each_way_bytes_per_second is None:
            return self
        if self.source_counts is None:
            raise ValueError("source_counts: missing; write whether bytes_per_second counts `each way` or `both ways`")
        expected = self.each_way_bytes_per_second * (2 if self.source_counts == "both ways" else 1)
        if not math.isclose(self.bytes_per_second, expected):
            raise ValueError(
                f"bytes_per_second: found {self.bytes_per_second:g}, expected {expected:g}, which is "
                f"each_way_bytes_per_second counted {self.source_counts}"
            )
        return self

    @model_validator(mode="after")
    def _pair_rate_is_below_the_whole(self) -> Interconnect:
        pair, all_links = self.pair_each_way_bytes_per_second, self.each_way_bytes_per_second
        if pair is not None and (all_links is None or not pair < all_links):
            raise ValueError(
                f"pair_each_way_bytes_per_second: found {pair:g}, expected less than each_way_bytes_per_second "
                f"({'absent' if all_links is None else f'{all_links:g}'}); leave it out where a pair has all links"
            )
        return self


class ScaleUpDomain(Value):
    """The devices that the chip's own links join, as machines with it are built: a host, or a rack of several hosts."""

    devices: int = Field(ge=1, le=MAX_DEVICES)
    network_each_way_bytes_per_second: float = Field(gt=0)  # of one device, to the devices beyond
    source: str = Field(min_length=3)


class Chip(Value):
    """One device as the framework sees it."""

    name: str
    aliases: tuple[str, ...] = ()
    # Endings (any case) of the name that the vendor's tool prints, to recognise the chip. They are endings,
    # because a further word names another chip: "H200 NVL" is not an H200.
    match: tuple[str, ...] = ()
    device_is: Literal["card", "die", "host share"]
    memory_bytes: int | None = Field(default=None, gt=0)
    memory_source: str | None = None
    memory_bandwidth_bytes_per_second: float | None = Field(default=None, gt=0)
    bandwidth_source: str | None = None
    interconnect: Interconnect | None = None
    peaks: dict[PeakDtype, Peak] = Field(default_factory=dict)
    # By dtype, the matrix-multiplication rate that public measurements reached; never above the peak.
    achievable: dict[PeakDtype, AchievedRate] = Field(default_factory=dict)
    # By kernel, the rate of attention's core in 16 bits for long sequences, forward and backward together.
    attention: dict[AttentionKernel, AchievedRate] = Field(default_factory=dict)
    # The fused kernels that torch's scaled_dot_product_attention has on the chip in 16 bits, in its order.
    sdpa: tuple[AttentionKernel, ...] = ()
    # The number by which packages say which chips they have code for (NVIDIA's, such as 9.0).
    compute_capability: str | None = Field(default=None, pattern=r"^\d+\.\d+$")
    power_watts: float | None = Field(default=None, gt=0, le=20_000)  # the most that the maker lets one device draw
    power_source: str | None = None
    node: ScaleUpDomain | None = None
    # Of one device, as the tool counts them; a device with fewer is a part of the chip.
    compute_units: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _achievable_is_at_most_the_peak(self) -> Chip:
        for dtype, achieved in self.achievable.items():
            peak = self.peaks.get(dtype)
            if peak is not None and not achieved.tflops <= peak.tflops:
                raise ValueError(
                    f"achievable.{dtype}.tflops: found {achieved.tflops:g}, expected at most the peak, "
                    f"{peak.tflops:g}; compare units, sparsity and chip of both sources"
                )
        return self


class FrameworkAccess(Value):
    """The framework's name of this vendor's device, and its collective backend."""

    device: str
    backend: str
    preload: tuple[str, ...] = ()  # Python modules that a training imports first, such as torch_npu


class Mount(Value):
    """A folder or file of the host that a container needs, at the same path, read-only."""

    path: str = Field(pattern=r"^/[^:\x00-\x1f]*$")
    why: str = Field(min_length=3)


class ContainerAccess(Value):
    """How a container sees exactly the chosen devices. `{index}` in a text stands for each device's index."""

    # The name of the engine's driver that gives devices by their identities (`docker run --gpus`).
    device_request: str | None = None
    device_nodes: tuple[str, ...] = ()  # files under /dev; one with `{index}` is repeated for each device
    mounts: tuple[Mount, ...] = ()
    groups: tuple[str, ...] = ()
    engine_runtime: str | None = None
    environment: ContainerVariables = Field(default_factory=dict)
    # Inside the container the devices count from 0, so the visible-devices variable is not passed on.
    renumbered: bool = False
    # Additions to the engine's defaults, by name, each with the reason. No container is privileged.
    capabilities: dict[str, str] = Field(default_factory=dict)
    security_options: dict[str, str] = Field(default_factory=dict)  # likewise
    host_ipc: bool = False
    shm_bytes: int | None = Field(default=None, gt=0)
    network: Literal["none", "host"] = "none"
    # -1 is unlimited. If the engine refuses one, the container starts without it, and the result records it.
    ulimits: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True)
class ContainerOptions:
    """The options with which a container sees exactly the chosen devices, as ContainerAccess defines them.

    Building them has no side effect.
    """

    device_nodes: tuple[str, ...] = ()
    read_only_mounts: tuple[str, ...] = ()
    # Both are keys of plan.json. `device_request` has the identities of the devices that the engine is asked for.
    # `request_driver` is the engine's driver that gives them, which vendor.yaml has as `device_request`.
    device_request: tuple[str, ...] = ()
    request_driver: str | None = None
    groups: tuple[str, ...] = ()  # names or numbers
    engine_runtime: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()  # each has its reason in vendor.yaml
    security_options: tuple[str, ...] = ()  # likewise
    host_ipc: bool = False
    shm_bytes: int | None = None
    network: str = "none"
    ulimits: dict[str, int] = field(default_factory=dict)


FROM_USER = "given by the user"  # the source of an image that --base-image or LEVELFIELD_BASE_IMAGE names


class Image(Value):
    """A base image.

    A digest fixes its content for ever; without one, `source` gives the origin of the tag. Image, interpreter and
    packages become words of a Dockerfile, so they have neither blanks nor quotes.
    """

    image: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=300)
    digest: str | None = Field(default=None, pattern="^sha256:[0-9a-f]{64}$")
    python: str = Field(default="python3", pattern=r"^[A-Za-z0-9/][A-Za-z0-9._/+-]*$")  # the interpreter in the image
    python_version: str = Field(default="3.11", pattern=r"^3\.\d+$")  # the version that wheels are chosen for
    system_packages: tuple[DebianPackage, ...] = ()  # Debian packages to install first
    has_framework: bool = False  # the image holds the framework, so the implementation's requirements are not installed
    source: str = Field(min_length=3)

    @property
    def reference(self) -> str:
        """The argument of FROM in a Dockerfile."""
        return f"{self.image}@{self.digest}" if self.digest else self.image


class VendorFile(Document):
    """vendors/<vendor>/vendor.yaml"""

    KIND: ClassVar[str] = "vendor"

    name: str = Field(pattern=NAME_PATTERN)
    title: str
    # The key under which implementations list their requirements (`cpu`, `nvidia`, ...). With `cpu` the devices
    # are shares of the host: one machine may be divided into any number of them, and they share its memory. With
    # `cpu` and a visible_devices_variable they are what the tool shows, and a run takes some of them.
    device_kind: str
    visible_devices_variable: VisibleVariable | None = None
    # Chooses before the visible_devices_variable, which then counts what is left, as HIP's does after
    # ROCR_VISIBLE_DEVICES. A training does not inherit it.
    outer_devices_variable: VisibleVariable | None = None
    # How a framework reaches these devices, where the framework's own `reaches` does not say it, or where the
    # vendor's build of it needs something else.
    frameworks: dict[str, FrameworkAccess] = Field(default_factory=dict)
    chips: tuple[Chip, ...]
    container: ContainerAccess = ContainerAccess()
    # The base images of containers, by framework; `base` for a framework without its own.
    images: dict[str, Image] = Field(default_factory=dict)
    environment: VendorVariables = Field(default_factory=dict)  # variables for every training process
    # How to read the vendor's tools, as the next fields, when there is no adapter.py. Without it the devices are
    # those of the monitor's records.
    discovery: Discovery | None = None
    monitor: Tool | None = None
    # How the visible_devices_variable numbers the devices, where it does not as the tool does.
    numbering: Numbering | None = None
    software: dict[str, VersionCommand] = Field(default_factory=dict)
    topology: PrintedCommand | None = None  # the tool's own table of links between devices, recorded as it is printed
    # The maker's number on the PCI bus, by which a node finds the NUMA domain of each device.
    pci_vendor: str | None = Field(default=None, pattern=r"^0x[0-9a-f]{4}$")
    verified: str  # the chips and software on which this file was run, or `none`

    @property
    def is_host(self) -> bool:
        """Whether the devices are shares of the host's processors and memory."""
        return self.device_kind == HOST_KIND

    @property
    def is_divided(self) -> bool:
        """Whether the host is one device that is divided into any number of shares: nothing chooses among devices."""
        return self.is_host and self.visible_devices_variable is None

    @model_validator(mode="after")
    def _names_are_unique(self) -> VendorFile:
        if repeated := repeated_names(name.lower() for chip in self.chips for name in (chip.name, *chip.aliases)):
            raise ValueError(f"chips: found the names {', '.join(repeated)} twice, expected unique names")
        return self

    @model_validator(mode="after")
    def _software_is_no_other_command(self) -> VendorFile:
        if names := sorted({"discovery", "monitor", "numbering", "topology"} & self.software.keys()):
            raise ValueError(f"software: found {', '.join(names)}, the name of another key; expected another name")
        return self

    @model_validator(mode="after")
    def _access_is_named(self) -> VendorFile:
        for framework, access in self.frameworks.items():
            for key, name in (("device", access.device), ("backend", access.backend)):
                if not re.fullmatch(r"\w+" if key == "device" else r"\w+([:,]\w+)*", name, re.ASCII):
                    raise ValueError(
                        f"frameworks.{framework}.{key}: found '{name}', expected the framework's bare name of the "
                        f"{key}, such as {'cuda' if key == 'device' else 'nccl'}: no blank, and no number of a device"
                    )
        return self

    def chip(self, name: str | None) -> Chip | None:
        """Return the chip with this name or alias, in any case, or None. None is the name of no chip."""
        if name is None:
            return None
        return next((c for c in self.chips if name.lower() in [n.lower() for n in (c.name, *c.aliases)]), None)
