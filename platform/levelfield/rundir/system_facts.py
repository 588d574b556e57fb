"""The machine of a run, from its provenance, read without trust: only texts are taken."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from levelfield.rundir.event_lines import Event
from levelfield.specs.result import Origin, System

LONGEST = 200


def system_of(provenance: Event) -> System | None:
    """Return the machine as reports list it; None where the provenance is missing or of an earlier version."""
    machine = provenance.get("machine")
    if not isinstance(machine, dict) or "os" not in machine:
        return None
    network, software = machine.get("network"), provenance.get("vendor_software")
    return System(
        os=clipped(machine.get("os")),
        kernel=clipped(machine.get("kernel")),
        processor=clipped(machine.get("processor")),
        network=tuple(filter(None, map(clipped, network))) if isinstance(network, list) else (),
        software=clipped_texts(software),
        engine=_engine(provenance.get("engine")),
    )


def origin_of(provenance: Event, implementation: str | None) -> Origin:
    """Return what the run was made with. implementation: the digest of its code, by the plan."""
    machine, image = (provenance.get(name) for name in ("machine", "image"))
    packages = provenance.get("environment_packages")
    listed = json.dumps(packages, sort_keys=True).encode()
    return Origin(
        implementation=implementation,
        packages=f"sha256:{hashlib.sha256(listed).hexdigest()}" if isinstance(packages, dict) else None,
        image=clipped(image.get("id")) if isinstance(image, dict) else None,
        machine=clipped(machine.get("identity")) if isinstance(machine, dict) else None,
    )


def clipped(value: Any) -> str | None:
    """Return a text of a bounded length; None for anything else."""
    return value[:LONGEST] if isinstance(value, str) and value else None


def clipped_texts(values: Any) -> dict[str, str]:
    """Return the texts of a mapping, by name."""
    found = values.items() if isinstance(values, dict) else ()
    return {str(name)[:LONGEST]: text for name, value in found if (text := clipped(value))}


def _engine(value: Any) -> str | None:
    version = clipped(value.get("Version")) if isinstance(value, dict) else None
    return f"docker {version}" if version else None
