"""The values that an adapter reads from an output, by device and field, and their comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelfield.contracts.readings import SAMPLED
from levelfield.contracts.vendor import Device, Sample, Vendor

Key = tuple[int, str]
Outcome = Mapping[Key, Any]
OF_DEVICES = ("chip", "memory_bytes", "identity")


def outcome(vendor: Vendor, asked: Sequence[Device]) -> dict[Key, Any]:
    """Return all values that are not null, of the found devices and of the samples of `asked`."""
    found = {(d.index, field): getattr(d, field) for d in vendor.devices() for field in OF_DEVICES}
    values = {(s.index, field): getattr(s, field) for s in vendor.sample(asked) for field in SAMPLED}
    return {key: value for key, value in {**found, **values}.items() if value is not None}


def wrong(found: Outcome, right: Outcome, new: frozenset[int] = frozenset()) -> str | None:
    """Return a sentence about a wrong value, or None when all are right or null. new: indices to ignore."""
    for (index, field), value in found.items():
        if index not in new and value != right.get((index, field)):
            known = right.get((index, field), "none")
            return f"device {index}: {field} is {_said(value)}, expected null or {_said(known)}"
    return None


def lost(found: Outcome, right: Outcome) -> Iterator[Key]:
    """Return the keys that the right outcome has and this one lacks."""
    return (key for key in right if key not in found)


def without_reason(samples: Sequence[Sample]) -> str | None:
    """Return a sentence about a value that is null without a reason, or None."""
    for sample in samples:
        for field in SAMPLED:
            if getattr(sample, field) is None and not sample.reasons.get(field):
                return f"device {sample.index}: {field} is null without a reason"
    return None


def _said(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
