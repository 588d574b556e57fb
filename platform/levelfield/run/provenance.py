"""The provenance of a run: source, software and machine at its start."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from levelfield.catalog.machine import devices_of, usable_cores
from levelfield.checkout import checkout
from levelfield.contracts.command import file_text, run_bounded
from levelfield.contracts.execution import ReadyRuntime
from levelfield.contracts.vendor import Device, Vendor
from levelfield.node.node_facts import tool_output
from levelfield.run.runtimes.process_runtime import inherited_variables
from levelfield.specs.plan import Plan
from levelfield.specs.variables import INFLUENTIAL_PREFIXES, RECORDED_BY_EXCLUSION, mask_secrets, recordable_variables
from levelfield.specs.vendor import VendorFile
from levelfield.worker.device_identity import identity_digest

GIT_SECONDS = 10.0  # the time limit of each git command
_HOST_ROOT = Path("/")
_PLATFORM_PACKAGES = ("pydantic", "numpy", "psutil", "PyYAML", "Jinja2")


def collect_provenance(plan: Plan, vendor: Vendor, runtime: ReadyRuntime) -> dict[str, Any]:
    """Return everything outside the plan that can change the figures of a run."""
    variables = {name: text for name, text in sorted(os.environ.items()) if name.startswith(INFLUENTIAL_PREFIXES)}
    devices = devices_of(vendor)
    try:
        software = vendor.software()
    except Exception as error:  # an adapter may raise anything, and the run must go on
        software = {"error": f"{type(error).__name__}: {error}"}
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": source_state(checkout()),
        "platform": {"python": sys.version.split()[0], **{name: version(name) for name in _PLATFORM_PACKAGES}},
        **runtime.identity(plan),
        "machine": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "usable_cores": usable_cores(),
            "memory_bytes": psutil.virtual_memory().total,
            "load_average": list(os.getloadavg()),
            **machine_facts(),
            **machine_identity(),
        },
        "devices": device_identities(d for d in devices if d.index in plan.hardware.device_indices),
        "other_devices": device_identities(d for d in devices if d.index not in plan.hardware.device_indices),
        "vendor_software": software,
        "topology": query_topology(vendor.spec),
        "variables": mask_secrets(variables),
        "inherited": {} if plan.runtime == "docker" else recordable_variables(inherited_variables()),
        "inherited_are": RECORDED_BY_EXCLUSION,
    }


def source_state(folder: Path) -> dict[str, Any]:
    """Return the commit and the files that differ from it; null and a reason outside of git, or where git is slow."""
    commit = checkout_commit(folder)
    if commit is None:
        return {"commit": None, "reason": "not a git checkout, or git is missing"}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changed is None:
        reason = f"git status failed, or took over {GIT_SECONDS:.0f} s"
        return {"commit": commit, "changed_files": None, "reason": reason}
    return {"commit": commit, "changed_files": [line[3:] for line in changed.splitlines()]}


def checkout_commit(folder: Path) -> str | None:
    """Return the commit of a checkout; None outside of git, and without git."""
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        completed = run_bounded(["git", "-C", str(folder), *arguments], GIT_SECONDS)
        completed.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip("\n")


def query_topology(vendor: VendorFile) -> dict[str, Any] | None:
    """Return what the vendor's tool prints about the links between devices; None where vendor.yaml names no command."""
    tool = vendor.topology
    return tool_output(list(tool.command), tool.timeout_seconds) if tool else None


def machine_facts(root: Path = _HOST_ROOT) -> dict[str, Any]:
    """Return what reports say about the machine; None: unreadable. root: the folder of etc, proc and sys."""
    firmware = (file_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    # the active InfiniBand ports, such as `mlx5_0 100 Gb/sec (4X EDR)`, and the physical interfaces that are up
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    interfaces = sorted(path for path in (root / "sys/class/net").glob("*") if (path / "device").exists())
    network = [
        f"{path.parents[1].name} {file_text(path / 'rate') or 'of unknown rate'}"
        for path in ports
        if "ACTIVE" in file_text(path / "state")
    ]
    for path in interfaces:
        if file_text(path / "operstate") == "up":
            speed = file_text(path / "speed")  # in Mb/s
            is_rate = speed.isdecimal() and int(speed) > 0
            network.append(f"{path.name} {int(speed) / 1000:g} Gb/s" if is_rate else f"{path.name} of unknown rate")
    return {
        "os": _read_value(root / "etc/os-release", "PRETTY_NAME", "="),
        "kernel": platform.release(),
        "processor": _read_value(root / "proc/cpuinfo", "model name", ":"),
        "model": " ".join(filter(None, firmware)) or None,  # maker and name, such as `NVIDIA DGXA100`
        "network": network,
    }


def _read_value(path: Path, name: str, separator: str) -> str | None:
    """Return the value of the first line `name separator value`, without quotes; None without one."""
    for line in file_text(path).splitlines():
        key, has_separator, value = line.partition(separator)
        if has_separator and key.strip() == name:
            return value.strip().strip("\"'") or None
    return None


def machine_identity(root: Path = _HOST_ROOT) -> dict[str, Any]:
    """Return the digest of the machine, and the names of its inputs. root: the folder of etc.

    The digest does not reveal its inputs. A container often has no identifier of its own, and a new name each time;
    then two runs have two identities.
    """
    identifier = file_text(root / "etc/machine-id")  # systemd's, made when the system was installed
    is_usable = identifier.isascii() and identifier != "uninitialized"
    texts = {"machine-id": identifier if is_usable else "", "host name": platform.node()}
    input_names = [name for name, text in texts.items() if text]
    return {
        "identity": identity_digest("machine", *(texts[name] for name in input_names)),
        "identity_rests_on": input_names,
    }


def device_identities(devices: Iterable[Device]) -> list[dict[str, Any]]:
    """Return each device with the digest of its own identity; None where the vendor's tool shows none."""
    return [
        {"index": device.index, "identity": identity_digest("device", device.identity) if device.identity else None}
        for device in devices
    ]
