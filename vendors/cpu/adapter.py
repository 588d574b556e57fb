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
from levelfield.contracts.command import Ask, control_groups, core_quota, file_text
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device, NodeCommands, Sample, Vendor
from levelfield.specs.tool import NodeCommand
from levelfield.specs.vendor import VendorFile

_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_KERNEL = ("cat", "/proc/stat", "/proc/meminfo")
_ZONE = "/sys/class/powercap/intel-rapl:"
_PACKAGES = tuple(
    ("cat", f"{_ZONE}{n}/name", f"{_ZONE}{n}/max_energy_range_uj", f"{_ZONE}{n}/energy_uj") for n in range(4)
)  # more sockets than four are not read
_NO_FILE = "No such file"
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

    def node_commands(self) -> NodeCommands:
        """The kernel's own files on each node, one command for each package of RAPL that there may be."""
        return NodeCommands(tuple(NodeCommand(argv=argv, timeout_seconds=2.0) for argv in (_KERNEL, *_PACKAGES)))

    def replayed(self, ask: Ask) -> Vendor:
        return RecordedHost(self.spec, ask)

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
        return busy_part(before, (idle, whole))


def busy_part(before: tuple[float, float] | None, now: tuple[float, float]) -> float | None:
    """The part of the time that was not idle, between two readings of idle and whole time; None without two."""
    if before is None or not now[1] > before[1]:
        return None
    return min(1.0, max(0.0, 1 - (now[0] - before[0]) / (now[1] - before[1])))


class RecordedHost(DeclaredVendor):
    """A host whose kernel files another node printed. Its memory is the whole machine's, without control groups."""

    def __init__(self, spec: VendorFile, ask: Ask) -> None:
        super().__init__(spec, ask)
        self._times: tuple[float, float] | None = None
        self._last: dict[tuple[str, ...], int] = {}
        self._microjoules = 0

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        answer = self._ask(_KERNEL, 0)
        rows = dict(_row(line) for line in (answer.text or "").splitlines() if len(line.split()) > 1)
        joules, energy_reason = self._energy()
        used, busy = _used_bytes(rows), self._busy(rows.get("cpu", []))
        reason = answer.reason or "the kernel's files hold no such value"
        reasons = {"power_watts": _NO_POWER, "temperature_celsius": "sensors of another node are not read"}
        reasons |= {"energy_joules": energy_reason} if joules is None else {}
        reasons |= {"memory_used_bytes": reason} if used is None else {}
        reasons |= {"utilisation": answer.reason or "no earlier reading to compare with"} if busy is None else {}
        return [Sample(d.index, None, joules, used, busy, reasons=reasons) for d in devices]

    def _busy(self, ticks: Sequence[int]) -> float | None:
        """Of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; the guests' are within user's."""
        if len(ticks) < 8:
            return None
        now = (float(ticks[3] + ticks[4]), float(sum(ticks[:8])))
        before, self._times = self._times, now
        return busy_part(before, now)

    def _energy(self) -> tuple[float | None, str]:
        """Joules of all packages since the first reading, as EnergyCounter counts them."""
        packages = 0
        for argv in _PACKAGES:
            answer = self._ask(argv, 0)
            if answer.text is None and _NO_FILE in answer.reason:
                continue
            name, *counts = (answer.text or "").split()[:3] or [""]
            if not name.startswith("package") or len(counts) != 2 or not all(map(_is_whole, counts)):
                return None, f"{argv[-1]} cannot be read on the node: {answer.reason or 'found no counter'}"
            span, now = map(int, counts)
            self._microjoules += risen(self._last.get(argv, now), now, span)
            self._last[argv] = now
            packages += 1
        return (self._microjoules / 1e6, "") if packages else (None, "the node shows no RAPL package to powercap")


def _row(line: str) -> tuple[str, list[int]]:
    """A line of /proc/stat or /proc/meminfo by its name, with its whole numbers."""
    name, *values = line.split()
    return name.rstrip(":"), [int(value) for value in values if _is_whole(value)]


def _used_bytes(rows: dict[str, list[int]]) -> int | None:
    total, available = (rows.get(name, []) for name in ("MemTotal", "MemAvailable"))
    return (total[0] - available[0]) * 1024 if total and available and total[0] >= available[0] else None


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


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
    zones = []
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        span = _number(folder / "max_energy_range_uj")
        if span is not None and file_text(folder / "name").startswith("package"):
            zones.append(Zone(folder / "energy_uj", span))
    return tuple(zones)


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
    return int(text) if _is_whole(text) else None
