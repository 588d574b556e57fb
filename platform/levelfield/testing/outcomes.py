"""What an adapter makes of an output, as values by device and field, and what of another outcome is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelfield.contracts.readings import SAMPLED
from levelfield.contracts.vendor import Device, Sample, Vendor

Key = tuple[int, str]
Outcome = Mapping[Key, Any]
OF_DEVICES = ("chip", "memory_bytes", "identity")


def outcome(vendor: Vendor, asked: Sequence[Device]) -> dict[Key, Any]:
    """All values that are not null: of the devices found, and of the samples of `asked`."""
    found = {(d.index, field): getattr(d, field) for d in vendor.devices() for field in OF_DEVICES}
    values = {(s.index, field): getattr(s, field) for s in vendor.sample(asked) for field in SAMPLED}
    return {key: value for key, value in {**found, **values}.items() if value is not None}


def wrong(found: Outcome, right: Outcome, new: frozenset[int] = frozenset()) -> str | None:
    """A value that differs from the right one, in words; None when all agree or are null. new: indices not judged."""
    for (index, field), value in found.items():
        if index not in new and value != right.get((index, field)):
            known = right.get((index, field), "none")
            return f"device {index}: {field} is {_said(value)}, expected null or {_said(known)}"
    return None


def lost(found: Outcome, right: Outcome) -> Iterator[Key]:
    """What the right outcome has and this one has not."""
    return (key for key in right if key not in found)


def without_reason(samples: Sequence[Sample]) -> str | None:
    """A value that is null without a reason, in words."""
    for sample in samples:
        for field in SAMPLED:
            if getattr(sample, field) is None and not sample.reasons.get(field):
                return f"device {sample.index}: {field} is null without a reason"
    return None


def _said(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
