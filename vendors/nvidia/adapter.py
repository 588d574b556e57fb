"""NVIDIA GPUs through NVML, or through nvidia-smi where NVML's library cannot be loaded.

Sources: NVML API reference; nvidia-smi's manual (`--help-query-gpu`); CUDA programming guide on CUDA_VISIBLE_DEVICES.
Nothing here raises for absent hardware: no driver, no devices.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from levelfield.contracts.command import ask
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import Read, chip_named, number, sample_of, shown, take, without
from levelfield.contracts.vendor import Device, Sample
from levelfield.specs.vendor import VendorFile

MEBIBYTE = 2**20
SMI_TIMEOUT_SECONDS = 5.0
_ON_THE_CHIP = 0  # NVML_TEMPERATURE_GPU
SMI_FIELDS = (
    *("index", "uuid", "name", "memory.total", "memory.used"),
    *("power.draw", "utilization.gpu", "temperature.gpu", "mig.mode.current", "driver_version"),
)
_GONE = "the tool no longer shows this device"


class Gpu(NamedTuple):
    """One card. position: its index, as the tool counts. partitioned: in MIG mode, so usable in parts only."""

    position: int
    uuid: str
    name: str
    memory_bytes: int | None
    partitioned: bool


class Tool(Protocol):
    """What NVML and nvidia-smi are to the adapter."""

    def gpus(self) -> tuple[Gpu, ...]: ...

    def samples(self, indices: Sequence[int]) -> list[Sample]: ...

    def versions(self) -> dict[str, str]: ...


class Adapter(DeclaredVendor):
    """`tool` is found when first needed; a test gives one that replays recorded values.

    Containers get a device request by UUID; within them CUDA counts as NVML does.
    """

    def __init__(self, spec: VendorFile, tool: Tool | None = None) -> None:
        super().__init__(spec)
        self._given = tool

    @cached_property
    def _tool(self) -> Tool | None:
        return self._given or open_nvml() or find_smi()

    def devices(self) -> Sequence[Device]:
        """The cards that CUDA_VISIBLE_DEVICES leaves, without those in MIG mode: see README.md."""
        gpus = self._gpus()
        partitioned = [gpu.position for gpu in gpus if gpu.partitioned]
        left = shown([self._device(gpu) for gpu in gpus], os.environ.get("CUDA_VISIBLE_DEVICES"))
        return [device for device in left if device.index not in partitioned]

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        indices = [device.index for device in devices]
        if self._tool is None:
            return [without(index, "neither NVML nor nvidia-smi is here") for index in indices]
        return self._tool.samples(indices)

    def software(self) -> dict[str, str]:
        found = super().software()
        found |= self._tool.versions() if self._tool else {"driver": "not found"}
        partitioned = [str(gpu.position) for gpu in self._gpus() if gpu.partitioned]
        return found | ({"in MIG mode, left out": ", ".join(partitioned)} if partitioned else {})

    def _gpus(self) -> tuple[Gpu, ...]:
        return self._tool.gpus() if self._tool else ()

    def _device(self, gpu: Gpu) -> Device:
        return Device(gpu.position, chip_named(self.spec, gpu.name), gpu.name, gpu.memory_bytes, gpu.uuid)


class Nvml:
    """`library` is the module pynvml, initialised."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def gpus(self) -> tuple[Gpu, ...]:
        try:
            return tuple(self._gpu(index) for index in range(self._library.nvmlDeviceGetCount()))
        except Exception:  # a driver that answered at the start and no longer does: no devices
            return ()

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        return [self._sample(index) for index in indices]

    def versions(self) -> dict[str, str]:
        library, found = self._library, {"read through": "NVML"}
        for name, read in (
            ("driver", library.nvmlSystemGetDriverVersion),
            ("nvml", library.nvmlSystemGetNVMLVersion),
            ("vbios of device 0", lambda: library.nvmlDeviceGetVbiosVersion(library.nvmlDeviceGetHandleByIndex(0))),
        ):
            try:
                found[name] = text(read())
            except Exception as error:  # as in Readings.take
                found[name] = f"unreadable: {error}"
        return found

    def _gpu(self, index: int) -> Gpu:
        library = self._library
        handle = library.nvmlDeviceGetHandleByIndex(index)
        memory = take("memory_bytes", lambda: library.nvmlDeviceGetMemoryInfo(handle).total, {})
        uuid, name = text(library.nvmlDeviceGetUUID(handle)), text(library.nvmlDeviceGetName(handle))
        return Gpu(index, uuid, name, None if memory is None else int(memory), self._is_partitioned(handle))

    def _is_partitioned(self, handle: Any) -> bool:
        try:
            return bool(self._library.nvmlDeviceGetMigMode(handle)[0])
        except Exception:  # a chip without MIG says so by an error
            return False

    def _sample(self, index: int) -> Sample:
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # a card that fell off the bus
            return without(index, f"{type(error).__name__}: {error}")
        reads: dict[str, Read] = {
            "power_watts": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "energy_joules": lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "memory_used_bytes": lambda: library.nvmlDeviceGetMemoryInfo(handle).used,
            "utilisation": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "temperature_celsius": lambda: float(library.nvmlDeviceGetTemperature(handle, _ON_THE_CHIP)),
        }
        return sample_of(index, reads)


