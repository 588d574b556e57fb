"""The provenance of a run: source, software and machine at its start."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from levelfield.catalog.machine import devices_of, usable_cores
from levelfield.checkout import checkout
from levelfield.contracts.command import completed
from levelfield.contracts.execution import ReadyRuntime
from levelfield.contracts.vendor import Device, Vendor
from levelfield.run.identities import device_identities, machine_identity
from levelfield.run.machine_facts import machine_facts
from levelfield.run.runtimes.process_runtime import inherited
from levelfield.specs.plan import Plan
from levelfield.specs.surroundings import KNOWN_TO_MATTER, RULE, recorded
from levelfield.specs.variables import masked

GIT_SECONDS = 10.0
_OWN_PACKAGES = ("pydantic", "numpy", "psutil", "PyYAML", "Jinja2")


def provenance(plan: Plan, vendor: Vendor, runtime: ReadyRuntime) -> dict[str, Any]:
    """Return everything outside the plan that can change the figures of a run."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": source(checkout()),
        "platform": {"python": sys.version.split()[0], **{name: version(name) for name in _OWN_PACKAGES}},
        **runtime.identity(plan),
        "machine": machine(),
        "devices": device_identities(_devices(plan, vendor)),
        "vendor_software": _software(vendor),
        "variables": _variables(dict(os.environ)),
        "inherited": {} if plan.runtime == "docker" else recorded(inherited()),
        "inherited_are": RULE,
    }


def _variables(environment: dict[str, str]) -> dict[str, str]:
    """Return the platform's own variables that are known to matter, without secrets."""
    return masked({name: text for name, text in sorted(environment.items()) if name.startswith(KNOWN_TO_MATTER)})


def source(folder: Path) -> dict[str, Any]:
    """Return the commit and the files that differ from it; outside git null and the reason."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "reason": "not a git checkout, or git is missing"}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed_files": [line[3:] for line in (changed or "").splitlines()]}


def machine() -> dict[str, Any]:
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": list(os.getloadavg()),
        **machine_facts(),
        **machine_identity(),
    }


def _devices(plan: Plan, vendor: Vendor) -> list[Device]:
    """Return the devices of the plan; none where the host is divided into shares."""
    return [device for device in devices_of(vendor) if device.index in plan.hardware.device_indices]


def _software(vendor: Vendor) -> dict[str, str]:
    try:
        return vendor.software()
    except Exception as error:  # an adapter may raise anything, and the run must go on
        return {"error": f"{type(error).__name__}: {error}"}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = completed(["git", "-C", str(folder), *words], GIT_SECONDS)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip("\n")
