"""A pretended chip that draws 30 W while it is idle, and about 90 W beside a training. CHEAT names how it lies."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import psutil
from levelfield.contracts.vendor import ContainerOptions, Device, Sample
from levelfield.specs.vendor import VendorFile

IDLE_WATTS, BUSY_WATTS = 30.0, 90.0
IDLE_BYTES, BUSY_BYTES = 2**25, 2**28
CHEAT = os.environ.get("CHEAT", "")
Samples = list[Sample]


class Adapter:
    def __init__(self, spec: VendorFile) -> None:
        self.spec = spec
        self.joules, self.read_at, self.readings = 0.0, time.monotonic(), itertools.count()
        self.first: Samples = []

    def devices(self) -> Sequence[Device]:
        device = Device(0, "C1", "Cheating C1", 2**30, "serial-0")
        return DEVICE_CHEATS.get(CHEAT, lambda device: [device])(device)

    def container(self, devices: Sequence[Device]) -> ContainerOptions:
        return ContainerOptions()

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        is_busy = trains_here()
        watts = (BUSY_WATTS if is_busy else IDLE_WATTS) + next(self.readings) % 7 / 10
        now = time.monotonic()
        self.joules += watts * (now - self.read_at)
        self.read_at = now
        used, load, celsius = (BUSY_BYTES, 0.97, 61.0) if is_busy else (IDLE_BYTES, 0.0, 34.0)
        samples = [Sample(device.index, watts, self.joules, used, load, celsius) for device in devices]
        return SAMPLE_CHEATS.get(CHEAT, lambda adapter, samples: samples)(self, samples)

    def software(self) -> dict[str, str]:
        return {"driver": "99.0" if CHEAT == "all_scaled_alike" else "1.0"}


def trains_here() -> bool:
    """Return whether this process has started a training that still runs."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if "train.py" in " ".join(child.cmdline()):
                return True
    return False


def scale(factor: float, *fields: str) -> Callable[[Adapter, Samples], Samples]:
    """Return what multiplies these fields of each sample."""

    def cheat(adapter: Adapter, samples: Samples) -> Samples:
        return [replace(s, **{field: getattr(s, field) * factor for field in fields}) for s in samples]

    return cheat


def fix(**values: object) -> Callable[[Adapter, Samples], Samples]:
    """Return what gives each sample these values."""
    return lambda adapter, samples: [replace(s, **values) for s in samples]  # type: ignore[arg-type]


def double_samples(adapter: Adapter, samples: Samples) -> Samples:
    return [
        replace(s, power_watts=(s.power_watts or 0) * share, energy_joules=None) for s in samples for share in (1, 0.2)
    ]


def run_backwards(adapter: Adapter, samples: Samples) -> Samples:
    return [replace(s, energy_joules=1e6 - (s.energy_joules or 0)) for s in samples]


def repeat_power(adapter: Adapter, samples: Samples) -> Samples:
    """Repeat the first power beside a training."""
    adapter.first = adapter.first if adapter.first and adapter.first[0].utilisation else samples
    return [replace(s, power_watts=adapter.first[0].power_watts, energy_joules=None) for s in samples]


SAMPLE_CHEATS: dict[str, Callable[[Adapter, Samples], Samples]] = {
    "all_scaled_alike": scale(0.5, "power_watts", "energy_joules"),
    "samples_doubled": double_samples,
    "counter_slow": scale(0.5, "energy_joules"),
    "counter_backwards": run_backwards,
    "power_in_kilowatts": scale(0.001, "power_watts", "energy_joules"),
    "used_memory_zero": fix(memory_used_bytes=0),
    "used_memory_tiny": fix(memory_used_bytes=4096),
    "load_constant": fix(utilisation=0.99),
    "temperature_text": fix(temperature_celsius="61 degC"),
    "power_constant": fix(power_watts=61.0, energy_joules=None),
    "power_stale": repeat_power,
}
DEVICE_CHEATS: dict[str, Callable[[Device], list[Device]]] = {
    "named_as_another": lambda device: [replace(device, description="NVIDIA H100 80GB HBM3")],
    "named_as_sibling": lambda device: [replace(device, description="Cheating C2")],
    "capacity_inflated": lambda device: [replace(device, memory_bytes=2**32)],
    "identity_shared": lambda device: [device, replace(device, index=1)],
}
