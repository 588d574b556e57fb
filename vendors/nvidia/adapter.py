"""NVIDIA GPUs through NVML, or through nvidia-smi where NVML's library cannot be loaded.

Sources: NVML API reference; nvidia-smi's manual (`--help-query-gpu`); CUDA programming guide on CUDA_VISIBLE_DEVICES.
Nothing here raises for absent hardware: without the driver's library and nvidia-smi there are no devices. When one of
them is here and fails or does not answer, the devices are unknown and the reason is given.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

from levelfield.contracts.command import Ask, CommandOutput, ask
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import (
    ValueReader,
    chip_named,
    empty_sample,
    hides_all,
    parse_number,
    read_sample,
    read_value,
    visible_devices,
)
from levelfield.contracts.vendor import Device, DeviceList, NodeCommands, Sample, Vendor
from levelfield.specs.tool import NodeCommand
from levelfield.specs.vendor import VendorFile

MEBIBYTE = 2**20
SMI_TIMEOUT_SECONDS = 5.0
NVML_TIMEOUT_SECONDS = 5.0
# Without persistence mode the driver starts each card for the first answer, which takes seconds a card.
FIRST_TIMEOUT_SECONDS = 30.0
SLOW_START = "without persistence mode the first answer takes long: `nvidia-smi -pm 1` as root, then start again"
_ON_THE_CHIP = 0  # NVML_TEMPERATURE_GPU
SMI_FIELDS = (
    *("index", "uuid", "name", "memory.total", "memory.used"),
    *("power.draw", "utilization.gpu", "temperature.gpu", "mig.mode.current", "driver_version"),
)
MIN_UUID = len("GPU-") + 8  # characters; CUDA takes a UUID by its beginning
_GONE = "the tool no longer shows this device"
# A card that fell off the bus: a line of errors, with the card's index in newer releases; or a word in place of values.
_NO_HANDLE, _LOST_WORD = "Unable to determine the device handle", "GPU is lost"
_NO_DEVICES = "No devices were found"  # nvidia-smi's answer where the driver has no device; its exit code is 6
T = TypeVar("T")


class Gpu(NamedTuple):
    """One card. position: its index, as the tool counts. partitioned: in MIG mode, so usable in parts only."""

    position: int
    uuid: str
    name: str
    memory_bytes: int | None
    partitioned: bool


class GpuList(NamedTuple):
    """The cards that a tool shows. problem: why it shows none, or not all.

    has_lost: a card is here and does not answer. Whether CUDA counts it is unknown, and so is the number of the others.
    """

    gpus: tuple[Gpu, ...]
    problem: str | None = None
    has_lost: bool = False


class Tool(Protocol):
    """What NVML and nvidia-smi are to the adapter."""

    def gpus(self) -> GpuList: ...

    def samples(self, indices: Sequence[int]) -> list[Sample]: ...

    def versions(self) -> dict[str, str]: ...


class Adapter(DeclaredVendor):
    """`tool` is found when first needed; a test gives one that replays recorded values.

    Containers get a device request by UUID; within them CUDA counts as NVML does.
    """

    def __init__(self, spec: VendorFile, tool: Tool | None = None) -> None:
        super().__init__(spec)
        self._replayed_tool = tool

    @cached_property
    def _tool(self) -> Tool | None:
        """NVML, or nvidia-smi where NVML is absent or fails. None: neither is here."""
        if self._replayed_tool:
            return self._replayed_tool
        nvml = open_nvml()
        first = FIRST_TIMEOUT_SECONDS if nvml is None else SMI_TIMEOUT_SECONDS  # NVML's failure was the first answer
        return nvml if isinstance(nvml, Nvml) else find_smi(first) or nvml

    def devices(self) -> Sequence[Device]:
        """The cards that CUDA_VISIBLE_DEVICES leaves, without those in MIG mode: see README.md."""
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hides_all(chosen):
            return DeviceList()
        gpus, problem, has_lost = self._gpus()
        every = [self._device(gpu) for gpu in gpus]
        differ = len({gpu.name for gpu in gpus}) > 1
        is_unordered = differ and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        if (has_lost or is_unordered) and chosen and re.search(r"(^|,)\s*\d+\s*(,|$)", chosen):
            return DeviceList(problem=_unclear(every, chosen, problem))
        left = visible_devices(every, "CUDA_VISIBLE_DEVICES", chosen)
        problem = problem or left.problem
        partitioned = [gpu.position for gpu in gpus if gpu.partitioned]
        whole = [device for device in left if device.index not in partitioned]
        if has_lost or differ or partitioned:
            whole = [replace(device, visible_as=_beginning(device, every)) for device in whole]
        if left and not whole:
            problem = f"every card is in MIG mode, and parts of a card are not supported: {_joined(partitioned)}"
        return DeviceList(whole, problem)

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        indices = [device.index for device in devices]
        if self._tool is None:
            return [empty_sample(index, "neither NVML nor nvidia-smi is here") for index in indices]
        return self._tool.samples(indices)

    def software(self) -> dict[str, str]:
        software = super().software()
        software |= self._tool.versions() if self._tool else {"driver": "not found"}
        partitioned = [gpu.position for gpu in self._gpus().gpus if gpu.partitioned]
        return software | ({"in MIG mode, left out": _joined(partitioned)} if partitioned else {})

    def node_commands(self) -> NodeCommands:
        """nvidia-smi on each node, also where NVML is: an output can be read elsewhere, and a library cannot."""
        command = NodeCommand(argv=smi_argv("nvidia-smi"), timeout_seconds=SMI_TIMEOUT_SECONDS)
        first = command.model_copy(update={"timeout_seconds": FIRST_TIMEOUT_SECONDS})
        return NodeCommands((command,), {**super().node_commands().fact_commands, "nvidia-smi": first})

    def replayed(self, ask: Ask) -> Vendor:
        return Adapter(self.spec, Smi(lambda seconds: ask(smi_argv("nvidia-smi"), seconds)))

    def _gpus(self) -> GpuList:
        return self._tool.gpus() if self._tool else GpuList(())

    def _device(self, gpu: Gpu) -> Device:
        return Device(gpu.position, chip_named(self.spec, gpu.name), gpu.name, gpu.memory_bytes, gpu.uuid)


def _beginning(device: Device, every: Sequence[Device]) -> str:
    """Return the beginning of a card's UUID that is its own here, as CUDA takes it: a plan may be published."""
    uuid, others = str(device.identity), [str(other.identity) for other in every if other != device]
    lengths = range(MIN_UUID, len(uuid))
    return next((uuid[:n] for n in lengths if not any(other.startswith(uuid[:n]) for other in others)), uuid)


