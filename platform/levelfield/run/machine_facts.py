"""The machine as reports describe it: operating system, kernel, processor and network."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

ROOT = Path("/")


def machine_facts(root: Path = ROOT) -> dict[str, Any]:
    """Return what can be read without a tool; null for what cannot. root: the folder of etc, proc and sys."""
    return {
        "os": _value(root / "etc/os-release", "PRETTY_NAME", "="),
        "kernel": platform.release(),
        "processor": _value(root / "proc/cpuinfo", "model name", ":"),
        "network": [*_ports(root / "sys/class/infiniband"), *_interfaces(root / "sys/class/net")],
    }


def _value(path: Path, name: str, sign: str) -> str | None:
    """Return the value of the first line `name sign value`, without quotes."""
    for line in (_text(path) or "").splitlines():
        key, found, value = line.partition(sign)
        if found and key.strip() == name:
            return value.strip().strip("\"'") or None
    return None


def _ports(folder: Path) -> list[str]:
    """Return the active InfiniBand ports with their rates, such as `mlx5_0 100 Gb/sec (4X EDR)`."""
    ports = sorted(path for path in folder.glob("*/ports/*") if "ACTIVE" in (_text(path / "state") or ""))
    return [f"{port.parents[1].name} {_text(port / 'rate') or 'of unknown rate'}" for port in ports]


def _interfaces(folder: Path) -> list[str]:
    """Return the physical network interfaces that are up, with their rates where the driver says them."""
    up = sorted(path for path in folder.glob("*") if (path / "device").exists() and _text(path / "operstate") == "up")
    return [f"{path.name} {_rate(_text(path / 'speed'))}" for path in up]


def _rate(megabits: str | None) -> str:
    known = megabits is not None and megabits.isdecimal() and int(megabits) > 0
    return f"{int(megabits or 0) / 1000:g} Gb/s" if known else "of unknown rate"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
