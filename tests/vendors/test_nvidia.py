"""The NVIDIA adapter on replayed values (recorded/README.md says whose) and on damaged copies of them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest
from adapters import load_adapter, load_spec, tool
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.readings import memory_fault
from levelfield.contracts.vendor import Device, Sample
from levelfield.specs.vendor import VendorFile

MIB = 2**20
RECORDED = (Path(__file__).with_name("recorded") / "nvidia_smi_a100_40g.csv").read_text()
HOPPERS = {
    name: json.loads((Path(__file__).with_name("recorded") / f"nvml_{name}.json").read_text())
    for name in ("h100", "h200")
}
NVIDIA: ModuleType = load_adapter("nvidia")
FIELDS = {"power_watts", "energy_joules", "memory_used_bytes", "utilisation", "temperature_celsius"}


def smi(output: str) -> Any:
    return NVIDIA.Smi(lambda seconds: CommandOutput(output))


def samples(output: str, indices: tuple[int, ...] = (0, 1)) -> list[Sample]:
    return list(smi(output).samples(indices))


def changed(column: str, value: str, line: int = 0) -> str:
    lines = RECORDED.splitlines()
    parts = lines[line].split(", ")
    parts[NVIDIA.SMI_FIELDS.index(column)] = value
    lines[line] = ", ".join(parts)
    return "\n".join(lines)


def test_the_recorded_lines() -> None:
    first, second = samples(RECORDED)
    assert (first.power_watts, first.temperature_celsius, first.utilisation) == (57.0, 31.0, 0.0)
    assert first.memory_used_bytes == 15 * MIB and isinstance(first.memory_used_bytes, int)
    assert (second.index, second.power_watts, second.temperature_celsius) == (1, 58.5, 33.0)
    assert set(first.reasons) == {"energy_joules"}
    assert [g.memory_bytes for g in smi(RECORDED).gpus().gpus] == [40536 * MIB] * 2


def test_every_reading_is_found_by_its_index_not_its_line() -> None:
    swapped = "\n".join(reversed(RECORDED.splitlines()))
    assert samples(swapped) == samples(RECORDED)
    assert [s.power_watts for s in samples(RECORDED, (1, 0))] == [58.5, 57.0]


def test_devices_that_appear_or_vanish() -> None:
    extra = RECORDED + RECORDED.splitlines()[0].replace("0, GPU-0", "7, GPU-7", 1) + "\n"
    assert samples(extra) == samples(RECORDED) and len(smi(extra).gpus().gpus) == 3
    first, second = samples(RECORDED.splitlines()[0])
    assert first.power_watts == 57.0 and second.power_watts is None
    assert set(second.reasons) == FIELDS and "no longer" in second.reasons["power_watts"]


@pytest.mark.parametrize(
    "word", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", "[GPU requires reset]", "", "ERR!"]
)
@pytest.mark.parametrize(
    ("column", "field"),
    [
        ("power.draw", "power_watts"),
        ("memory.used", "memory_used_bytes"),
        ("utilization.gpu", "utilisation"),
        ("temperature.gpu", "temperature_celsius"),
    ],
)
def test_what_cannot_be_read_is_none_with_its_word(column: str, field: str, word: str) -> None:
    sample = samples(changed(column, word))[0]
    assert getattr(sample, field) is None and f"'{word}'" in sample.reasons[field]
    others = FIELDS - {field, "energy_joules"}
    assert all(getattr(sample, other) is not None for other in others)


@pytest.mark.parametrize(
    ("column", "value", "field"),
    [
        ("power.draw", "57 W", "power_watts"),
        ("power.draw", "57000", "power_watts"),
        ("power.draw", "nan", "power_watts"),
        ("power.draw", "-57.00", "power_watts"),
        ("memory.used", "15 MiB", "memory_used_bytes"),
        ("memory.used", str(15 * MIB), "memory_used_bytes"),
        ("utilization.gpu", "0 %", "utilisation"),
        ("utilization.gpu", "120", "utilisation"),
        ("temperature.gpu", "304", "temperature_celsius"),
        ("temperature.gpu", "1e2", "temperature_celsius"),
    ],
)
def test_other_units_are_not_taken_for_these(column: str, value: str, field: str) -> None:
    sample = samples(changed(column, value))[0]
    assert getattr(sample, field) is None and sample.reasons[field]


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:60],
        lambda line: line.rsplit(",", 1)[0],
        lambda line: line.replace("57.00", "57,00"),
        lambda line: ", ".join(reversed(line.split(", "))),
        lambda line: line.replace("GPU-", "MIG-"),
        lambda line: "x" + line,
        lambda line: line + ", more",
        lambda line: "",
    ],
    ids=["truncated", "a field less", "decimal comma", "reordered", "no uuid", "no index", "a field more", "blank"],
)
def test_a_damaged_line_costs_its_own_device_only(damage: Callable[[str], str]) -> None:
    first, second = RECORDED.splitlines()
    damaged, whole = samples(f"{damage(first)}\n{second}\n")
    assert set(damaged.reasons) == FIELDS and damaged.power_watts is None
    assert whole == samples(RECORDED)[1]


def test_two_lines_for_one_device_are_neither() -> None:
    first, second = RECORDED.splitlines()
    doubled, single = samples("\n".join([first, first.replace("57.00", "99.00"), second]))
    assert doubled.power_watts is None and single.power_watts == 58.5


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("", "nvidia-smi printed no line of a card: found ''"),
        ("No devices were found\n", None),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "found 'Failed to initialize NVML: Driver"),
    ],
)
def test_messages_in_place_of_lines_are_no_devices_and_say_whether_that_is_known(
    output: str, problem: str | None
) -> None:
    listing = smi(output).gpus()
    assert listing.gpus == () and samples(output)[0].power_watts is None
    assert listing.problem is None if problem is None else problem in listing.problem
    assert smi(output).versions()["driver"] == "no answer"


def test_nvidia_smis_own_word_for_no_device_is_an_answer_also_as_its_exit() -> None:
    reason = "nvidia-smi ended with exit code 6: No devices were found"
    assert NVIDIA.Smi(lambda seconds: CommandOutput(None, reason)).gpus() == ((), None, False)
    assert NVIDIA.Smi(lambda seconds: CommandOutput(None, "absent", absent=True)).gpus() == ((), None, False)


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_raise(output: str) -> None:
    for sample in samples(output):
        assert sample.power_watts is None or sample.power_watts >= 0


def test_a_tool_that_fails_or_hangs_is_silence_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(body: str) -> str:
        path = tmp_path / f"nvidia-smi-{len(list(tmp_path.iterdir()))}"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    failed = NVIDIA.ask_smi(script("echo 'NVIDIA-SMI has failed'; exit 9"))
    assert failed.text is None and re.search(r"\b9: NVIDIA-SMI\b", failed.reason)
    assert NVIDIA.ask_smi(script("exec sleep 20"), 0.3).reason.endswith("0.3 s")
    assert NVIDIA.ask_smi(str(tmp_path / "absent")).absent and not failed.absent
    assert NVIDIA.ask_smi(script('echo "$LC_ALL $2"')).text.split() == ["C", "--format=csv,noheader,nounits"]


def test_the_first_answer_has_more_time_and_a_reason_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    answers = [CommandOutput(RECORDED), CommandOutput(RECORDED), CommandOutput(None, "silent")]

    def run(seconds: float) -> CommandOutput:
        limits.append(seconds)
        return answers[len(limits) - 1]

    tool = NVIDIA.Smi(run)
    assert len(tool.gpus().gpus) == 2 and len(tool.samples((0, 1))) == 2
    assert tool.gpus().problem == "silent" and limits == [30.0, 5.0, 5.0]
    slow = NVIDIA.Smi(lambda seconds: CommandOutput(None, f"it did not answer within {seconds:g} s"))
    problems = [slow.gpus().problem, slow.gpus().problem]
    assert problems[0].endswith(f" 30 s; {NVIDIA.SLOW_START}") and problems[1].endswith(" 5 s")
    fails = NVIDIA.Smi(lambda seconds: CommandOutput(None, "ended: 9"))
    assert fails.gpus().problem == "ended: 9"


def test_nvml_has_the_same_time(spec: VendorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def call_with_limit(act: Any, seconds: float) -> Any:
        limits.append(seconds)
        return act()

    monkeypatch.setattr(NVIDIA, "call_with_limit", call_with_limit)
    first = adapter(spec, Replay(A100S))
    assert len(first.devices()) == 2 and len(first.sample(first.devices())) == 2
    assert limits[0] == 30.0 and set(limits[1:]) == {5.0}


class Replay:
    """NVML's functions over recorded values, in NVML's units; `broken` names functions that raise."""

    def __init__(
        self, names: list[str], mig: tuple[int, ...] = (), broken: Mapping[str, Exception] = MappingProxyType({})
    ) -> None:
        self.names, self.mig, self.broken = names, mig, broken

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:

            def fail(*_: object) -> None:
                raise self.broken[name]

            return fail
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: len(self.names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index}1111111",
            "nvmlDeviceGetName": lambda index: self.names[index],
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=40536 * MIB, used=15 * MIB),
            "nvmlDeviceGetMigMode": lambda index: [int(index in self.mig)] * 2,
            "nvmlDeviceGetPowerUsage": lambda index: 57000 + 1500 * index,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: 123_456_789,
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=94, memory=10),
            "nvmlDeviceGetTemperature": lambda _, sensor: 31 if sensor == pynvml.NVML_TEMPERATURE_GPU else 99,
            "nvmlSystemGetDriverVersion": lambda: b"470.129.06",
            "nvmlSystemGetNVMLVersion": lambda: "11.470",
            "nvmlDeviceGetVbiosVersion": lambda _: "92.00.19.00.10",
        }
        return answers[name]


A100S = ["NVIDIA A100-SXM4-40GB"] * 2


class OnHopper(Replay):
    """What NVML answered on an H100 or H200, at one of the moments of recorded/nvml_*.json."""

    def __init__(self, name: str, moment: str) -> None:
        self.static, self.live = HOPPERS[name]["static"], HOPPERS[name]["live"][moment]
        super().__init__([self.static["name"]])

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetPowerUsage": self.live["power"],
            "nvmlDeviceGetTotalEnergyConsumption": self.live["energy"],
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(**self.live["memory"]),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(**self.live["util"]),
            "nvmlDeviceGetTemperature": self.live["temp"],
            "nvmlDeviceGetMigMode": self.static["mig"],
            "nvmlSystemGetDriverVersion": self.static["driver"],
        }
        return (lambda *_: answers[name]) if name in answers else super().__getattr__(name)


@pytest.mark.parametrize(
    ("name", "moment", "watts", "joules", "used", "load", "degrees"),
    [
        ("h100", "idle", 72.92, 2834.219, 503316480, 0.0, 35.0),
        ("h100", "training", 719.691, 79257.699, 79558410240, 1.0, 59.0),
        ("h200", "idle", 80.475, 88521.452, 644939776, 0.0, 43.0),
        ("h200", "training", 705.657, 127776.597, 126781095936, 1.0, 61.0),
    ],
)
def test_the_answers_of_a_hopper(
    name: str, moment: str, watts: float, joules: float, used: int, load: float, degrees: float, spec: VendorFile
) -> None:
    vendor = adapter(spec, OnHopper(name, moment))
    (device,) = vendor.devices()
    expected = {"h100": ("H100-SXM5-80GB", 85520809984), "h200": ("H200-SXM-141GB", 150754820096)}
    assert (device.chip, device.memory_bytes) == expected[name]
    assert memory_fault(device, spec.chip(str(device.chip))) is None
    (sample,) = vendor.sample([device])
    assert (sample.power_watts, sample.energy_joules, sample.memory_used_bytes) == (watts, joules, used)
    assert (sample.utilisation, sample.temperature_celsius, sample.reasons) == (load, degrees, {})
    assert vendor.software()["driver"] == "580.159.04"


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def spec() -> VendorFile:
    return load_spec("nvidia")


def adapter(spec: VendorFile, replay: Replay) -> Any:
    return NVIDIA.Adapter(spec, NVIDIA.Nvml(replay))


def test_nvml_units_become_the_contracts(spec: VendorFile) -> None:
    vendor = adapter(spec, Replay(A100S))
    devices = vendor.devices()
    assert devices[1] == Device(1, "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", 40536 * MIB, "GPU-11111111")
    first, second = vendor.sample(devices)
    assert (first.power_watts, first.energy_joules, first.memory_used_bytes) == (57.0, 123456.789, 15 * MIB)
    assert (first.utilisation, first.temperature_celsius, first.reasons) == (0.94, 31.0, {})
    assert second.power_watts == 58.5


def test_nvml_and_nvidia_smi_agree(spec: VendorFile) -> None:
    by_nvml = adapter(spec, Replay(A100S)).sample([Device(0, None, "", None)])[0]
    by_smi = samples(RECORDED)[0]
    for field in ("power_watts", "memory_used_bytes", "temperature_celsius"):
        assert getattr(by_nvml, field) == getattr(by_smi, field)


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_joules"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
    ],
)
@pytest.mark.parametrize(
    "error", [pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), AttributeError("older"), OSError(5, "io")]
)
def test_each_unreadable_value_alone_is_none(spec: VendorFile, function: str, field: str, error: Exception) -> None:
    sample = adapter(spec, Replay(A100S, broken={function: error})).sample([Device(0, None, "", None)])[0]
    assert getattr(sample, field) is None and type(error).__name__ in sample.reasons[field]
    assert set(sample.reasons) == {field}


def test_a_lost_card_is_a_sample_without_values(spec: VendorFile) -> None:
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    gone = adapter(spec, Replay(A100S, broken={"nvmlDeviceGetHandleByIndex": lost}))
    assert gone.devices() == [] and "0: NVMLError_GpuIsLost" in gone.devices().problem
    assert set(gone.sample([Device(0, None, "", None)])[0].reasons) == FIELDS
    vbios = gone.software()["vbios of device 0"]
    assert "unreadable" in vbios


def test_cards_in_mig_mode_are_left_out_and_named(spec: VendorFile) -> None:
    vendor = adapter(spec, Replay(A100S, mig=(0,)))
    assert [d.index for d in vendor.devices()] == [1]
    left_out = vendor.software()["in MIG mode, left out"]
    assert left_out == "0"
    by_smi = NVIDIA.Adapter(spec, smi(changed("mig.mode.current", "Enabled", line=1)))
    assert [d.index for d in by_smi.devices()] == [0]


def test_one_lost_card_of_two_leaves_the_other_and_is_named(spec: VendorFile) -> None:
    class Lost(Replay):
        def __getattr__(self, name: str) -> Any:
            if name != "nvmlDeviceGetHandleByIndex":
                return super().__getattr__(name)

            def handle(index: int) -> int:
                if index == 1:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
                return index

            return handle

    devices = adapter(spec, Lost(A100S)).devices()
    assert [d.index for d in devices] == [0]
    assert re.search(r"\bNVML\b.*\b1: NVMLError_GpuIsLost\b", devices.problem)


def test_cards_that_are_all_in_mig_mode_are_no_reason_to_take_the_cpu(spec: VendorFile) -> None:
    devices = adapter(spec, Replay(A100S, mig=(0, 1))).devices()
    assert devices == [] and "MIG mode" in devices.problem and "0, 1" in devices.problem
    assert adapter(spec, Replay(A100S, mig=(0,))).devices().problem is None


def test_nvml_that_hangs_is_left_alone_after_its_time_limit(spec: VendorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NVIDIA, "FIRST_TIMEOUT_SECONDS", 0.1)
    free, calls = threading.Event(), []

    class Hung(Replay):
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            free.wait(30)
            return super().__getattr__(name)

    hung = adapter(spec, Hung(A100S))
    assert hung.devices() == [] and hung.devices().problem.endswith(f" 0.1 s; {NVIDIA.SLOW_START}")
    assert set(hung.sample([Device(0, None, "", None)])[0].reasons.values()) == {hung.devices().problem}
    assert "0.1 s" in hung.software()["driver"] and calls == ["nvmlDeviceGetCount"]
    free.set()


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, None),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "NVML cannot be opened: NVMLError_DriverNotLoaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "NVML cannot be opened: NVMLError_LibRmVersionMismatch"),
    ],
)
def test_a_library_that_is_here_and_fails_is_not_an_absent_one(
    spec: VendorFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, problem: str | None
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = NVIDIA.Adapter(spec)
    devices = bare.devices()
    assert devices == [] and (devices.problem is None if problem is None else problem in devices.problem)
    assert problem or bare.software()["driver"] == "not found"
    assert set(bare.sample([Device(0, None, "", None)])[0].reasons) == FIELDS


def test_hidden_cards_are_not_asked_for(spec: VendorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hides all cards wants none of them: a driver that fails is then no reason to stop."""
    broken = Replay(A100S, broken={"nvmlDeviceGetCount": OSError(5, "io")})
    assert re.search(r"\bcount\b.*\bOSError\b", adapter(spec, broken).devices().problem)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert adapter(spec, broken).devices().problem is None