def _unclear(every: Sequence[Device], chosen: str, problem: str | None) -> str:
    """Return why numbers in CUDA_VISIBLE_DEVICES cannot be used: which cards they mean is unknown."""
    reason = problem or "the cards differ, and CUDA counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
    return (
        f"found CUDA_VISIBLE_DEVICES={chosen[:80]}, expected UUIDs, because it is unknown which cards CUDA's numbers "
        f"mean: {reason}. UUIDs here: {', '.join(str(device.identity) for device in every)}"
    )


def _joined(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


class NoAnswer(Exception):
    """NVML gave no answer within its time limit."""


def call_with_limit(act: Callable[[], T], seconds: float) -> T:
    """Call a function of NVML in a thread of its own. Raises NoAnswer where it hangs, as a broken driver makes it."""
    results: list[T] = []
    raised: list[Exception] = []

    def run() -> None:
        try:
            results.append(act())
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="nvml")
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not results:
        raise NoAnswer(with_advice(f"NVML did not answer within {seconds:g} s", seconds))
    return results[0]


def with_advice(reason: str, seconds: float) -> str:
    """Return why a tool gave no answer, with what to do where it was the first answer."""
    return f"{reason}; {SLOW_START}" if seconds == FIRST_TIMEOUT_SECONDS else reason


