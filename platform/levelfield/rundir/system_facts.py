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
        os=_text(machine.get("os")),
        kernel=_text(machine.get("kernel")),
        processor=_text(machine.get("processor")),
        network=tuple(filter(None, map(_text, network))) if isinstance(network, list) else (),
        software=_texts(software),
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
        image=_text(image.get("id")) if isinstance(image, dict) else None,
        machine=_text(machine.get("identity")) if isinstance(machine, dict) else None,
    )


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) and value else None


def _texts(values: Any) -> dict[str, str]:
    """Return the texts of a mapping, by name."""
    found = values.items() if isinstance(values, dict) else ()
    return {str(name)[:LONGEST]: text for name, value in found if (text := _text(value))}


def _engine(value: Any) -> str | None:
    version = _text(value.get("Version")) if isinstance(value, dict) else None
    return f"docker {version}" if version else None
