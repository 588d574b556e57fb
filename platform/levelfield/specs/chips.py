"""chips.yaml: a private overlay that adds chips to vendors or corrects fields of their chips, without a commit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from levelfield.errors import DocumentError
from levelfield.specs.base import Document, Value, parse
from levelfield.specs.chip_ranges import out_of_range
from levelfield.specs.vendor import Chip, VendorFile

SOURCES = {
    "memory_bytes": "memory_source",
    "memory_bandwidth_bytes_per_second": "bandwidth_source",
    "power_watts": "power_source",
}
RATES = ("peaks", "achievable")


class ChipCorrection(Chip):
    """Corrections of any fields of a chip; absent fields stay as they are. `name` may be an alias of the chip.

    Peaks and achievable rates are corrected for each dtype, an interconnect as a whole. Each number needs its source
    beside it, as in vendor.yaml.
    """

    device_is: Literal["card", "die", "host share"] | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _numbers_have_sources(self) -> ChipCorrection:
        for number, source in SOURCES.items():
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

    def applied(self, vendor: VendorFile) -> VendorFile:
        """Return the vendor with corrected chips, then new ones. Raises DocumentError with file and key."""
        chips = {chip.name: chip for chip in vendor.chips}
        done: set[str] = set()
        for number, correction in enumerate(self.content.vendors.get(vendor.name, ())):
            where = f"vendors.{vendor.name}.{number}"
            chip = self._chip(vendor.chip(correction.name), correction, vendor, where)
            if chip.name in done:
                raise DocumentError(f"{self.path}: key '{where}.name': found '{chip.name}' twice, expected it once")
            done.add(chip.name)
            chips[chip.name] = chip
        whole = {**vendor.model_dump(), "schema": vendor.schema_name(), "chips": tuple(chips.values())}
        return parse(VendorFile, whole, f"{self.path}: vendors.{vendor.name}, with its vendor.yaml")

    def used(self, vendor: VendorFile, chip: Chip) -> OverlayUsed | None:
        """Return what this file gave to a chip of the vendor, or None when it gave nothing."""
        for correction in self.content.vendors.get(vendor.name, ()):
            if vendor.chip(correction.name) == chip:
                return OverlayUsed(
                    file=str(self.path), digest=self.content.fingerprint(), fields=tuple(_fields(correction))
                )
        return None

    def _chip(self, known: Chip | None, correction: ChipCorrection, vendor: VendorFile, where: str) -> Chip:
        if known is None and correction.device_is is None:
            names = ", ".join(chip.name for chip in vendor.chips)
            raise DocumentError(
                f"{self.path}: key '{where}.device_is': missing; {vendor.name} has no chip '{correction.name}', "
                f"and a new chip needs the key (card, die or host share). {vendor.name} has the chips {names}"
            )
        given = _marked(correction.model_dump(exclude_unset=True), self.label)
        before = known.model_dump() if known else {}
        rates = {key: {**before.get(key, {}), **given.get(key, {})} for key in RATES}
        name = known.name if known else correction.name
        chip = parse(Chip, {**before, **given, **rates, "name": name}, f"{self.path}: {where}, with its vendor.yaml")
        public = {*out_of_range(known)} if known else set()
        if wrong := next((each for each in out_of_range(chip) if each not in public), None):
            raise DocumentError(f"{self.path}: key '{where}', chip {name}: {wrong[0]}; {wrong[1]}")
        return chip


def _fields(correction: ChipCorrection) -> list[str]:
    given = sorted(correction.model_fields_set - {"name", *RATES})
    return [*given, *(f"{key}.{dtype}" for key in RATES for dtype in getattr(correction, key))]


def _marked(given: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the content of a correction with `label` before each source."""

    def marked(sourced: dict[str, Any]) -> dict[str, Any]:
        return {**sourced, "source": f"{label}: {sourced['source']}"}

    sources = {key: f"{label}: {given[key]}" for key in SOURCES.values() if given.get(key)}
    rates = {key: {dtype: marked(rate) for dtype, rate in given.get(key, {}).items()} for key in RATES}
    links = {key: marked(given[key]) for key in ("interconnect", "node") if given.get(key)}
    return {**given, **sources, **rates, **links}
