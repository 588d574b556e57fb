"""Checks of values that every adapter shares: a value outside its limits becomes None with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from levelfield.contracts.vendor import Device, Sample
from levelfield.specs.vendor import VendorFile

# An accelerator that can be reached draws more when it is idle (the least recorded: 29 W). Less is no reading: a tool
# that prints 0 where it has no value, or another unit. Shares of a host are not held to it.
LEAST_WATTS = 5.0
# A number outside these limits has another unit than its tool names, or is damaged.
LIMITS: dict[str, tuple[float, float]] = {
    "power_watts": (LEAST_WATTS, 10_000),
    "energy_joules": (0, 2**63),
    "memory_bytes": (1, 2**43),
    "memory_used_bytes": (0, 2**43),
    "utilisation": (0, 1),
    "temperature_celsius": (-50, 150),
}
SAMPLED = tuple(field for field in LIMITS if field != "memory_bytes")
Read = Callable[[], float]


def number(found: str) -> float:
    """Return a bare decimal number. Raises ValueError for a word (`[N/A]`, `[Not Supported]`), a unit or a comma."""
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", found):
        raise ValueError(f"found '{found}', expected a number")
    return float(found)


def take(field: str, read: Read, reasons: dict[str, str]) -> float | None:
    """Return the value of `read`, or None with a reason: `read` failed, or the value is outside its limits."""
    least, most = LIMITS[field]
    try:
        value = read()
    except ValueError as error:
        reasons[field] = str(error)
        return None
    except Exception as error:  # vendors' bindings raise their own classes, or others by driver version
        reasons[field] = f"{type(error).__name__}: {error}".rstrip(": ")
        return None
    if least <= value <= most:
        return value
    reasons[field] = f"found {value:g}, expected {least:g} to {most:g}"
    return None


def sample_of(index: int, reads: Mapping[str, Read], reasons: Mapping[str, str] = MappingProxyType({})) -> Sample:
    """Return a sample from one reading function per field. `reasons`: for fields that the tool does not have."""
    why = dict(reasons)
    values = {field: take(field, read, why) for field, read in reads.items()}
    used = values.pop("memory_used_bytes", None)
    return Sample(index=index, memory_used_bytes=None if used is None else int(used), reasons=why, **values)


def without(index: int, reason: str) -> Sample:
    """Return a sample without values."""
    return Sample(index=index, reasons=dict.fromkeys(SAMPLED, reason))


def chip_named(spec: VendorFile, name: str) -> str | None:
    """Return the chip of vendor.yaml whose `match` ends the tool's name of a device, or None."""
    return next((chip.name for chip in spec.chips if is_named(name, chip.match)), None)


def is_named(name: str, ends: Iterable[str]) -> bool:
    """Return whether `name` ends with one of `ends`, in any case."""
    return any(name.strip().lower().endswith(end.lower()) for end in ends)


def hides_all(variable: str | None) -> bool:
    """Return whether a visible-devices variable is set and hides every device: the vendor is then not asked for."""
    return variable is not None and variable.strip() in ("", "-1")


def shown(devices: Sequence[Device], variable: str | None) -> list[Device]:
    """Return the devices that a visible-devices variable shows, in its order. None: the variable is not set.

    An entry is an index or the beginning of an identity. Entries after the first unknown one are ignored, as in the
    vendors' runtimes.
    """
    if variable is None:
        return list(devices)
    found: list[Device] = []
    for entry in map(str.strip, variable.split(",")):
        match = [device for device in devices if entry and _is_entry(device, entry)]
        if len(match) != 1 or match[0] in found:
            break
        found += match
    return found


def _is_entry(device: Device, entry: str) -> bool:
    if entry.isdecimal():
        return str(device.index) == entry
    return device.identity is not None and device.identity.startswith(entry)
