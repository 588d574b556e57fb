"""The host's processors as one device, which the platform may divide into shares.

Sources: psutil; /proc/cpuinfo; cgroups v1 and v2 (kernel documentation, admin-guide/cgroup-v1/memory and
admin-guide/cgroup-v2); RAPL through powercap (kernel documentation, power/powercap).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from levelfield.contracts.control_groups import control_groups, core_quota, file_text
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device, Sample
from levelfield.specs.vendor import VendorFile

_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_NO_POWER = "powercap counts energy; power is the difference of two readings of it"


class Allowance(NamedTuple):
    """A limit on memory, and what counts against it: the whole machine, or one control group."""

    limit_bytes: int
    used_bytes: int | None


class Zone(NamedTuple):
    """A RAPL package: its counter, which falls back to 0 above `range_microjoules`."""

    counter: Path
    range_microjoules: int


class Adapter(DeclaredVendor):
    """`root` is where the host's file system begins: another folder when files are replayed."""

    def __init__(self, spec: VendorFile, root: Path = Path("/")) -> None:
        super().__init__(spec, root=root)
        self._energy = EnergyCounter(root)
        self._times: tuple[float, float] | None = None

    def devices(self) -> Sequence[Device]:
        memory = allowance(self._root).limit_bytes
        return (Device(index=0, chip=self.spec.chips[0].name, description=model_name(self._root), memory_bytes=memory),)

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        return [self._sample(device) for device in devices]

    def software(self) -> dict[str, str]:
        return {
            **super().software(),
            "processor": model_name(self._root),
            "libc": " ".join(platform.libc_ver()).strip() or "unknown",
            "cores": core_text(self._root),
        }

    def _sample(self, device: Device) -> Sample:
        reasons = {"power_watts": _NO_POWER}
        joules, why_no_energy = self._energy.read()
        values = {
            "energy_joules": (joules, why_no_energy),
            "utilisation": (self._utilisation(), "no earlier reading to compare with"),
            "temperature_celsius": (temperature(), "no sensor of the processor can be read"),
        }
        used = allowance(self._root).used_bytes
        reasons |= {name: reason for name, (value, reason) in values.items() if value is None}
        reasons |= {} if used is not None else {"memory_used_bytes": "the control group does not say"}
        numbers = {name: value for name, (value, _) in values.items()}
        return Sample(index=device.index, memory_used_bytes=used, reasons=reasons, **numbers)

    def _utilisation(self) -> float | None:
        """Busy time over all time of all cores since the reading before."""
        now = psutil.cpu_times()
        idle, whole = now.idle + getattr(now, "iowait", 0.0), sum(now) - getattr(now, "guest", 0.0)
        before, self._times = self._times, (idle, whole)
        if before is None or not whole > before[1]:
            return None
        return min(1.0, max(0.0, 1 - (idle - before[0]) / (whole - before[1])))


class EnergyCounter:
    """Joules of all packages since the first reading, summed over the wraps of their counters."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last: dict[Path, int] = {}
        self._total = 0

    def read(self) -> tuple[float | None, str]:
        """Joules, or None with the reason: no counters, or one that this user may not read."""
        zones = rapl_zones(self._root)
        if not zones:
            return None, "this machine shows no RAPL package to powercap"
        for zone in zones:
            now = _number(zone.counter)
            if now is None:
                return None, f"{zone.counter} cannot be read by this user"
            self._total += risen(self._last.get(zone.counter, now), now, zone.range_microjoules)
            self._last[zone.counter] = now
        return self._total / 1e6, ""


def risen(before: int, now: int, span: int) -> int:
    """How far a counter went that falls back to 0 above `span`; once at most between two readings."""
    return now - before if now >= before else now - before + span + 1


def rapl_zones(root: Path) -> tuple[Zone, ...]:
    """The packages under powercap; their parts (cores, memory) are already within them."""
    found = []
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        span = _number(folder / "max_energy_range_uj")
        if span is not None and file_text(folder / "name").startswith("package"):
            found.append(Zone(folder / "energy_uj", span))
    return tuple(found)


def allowance(root: Path) -> Allowance:
    """What this process may use of the memory: the smallest of the machine's and its control groups' limits."""
    memory = psutil.virtual_memory()
    machine = Allowance(memory.total, memory.total - memory.available)
    return min([machine, *_memory_groups(root)], key=lambda a: a.limit_bytes)


def _memory_groups(root: Path) -> Iterator[Allowance]:
    for folder in control_groups("memory", root):
        limit = _number(folder / "memory.max")
        if limit is not None:
            yield Allowance(limit, _without_cache(folder, "memory.current", "inactive_file"))
        limit = _number(folder / "memory.limit_in_bytes")
        if limit is not None:
            yield Allowance(limit, _without_cache(folder, "memory.usage_in_bytes", "total_inactive_file"))


def _without_cache(folder: Path, usage: str, cache: str) -> int | None:
    """Usage without the file pages that the kernel would give back first, as container tools count it."""
    used = _number(folder / usage)
    lines = (line.split() for line in file_text(folder / "memory.stat").splitlines())
    cached = next((int(line[1]) for line in lines if len(line) == 2 and line[0] == cache and line[1].isdigit()), 0)
    return None if used is None else max(0, used - cached)


def usable_cores(root: Path) -> tuple[int, float]:
    """Cores of this process's affinity, and how many its control groups' quota pays for (at most those)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota(root)
    return affinity, float(affinity) if quota is None else min(float(affinity), quota)


def core_text(root: Path) -> str:
    affinity, paid = usable_cores(root)
    return f"{affinity} of {os.cpu_count()} logical cores usable, {paid:g} of them by quota"


def model_name(root: Path) -> str:
    """The processor by the kernel's name for it, else by its architecture."""
    for line in file_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def temperature() -> float | None:
    """The hottest reading of the processor's own sensors, in degrees Celsius."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError, ValueError):
        return None
    values = [entry.current for name in _SENSORS for entry in sensors.get(name, ())]
    return max((float(v) for v in values if v is not None and -50 < v < 150), default=None)


def _number(path: Path) -> int | None:
    """A file that holds one whole number; None where it is missing, unreadable or holds a word (`max`)."""
    text = file_text(path)
    return int(text) if text.isascii() and text.isdigit() else None