def test_a_chip_that_knows_no_mig_is_whole(spec: VendorFile) -> None:
    error = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    vendor = adapter(spec, Replay(["Tesla V100-SXM2-16GB"], broken={"nvmlDeviceGetMigMode": error}))
    assert [d.chip for d in vendor.devices()] == ["V100-SXM2-16GB"]


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("NVIDIA GH200", None),
        ("", None),
    ],
)
def test_a_chip_is_known_by_its_whole_name(spec: VendorFile, name: str, chip: str | None) -> None:
    assert adapter(spec, Replay([name])).devices()[0].chip == chip


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("", []),
        ("-1", []),
        ("GPU-1", [1]),
        ("GPU-", []),
        ("MIG-1111", []),
    ],
)
def test_what_cuda_would_show(
    spec: VendorFile, monkeypatch: pytest.MonkeyPatch, variable: str | None, indices: list[int]
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    devices = adapter(spec, Replay(A100S)).devices()
    assert [d.index for d in devices] == indices
    if variable in ("GPU-", "MIG-1111"):
        assert f"CUDA_VISIBLE_DEVICES={variable} " in str(devices.problem)
        assert ("not supported" in str(devices.problem)) is variable.startswith("MIG-")
    else:
        assert devices.problem is None


def test_containers_get_devices_by_uuid(spec: VendorFile) -> None:
    options = adapter(spec, Replay(A100S)).container([Device(1, None, "", None, "GPU-1"), Device(3, None, "", None)])
    assert options.device_request == ("GPU-1", "3") and options.device_nodes == ()


def test_nvidia_smi_takes_over_where_nvml_cannot_be_loaded(
    spec: VendorFile, monkeypatch: pytest.MonkeyPatch, tools: Path
) -> None:
    tool(tools, "nvidia-smi", f"echo '{RECORDED.splitlines()[0]}'")
    monkeypatch.setattr(NVIDIA, "open_nvml", lambda: None)
    vendor = NVIDIA.Adapter(spec)
    assert [d.chip for d in vendor.devices()] == ["A100-SXM4-40GB"]
    assert vendor.software()["read through"] == "nvidia-smi"


def test_every_peak_has_its_source_and_the_published_ones_are_these(spec: VendorFile) -> None:
    bf16 = {c.name: c.peaks["bf16"].tflops for c in spec.chips if "bf16" in c.peaks}
    assert bf16 == {
        "A100-SXM4-40GB": 312,
        "A100-SXM4-80GB": 312,
        "A800-SXM4-80GB": 312,
        "H100-SXM5-80GB": 989.4,
        "H200-SXM-141GB": 989.4,
        "H800-SXM5-80GB": 989.4,
        "H20-96GB": 148,
        "B200-SXM-180GB": 2250,
        "GB200-186GB": 2500,
        "B300-SXM-288GB": 2250,
        "GB300-288GB": 2500,
        "H100-NVL-94GB": 835.5,
        "GH200-96GB": 989.4,
        "L40S-48GB": 362.05,
        "RTX-PRO-6000-96GB": 500,
    }
    v100, h100 = spec.chip("V100"), spec.chip("H100")
    assert v100 and v100.peaks["fp16"].tflops == 125 and "bf16" not in v100.peaks
    assert h100 and h100.peaks["fp8"].tflops == 1978.9
    elsewhere = {c.name for c in spec.chips if c.name.startswith(("H800", "H20-", "B", "GB"))}  # their pages are named
    sheets = [p.source for c in spec.chips if c.name not in elsewhere for p in c.peaks.values()]
    pages = [p.source for c in spec.chips if c.name in elsewhere for p in c.peaks.values()]
    assert all("datasheet" in source for source in sheets)
    assert all("." in source or "H100" in source or "datasheet" in source for source in pages)
    assert {c.name: c.peaks["nvfp4"].tflops for c in spec.chips if "nvfp4" in c.peaks} == {
        "B200-SXM-180GB": 9000, "GB200-186GB": 10000, "B300-SXM-288GB": 13125, "GB300-288GB": 15000,
    }  # fmt: skip
    assert all(c.power_source for c in spec.chips if c.power_watts) and all(c.node.source for c in spec.chips if c.node)
    assert all(c.memory_source and c.bandwidth_source for c in spec.chips)
    assert "one H100-SXM5-80GB" in spec.verified


def test_flagperfs_names_are_aliases(spec: VendorFile) -> None:
    names = {
        "A10080G": "A100-SXM4-80GB",
        "a10040g": "A100-SXM4-40GB",
        "A100": "A100-SXM4-80GB",
        "V100": "V100-SXM2-16GB",
    }
    assert {n: c.name for n in names if (c := spec.chip(n))} == names
