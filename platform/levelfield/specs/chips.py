"""chips.yaml: a private overlay that adds chips to vendors or corrects fields of their chips, without a commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from levelfield.errors import DocumentError
from levelfield.specs.base import Document, Value, parse
from levelfield.specs.vendor import Chip, PeakDtype, VendorFile

Range = tuple[float, float]  # the plausible values, several times wider than the chips of today
PEAK_RANGES: dict[PeakDtype, Range] = {
    "fp64": (0.05, 1000),
    "fp32": (1, 1000),
    "tf32": (5, 10_000),
    "bf16": (5, 20_000),
    "fp16": (5, 20_000),
    "fp8": (10, 40_000),
    "nvfp4": (20, 80_000),
}
# First over second. bf16 is half of fp16 on MI100; fp8 equals bf16 on Gaudi 3; tf32 is half of bf16 wherever both are.
RATIO_RANGES: dict[tuple[PeakDtype, PeakDtype], Range] = {
    ("fp64", "fp32"): (0.005, 1.05),
    ("tf32", "bf16"): (0.3, 1.05),
    ("bf16", "fp16"): (0.45, 1.05),
    ("bf16", "fp32"): (0.95, 64),
    ("fp16", "fp32"): (0.95, 64),
    ("fp8", "bf16"): (0.95, 4.2),
    ("nvfp4", "fp8"): (1.5, 4.2),
}
MEMORY_GIB_RANGE: Range = (2, 4096)
BANDWIDTH_GB_PER_SECOND_RANGE: Range = (50, 50_000)
LINK_GB_PER_SECOND_RANGE: Range = (1, 10_000)
NETWORK_GB_PER_SECOND_RANGE: Range = (0.1, 1000)  # of one device
POWER_WATTS_RANGE: Range = (30, 10_000)
FLOPS_PER_BYTE_RANGE: Range = (20, 1000)  # 16-bit peak over bandwidth: 110 (MI250) to 500 (Gaudi 3)
ACHIEVABLE_RANGE: Range = (0.15, 1)  # achievable over peak
SOURCES_ADVICE = "compare unit, sparsity and chip of both sources"
UNIT_ADVICE = "correct the number or its unit"


def range_faults(chip: Chip) -> Iterator[tuple[str, str]]:
    """Yield each number of a chip that is out of its range, or does not fit another one: the fault and what to do."""
    for name, value, (low, high), advice in (*_single_numbers(chip), *_number_ratios(chip)):
        if not low <= value <= high:
            yield f"{name} is {value:.4g}, expected {low:g} to {high:g}", advice


def _single_numbers(chip: Chip) -> Iterator[tuple[str, float, Range, str]]:
    """Return each number that has a range of its own: what it is, value, range, advice."""
    for dtype, peak in chip.peaks.items():
        yield f"the {dtype} peak in TFLOP/s", peak.tflops, PEAK_RANGES[dtype], UNIT_ADVICE
    if chip.memory_bytes and chip.device_is != "host share":
        yield "memory_bytes in GiB", chip.memory_bytes / 2**30, MEMORY_GIB_RANGE, UNIT_ADVICE
    if chip.memory_bandwidth_bytes_per_second:
        yield (
            "the memory's bandwidth in GB/s",
            chip.memory_bandwidth_bytes_per_second / 1e9,
            BANDWIDTH_GB_PER_SECOND_RANGE,
            UNIT_ADVICE,
        )
    link = chip.interconnect
    rates = (link.each_way_bytes_per_second, link.pair_each_way_bytes_per_second) if link else ()
    for rate in filter(None, rates):
        yield "a rate of interconnect in GB/s", rate / 1e9, LINK_GB_PER_SECOND_RANGE, UNIT_ADVICE
    if chip.node:
        rate = chip.node.network_each_way_bytes_per_second
        yield "node's network of a device in GB/s", rate / 1e9, NETWORK_GB_PER_SECOND_RANGE, UNIT_ADVICE
    if chip.power_watts:
        yield "power_watts", chip.power_watts, POWER_WATTS_RANGE, UNIT_ADVICE


def _number_ratios(chip: Chip) -> Iterator[tuple[str, float, Range, str]]:
    """Return each ratio of two numbers, in the same form."""
    peaks = {dtype: peak.tflops for dtype, peak in chip.peaks.items()}
    for (first, second), limits in RATIO_RANGES.items():
        if first in peaks and second in peaks:
            yield f"{first} over {second}", peaks[first] / peaks[second], limits, SOURCES_ADVICE
    for dtype, achievable in chip.achievable.items():
        if dtype in peaks:
            yield (
                f"achievable over the peak in {dtype}",
                achievable.tflops / peaks[dtype],
                ACHIEVABLE_RANGE,
                SOURCES_ADVICE,
            )
    peak_16_bit = max((peaks[dtype] for dtype in ("bf16", "fp16") if dtype in peaks), default=None)
    if peak_16_bit and chip.memory_bandwidth_bytes_per_second:
        per_byte = peak_16_bit * 1e12 / chip.memory_bandwidth_bytes_per_second
        yield "the 16-bit peak in FLOP per byte of bandwidth", per_byte, FLOPS_PER_BYTE_RANGE, UNIT_ADVICE


SOURCE_FIELDS = {
    "memory_bytes": "memory_source",
    "memory_bandwidth_bytes_per_second": "bandwidth_source",
    "power_watts": "power_source",
}
RATE_FIELDS = ("peaks", "achievable")


class ChipCorrection(Chip):
    """Corrections of any fields of a chip; absent fields stay as they are. `name` may be an alias of the chip.

    Peaks and achievable rates are corrected for each dtype, an interconnect as a whole. Each number needs its source
    beside it, as in vendor.yaml.
    """

    device_is: Literal["card", "die", "host share"] | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _numbers_have_sources(self) -> ChipCorrection:
        for number, source in SOURCE_FIELDS.items():
            if getattr(self, number) is not None and not getattr(self, source):
                raise ValueError(f"found {number} without {source}; name the source of the number")
        return self


class ChipsFile(Document):
    """~/.config/levelfield/chips.yaml, or the file of --chips: corrections by vendor."""

    KIND: ClassVar[str] = "chips"

    vendors: dict[str, tuple[ChipCorrection, ...]]


class OverlayUsed(Value):
    """The private file that gave a part of a chip's data: its path, its digest, and the fields that it gave."""

    file: str
    digest: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class ChipOverlay:
    """A chips file and its path. Sources from it begin with `label`, so every figure shows which data is private."""

    path: Path
    content: ChipsFile

    @property
    def label(self) -> str:
        return f"private ({self.path.name})"

    def apply_to(self, vendor: VendorFile) -> VendorFile:
        """Return the vendor with corrected chips, then new ones. Raises DocumentError with file and key."""
        chips = {chip.name: chip for chip in vendor.chips}
        corrected_names: set[str] = set()
        for number, correction in enumerate(self.content.vendors.get(vendor.name, ())):
            where = f"vendors.{vendor.name}.{number}"
            chip = self._corrected_chip(vendor.chip(correction.name), correction, vendor, where)
            if chip.name in corrected_names:
                raise DocumentError(f"{self.path}: key '{where}.name': found '{chip.name}' twice, expected it once")
            corrected_names.add(chip.name)
            chips[chip.name] = chip
        content = {**vendor.model_dump(), "schema": vendor.schema_name(), "chips": tuple(chips.values())}
        return parse(VendorFile, content, f"{self.path}: vendors.{vendor.name}, with its vendor.yaml")

    def overlay_used(self, vendor: VendorFile, chip: Chip) -> OverlayUsed | None:
        """Return what this file gave to a chip of the vendor, or None when it gave nothing."""
        for correction in self.content.vendors.get(vendor.name, ()):
            if vendor.chip(correction.name) == chip:
                return OverlayUsed(
                    file=str(self.path), digest=self.content.fingerprint(), fields=tuple(_corrected_fields(correction))
                )
        return None

    def _corrected_chip(self, public: Chip | None, correction: ChipCorrection, vendor: VendorFile, where: str) -> Chip:
        if public is None and correction.device_is is None:
            names = ", ".join(chip.name for chip in vendor.chips)
            raise DocumentError(
                f"{self.path}: key '{where}.device_is': missing; {vendor.name} has no chip '{correction.name}', "
                f"and a new chip needs the key (card, die or host share). {vendor.name} has the chips {names}"
            )
        changes = _label_sources(correction.model_dump(exclude_unset=True), self.label)
        public_fields = public.model_dump() if public else {}
        rates = {key: {**public_fields.get(key, {}), **changes.get(key, {})} for key in RATE_FIELDS}
        name = public.name if public else correction.name
        chip = parse(
            Chip, {**public_fields, **changes, **rates, "name": name}, f"{self.path}: {where}, with its vendor.yaml"
        )
        published = {*range_faults(public)} if public else set()
        if fault := next((fault for fault in range_faults(chip) if fault not in published), None):
            raise DocumentError(f"{self.path}: key '{where}', chip {name}: {fault[0]}; {fault[1]}")
        return chip


def _corrected_fields(correction: ChipCorrection) -> list[str]:
    fields = sorted(correction.model_fields_set - {"name", *RATE_FIELDS})
    return [*fields, *(f"{key}.{dtype}" for key in RATE_FIELDS for dtype in getattr(correction, key))]


def _label_sources(correction: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the content of a correction with `label` before each source."""

    def label_source(entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "source": f"{label}: {entry['source']}"}

    sources = {key: f"{label}: {correction[key]}" for key in SOURCE_FIELDS.values() if correction.get(key)}
    rates = {key: {dtype: label_source(rate) for dtype, rate in correction.get(key, {}).items()} for key in RATE_FIELDS}
    links = {key: label_source(correction[key]) for key in ("interconnect", "node") if correction.get(key)}
    return {**correction, **sources, **rates, **links}