def open_nvml() -> Nvml | None:
    """NVML, where its bindings and the driver's library are here."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no bindings, no library, no driver, no permission: all mean that NVML cannot be asked
        return None
    return Nvml(pynvml)


class Smi:
    """`ask` runs nvidia-smi and returns what it printed; "" when it failed or took too long."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpu(row) for row in parse(self._ask()))

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        rows = {int(row["index"]): row for row in parse(self._ask())}
        return [self._sample(index, rows[index]) if index in rows else without(index, _GONE) for index in indices]

    def versions(self) -> dict[str, str]:
        rows = parse(self._ask())
        return {"read through": "nvidia-smi", "driver": rows[0]["driver_version"] if rows else "no answer"}

    def _gpu(self, row: dict[str, str]) -> Gpu:
        memory = take("memory_bytes", lambda: number(row["memory.total"]) * MEBIBYTE, {})
        partitioned = row["mig.mode.current"] == "Enabled"
        return Gpu(int(row["index"]), row["uuid"], row["name"], None if memory is None else int(memory), partitioned)

    def _sample(self, index: int, row: dict[str, str]) -> Sample:
        reads: dict[str, Read] = {
            "power_watts": lambda: number(row["power.draw"]),
            "memory_used_bytes": lambda: number(row["memory.used"]) * MEBIBYTE,
            "utilisation": lambda: number(row["utilization.gpu"]) / 100,
            "temperature_celsius": lambda: number(row["temperature.gpu"]),
        }
        return sample_of(index, reads, {"energy_joules": "nvidia-smi has no energy counter"})


def find_smi() -> Smi | None:
    """nvidia-smi, where it is on the path."""
    path = shutil.which("nvidia-smi")
    return Smi(lambda: ask_smi(path)) if path else None


def ask_smi(path: str) -> str:
    """What nvidia-smi prints, in the C locale; "" when it fails or does not answer within five seconds."""
    argv = [path, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    return ask(argv, SMI_TIMEOUT_SECONDS).text or ""


def parse(output: str) -> list[dict[str, str]]:
    """Lines of nvidia-smi by field. A line that is not whole, or not of this shape, is passed over: never guessed at.

    A second line for a device that was there voids both: which one is right cannot be known.
    """
    rows = [dict(zip(SMI_FIELDS, parts, strict=True)) for parts in map(_split, output.splitlines()) if _is_row(parts)]
    indices = [row["index"] for row in rows]
    return [row for row in rows if indices.count(row["index"]) == 1]


def _split(line: str) -> list[str]:
    return [part.strip() for part in line.split(",")]


def _is_row(parts: Sequence[str]) -> bool:
    return len(parts) == len(SMI_FIELDS) and parts[0].isdecimal() and parts[1].startswith("GPU-")


def text(value: object) -> str:
    """Older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
