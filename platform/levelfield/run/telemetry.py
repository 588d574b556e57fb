"""Telemetry of a run: appends the vendor's raw samples once a second. Its errors do not stop the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from levelfield.contracts.readings import plausible_samples
from levelfield.contracts.vendor import Device, Vendor
from levelfield.node.node_facts import host_counters
from levelfield.node.sampling import Sampler

INTERVAL_SECONDS = 1.0


def watching(vendor: Vendor, devices: Sequence[Device], path: Path, are_children: bool = True) -> Sampler:
    """Return what samples during a block. A tool that is slow, missing or failing leaves a reason in the file.

    The block begins after the first reading. A tool that still runs at the end is ended. are_children: whether the
    training's processes are descendants of this one.
    """
    return Sampler(
        path,
        INTERVAL_SECONDS,
        reading=lambda: plausible_samples(vendor, devices) if devices else {"samples": []},
        empty={"samples": []},
        host=lambda is_before: host_counters(are_children or is_before),
    )
