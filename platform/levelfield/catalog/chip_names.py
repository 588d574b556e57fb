"""Names into chips: each chip by its name or an alias, in any vendor."""

from __future__ import annotations

from collections.abc import Collection

from levelfield.catalog.registry import Registry
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.vendor import Chip, VendorFile


def find_chip(registry: Registry, name: str) -> tuple[VendorFile, Chip]:
    """Return the chip of this name or alias, and its vendor. Raises UnknownName with the nearest names, and UsageError
    for a name that stands for several things."""
    vendor_files = [registry.vendor_file(v) for v in registry.vendors]
    if matches := [(spec, chip) for spec in vendor_files if (chip := spec.chip(name))]:
        spec, chip = matches[0]
        if clash := chip_clash(registry, spec, (name,)):
            raise UsageError(f"{clash}; write another name of the chip, or change one in vendor.yaml")
        return spec, chip
    if vendor := next((spec for spec in vendor_files if spec.name.lower() == name.lower()), None):
        raise UsageError(
            f"found the vendor '{vendor.name}', expected a chip: {', '.join(c.name for c in vendor.chips)}"
        )
    names = [n for spec in vendor_files for c in spec.chips for n in (c.name, *c.aliases)]
    plugins_hint = "" if "--plugins" in registry.options else " A folder of your own is given with --plugins DIR."
    raise UnknownName(
        "vendor or chip", name, [*registry.vendors, *names], hint=f"`show chips` shows all.{plugins_hint}"
    )


def find_chips(registry: Registry, text: str) -> list[tuple[VendorFile, Chip]]:
    """Return the chips of names that commas join, in their order, each once. A vendor's name stands for all its chips.
    Raises as find_chip does."""
    vendor_files = [registry.vendor_file(v) for v in registry.vendors]
    names = [text] if any(spec.chip(text) for spec in vendor_files) else [name.strip() for name in text.split(",")]
    chips: dict[str, tuple[VendorFile, Chip]] = {}
    for name in names:
        vendors = (
            []
            if any(spec.chip(name) for spec in vendor_files)
            else [v for v in vendor_files if v.name.lower() == name.lower()]
        )
        pairs = [(vendor, chip) for vendor in vendors for chip in vendor.chips] or [find_chip(registry, name)]
        chips |= {chip.name: (vendor, chip) for vendor, chip in pairs if chip.name not in chips}
    return list(chips.values())


def chip_clash(registry: Registry, vendor: VendorFile, names: Collection[str] | None = None) -> str | None:
    """Return a sentence about a name of the vendor's chips that is a vendor or a chip of another one as well, in any
    case; None without one. names: those to look at; None: all of them."""
    others = [registry.vendor_file(other) for other in registry.vendors if other != vendor.name]
    for name in names or sorted(name for chip in vendor.chips for name in (chip.name, *chip.aliases)):
        own_chip = vendor.chip(name)
        meaning = f"'{name}' names {own_chip.name if own_chip else 'a chip'} of vendor {vendor.name}"
        for other in others:
            if other.name.lower() == name.lower():
                return f"{meaning}, and the vendor {other.name}"
            if chip := other.chip(name):
                return f"{meaning}, and {chip.name} of vendor {other.name}"
    return None
