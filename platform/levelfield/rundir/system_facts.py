"""The machine of a run, from its provenance, read without trust: only texts are taken."""

from __future__ import annotations

from typing import Any

from levelfield.rundir.event_lines import Event
from levelfield.specs.result import System

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


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) and value else None


def _texts(values: Any) -> dict[str, str]:
    """Return the texts of a mapping, by name."""
    found = values.items() if isinstance(values, dict) else ()
    return {str(name)[:LONGEST]: text for name, value in found if (text := _text(value))}


def _engine(value: Any) -> str | None:
    version = _text(value.get("Version")) if isinstance(value, dict) else None
    return f"docker {version}" if version else None
