"""Which machine and devices a run was on, as digests: equal for the same ones, and nothing can be read from them."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from levelfield.contracts.vendor import Device

ROOT = Path("/")
_MACHINE_ID = "etc/machine-id"  # systemd's, made when the system was installed


def machine_identity(root: Path = ROOT) -> dict[str, Any]:
    """Return the digest of the machine, and what it rests on. root: the folder of etc.

    A container often has no identifier of its own, and a new name each time; then two runs have two identities.
    """
    known = {"machine-id": _machine_id(root), "host name": platform.node()}
    rests_on = [name for name, text in known.items() if text]
    return {"identity": _digest("machine", *(known[name] or "" for name in rests_on)), "identity_rests_on": rests_on}


def device_identities(devices: Iterable[Device]) -> list[dict[str, Any]]:
    """Return each device of the run with the digest of its own identity; null where the vendor's tool shows none."""
    return [
        {"index": device.index, "identity": _digest("device", device.identity) if device.identity else None}
        for device in devices
    ]


def _machine_id(root: Path) -> str | None:
    try:
        text = (root / _MACHINE_ID).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return text if text not in ("", "uninitialized") else None


def _digest(kind: str, *texts: str) -> str:
    content = "\0".join(("levelfield", kind, *texts))
    return f"sha256:{hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()}"
