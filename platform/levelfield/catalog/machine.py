"""The devices of this machine, by vendor. Each maker's tool runs once in a command."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from levelfield.contracts.checked_adapter import AdapterFault, devices_fault
from levelfield.contracts.readings import plausible_sample, whole_devices
from levelfield.contracts.vendor import DeviceList, Sample, Vendor
from levelfield.measure.device_use import describe_device_use, is_used_by_others
from levelfield.node.control_groups import HOST_ROOT, core_quota, file_text


class Machine:
    """What the vendors' tools show on this machine. load_adapter: returns the adapter of a vendor by its name."""

    def __init__(self, load_adapter: Callable[[str], Vendor]) -> None:
        self._load_adapter = load_adapter
        self._devices: dict[str, DeviceList] = {}
        self._busy: dict[str, dict[int, str]] = {}
        self._drivers: dict[str, str] = {}

    def devices(self, vendor: str) -> DeviceList:
        """Return the vendor's devices, as its tool showed them when it was first asked in this command."""
        if vendor not in self._devices:
            self._devices[vendor] = devices_of(self._load_adapter(vendor))
        return self._devices[vendor]

    def busy_devices(self, vendor: str) -> Mapping[int, str]:
        """Return the devices that others use, by index, each with a sentence: by one reading of all devices."""
        if vendor in self._busy:
            return self._busy[vendor]
        adapter, devices = self._load_adapter(vendor), self.devices(vendor)
        samples: dict[int, Sample] = {}
        if devices and not adapter.spec.is_divided:  # the use of a host's shares is read at the start of the run
            with contextlib.suppress(Exception):  # an adapter may raise anything; the run's own readings report it
                samples = {sample.index: sample for sample in adapter.sample(devices)}
        readings = ((d, plausible_sample(adapter.spec, d, samples[d.index])) for d in devices if d.index in samples)
        uses = {d.index: (s.memory_used_bytes, d.memory_bytes, s.utilisation) for d, s in readings}
        self._busy[vendor] = {
            index: describe_device_use(str(index), *use, "when it was planned")
            for index, use in uses.items()
            if is_used_by_others(*use)
        }
        return self._busy[vendor]

    def driver(self, vendor: str) -> str:
        """Return the version of the devices' driver, or why it is not known."""
        if vendor not in self._drivers:
            try:
                version = self._load_adapter(vendor).software().get("driver", "unknown: the vendor does not name it")
            except Exception as error:  # an adapter may raise anything
                version = f"unknown: {type(error).__name__}"
            self._drivers[vendor] = version
        return self._drivers[vendor]


def devices_of(vendor: Vendor) -> DeviceList:
    """Return the devices of an adapter. One that raises has no devices, and the problem is its error.

    The problem also names a device whose memory cannot be that of its chip.
    """
    try:
        devices = vendor.devices()
    except AdapterFault as error:
        return DeviceList(problem=str(error))
    except Exception as error:  # an adapter may raise anything
        return DeviceList(problem=f"the adapter raised {type(error).__name__}: {error}".rstrip(": "))
    if fault := devices_fault(devices):
        return DeviceList(problem=f"vendor {vendor.spec.name}: {fault}")
    return whole_devices(vendor.spec, devices if isinstance(devices, DeviceList) else DeviceList(devices))


def usable_cores(root: Path = HOST_ROOT) -> int:
    """Return the cores that the operating system allows this process: its affinity, and its control groups' quota.

    A quota of part of a core counts as a core: it pays for that part of the time of one more thread.
    """
    quota = core_quota(root)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def processor_flags(root: Path = HOST_ROOT) -> frozenset[str] | None:
    """Return the instruction sets of an x86 processor, as /proc/cpuinfo names them; None where it lists none."""
    lines = (line.partition(":") for line in file_text(root / "proc/cpuinfo").splitlines())
    flags = next((value.split() for name, _, value in lines if name.strip() == "flags"), None)
    return frozenset(flags) if flags else None