class Silent:
    """NVML's library is here and cannot be opened; `reason` gives the cause."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def gpus(self) -> GpuList:
        return GpuList((), self._reason)

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        return [empty_sample(index, self._reason) for index in indices]

    def versions(self) -> dict[str, str]:
        return {"driver": f"unreadable: {self._reason}"}


class Nvml:
    """`library` is the module pynvml, initialised. After one call without an answer no further call is made."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._hung: Silent | None = None
        self._seconds = FIRST_TIMEOUT_SECONDS  # until the first answer

    def gpus(self) -> GpuList:
        return self._called(self._all, lambda silent: silent.gpus())

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        return self._called(lambda: [self._sample(i) for i in indices], lambda silent: silent.samples(indices))

    def versions(self) -> dict[str, str]:
        return self._called(self._versions, lambda silent: silent.versions())

    def _called(self, act: Callable[[], T], otherwise: Callable[[Silent], T]) -> T:
        """Return the result of `act`, which does not raise. Where NVML hangs, return `otherwise`."""
        if self._hung is None:
            try:
                answer = call_with_limit(act, self._seconds)
                self._seconds = NVML_TIMEOUT_SECONDS
                return answer
            except NoAnswer as error:
                self._hung = Silent(str(error))
        return otherwise(self._hung)

    def _all(self) -> GpuList:
        try:
            count = self._library.nvmlDeviceGetCount()
        except Exception as error:  # a driver that answered at the start and no longer does
            return GpuList((), f"NVML cannot count the devices: {_error_text(error)}")
        gpus, lost = [], []
        for index in range(count):
            try:
                gpus.append(self._gpu(index))
            except Exception as error:  # a card that fell off the bus
                lost.append(f"device {index}: {_error_text(error)}")
        return GpuList(tuple(gpus), "NVML cannot read " + "; ".join(lost) if lost else None, bool(lost))

    def _versions(self) -> dict[str, str]:
        library, versions = self._library, {"read through": "NVML"}
        for name, read in (
            ("driver", library.nvmlSystemGetDriverVersion),
            ("nvml", library.nvmlSystemGetNVMLVersion),
            ("vbios of device 0", lambda: library.nvmlDeviceGetVbiosVersion(library.nvmlDeviceGetHandleByIndex(0))),
        ):
            try:
                versions[name] = text(read())
            except Exception as error:  # as in Readings.take
                versions[name] = f"unreadable: {error}"
        return versions

    def _gpu(self, index: int) -> Gpu:
        library = self._library
        handle = library.nvmlDeviceGetHandleByIndex(index)
        uuid, name = text(library.nvmlDeviceGetUUID(handle)), text(library.nvmlDeviceGetName(handle))
        return Gpu(index, uuid, name, self._memory(handle), self._is_partitioned(handle))

    def _memory(self, handle: Any) -> int | None:
        """Return the bytes of memory, None where they cannot be read. Raises the error of a card that is lost."""
        try:
            total = self._library.nvmlDeviceGetMemoryInfo(handle).total
        except Exception as error:  # as in Readings.take
            if _LOST_WORD in str(error):
                raise
            return None
        memory = read_value("memory_bytes", lambda: total, {})
        return None if memory is None else int(memory)

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
            return empty_sample(index, _error_text(error))
        reads: dict[str, ValueReader] = {
            "power_watts": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "energy_joules": lambda: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "memory_used_bytes": lambda: library.nvmlDeviceGetMemoryInfo(handle).used,
            "utilisation": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "temperature_celsius": lambda: float(library.nvmlDeviceGetTemperature(handle, _ON_THE_CHIP)),
        }
        return read_sample(index, reads)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def open_nvml() -> Nvml | Silent | None:
    """NVML. None: its bindings or the driver's library are not here. Silent: they are here and cannot be opened."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        call_with_limit(pynvml.nvmlInit, FIRST_TIMEOUT_SECONDS)
    except Exception as error:  # no library, no driver, no permission, a driver of another version
        absent = getattr(error, "value", None) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return None if absent else Silent(f"NVML cannot be opened: {_error_text(error)}")
    return Nvml(pynvml)


class Smi:
    """`run` runs nvidia-smi within so many seconds and returns what it printed."""

    def __init__(self, run: Callable[[float], CommandOutput], first: float = FIRST_TIMEOUT_SECONDS) -> None:
        self._run = run
        self._seconds = first  # for the first answer; all others have SMI_TIMEOUT_SECONDS

    def _ask(self) -> CommandOutput:
        seconds, self._seconds = self._seconds, SMI_TIMEOUT_SECONDS
        answer = self._run(seconds)
        if answer.text is None and answer.reason.endswith(f"within {seconds:g} s"):
            return answer._replace(reason=with_advice(answer.reason, seconds))
        return answer

    def gpus(self) -> GpuList:
        answer = self._ask()
        rows = parse(answer.text or "")
        gpus = tuple(map(self._gpu, (row for row in rows if not any(_LOST_WORD in value for value in row.values()))))
        lost = _lost(answer, [int(row["index"]) for row in rows])
        return GpuList(gpus, lost or (None if gpus else _no_card_reason(answer)), lost is not None)

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        answer = self._ask()
        rows = {int(row["index"]): row for row in parse(answer.text or "")}
        reason = _GONE if rows else answer.reason or _GONE
        return [self._sample(index, rows[index]) if index in rows else empty_sample(index, reason) for index in indices]

    def versions(self) -> dict[str, str]:
        rows = parse(self._ask().text or "")
        return {"read through": "nvidia-smi", "driver": rows[0]["driver_version"] if rows else "no answer"}

    def _gpu(self, row: dict[str, str]) -> Gpu:
        memory = read_value("memory_bytes", lambda: parse_number(row["memory.total"]) * MEBIBYTE, {})
        partitioned = row["mig.mode.current"] == "Enabled"
        return Gpu(int(row["index"]), row["uuid"], row["name"], None if memory is None else int(memory), partitioned)

    def _sample(self, index: int, row: dict[str, str]) -> Sample:
        reads: dict[str, ValueReader] = {
            "power_watts": lambda: parse_number(row["power.draw"]),
            "memory_used_bytes": lambda: parse_number(row["memory.used"]) * MEBIBYTE,
            "utilisation": lambda: parse_number(row["utilization.gpu"]) / 100,
            "temperature_celsius": lambda: parse_number(row["temperature.gpu"]),
        }
        return read_sample(index, reads, {"energy_joules": "nvidia-smi has no energy counter"})


def _lost(answer: CommandOutput, indices: Sequence[int]) -> str | None:
    """Return which cards do not answer, by what nvidia-smi prints of them or by a gap in its indices; None for none."""
    lines = f"{answer.text or answer.reason}\n{answer.complaint}".splitlines()
    reports = [line.strip()[:160] for line in lines if _NO_HANDLE in line]
    reports += [f"card {line.partition(',')[0]}: {_LOST_WORD}" for line in lines if f"[{_LOST_WORD}]" in line]
    missing = sorted({*range(max(indices, default=-1) + 1)} - {*indices})
    reports += [f"it prints no line of card {_joined(missing)}"] if missing and not reports else []
    advice = "Reset it (`nvidia-smi --gpu-reset`) or start the machine again"
    return f"nvidia-smi does not show every card: {'; '.join(reports)}. {advice}" if reports else None


def _no_card_reason(answer: CommandOutput) -> str | None:
    """Why nvidia-smi shows no card. None: it says that there is none, or it is not here."""
    if answer.absent or _NO_DEVICES in (answer.text or answer.reason):
        return None
    if answer.text is None:
        return answer.reason
    first = answer.text.strip().partition("\n")[0][:120]
    return f"nvidia-smi printed no line of a card: found {first!r}"


def find_smi(first: float = FIRST_TIMEOUT_SECONDS) -> Smi | None:
    """nvidia-smi, where it is on the path. first: the seconds for its first answer."""
    return Smi(lambda seconds: ask_smi("nvidia-smi", seconds), first) if shutil.which("nvidia-smi") else None


def ask_smi(tool: str, seconds: float = SMI_TIMEOUT_SECONDS) -> CommandOutput:
    """What nvidia-smi prints, in the C locale, within so many seconds."""
    return ask(smi_argv(tool), seconds)


def smi_argv(tool: str) -> tuple[str, ...]:
    return (tool, f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits")


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
