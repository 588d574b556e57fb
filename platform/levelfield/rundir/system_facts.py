"""The machine of a run, from its provenance, read without trust: only texts are taken."""

from __future__ import annotations

import json
from typing import Any

from levelfield.rundir.event_lines import Event, listed, mapping
from levelfield.specs.base import sha256_of
from levelfield.specs.result import Origin, System

LONGEST = 200


def system_of(provenance: Event) -> System | None:
    """Return the machine as reports list it; None where the provenance is missing or of an earlier version."""
    machine = provenance.get("machine")
    if not isinstance(machine, dict) or "os" not in machine:
        return None
    version = clipped(mapping(provenance.get("engine")).get("Version"))
    return System(
        os=clipped(machine.get("os")),
        kernel=clipped(machine.get("kernel")),
        processor=clipped(machine.get("processor")),
        model=clipped(machine.get("model")),
        network=tuple(filter(None, map(clipped, listed(machine.get("network"))))),
        software=clipped_texts(provenance.get("vendor_software")),
        engine=f"docker {version}" if version else None,
    )


def origin_of(provenance: Event, implementation: str | None) -> Origin:
    """Return what the run was made with. implementation: the digest of its code, by the plan."""
    packages = provenance.get("environment_packages")
    text = json.dumps(packages, sort_keys=True).encode()
    return Origin(
        implementation=implementation,
        packages=sha256_of(text) if isinstance(packages, dict) else None,
        image=clipped(mapping(provenance.get("image")).get("id")),
        machine=clipped(mapping(provenance.get("machine")).get("identity")),
    )


def clipped(value: Any) -> str | None:
    """Return a text of a bounded length; None for anything else."""
    return value[:LONGEST] if isinstance(value, str) and value else None


def clipped_texts(values: Any) -> dict[str, str]:
    """Return the texts of a mapping, by name."""
    return {str(name)[:LONGEST]: text for name, value in mapping(values).items() if (text := clipped(value))}
