"""What nodes recorded of a vendor's tools, read on the platform's machine by the same adapter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from adapters import load_adapter, load_spec
from levelfield.catalog.registry import Registry
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import NOT_REPLAYABLE, Device, replayable_commands, replaying_ask
from levelfield.rundir.node_readings import write_node_readings
from levelfield.rundir.telemetry_files import NodeTelemetry, read_telemetry
from levelfield.specs.paths import RunPaths

NVIDIA: ModuleType = load_adapter("nvidia")
CPU: ModuleType = load_adapter("cpu")
SMI = (Path(__file__).with_name("recorded") / "nvidia_smi_a100_40g.csv").read_text()
SECOND = 1_000_000_000
SMI_ARGV = list(NVIDIA.smi_argv("nvidia-smi"))


def plan(is_host: bool = False, devices: int = 2, nodes: int = 1) -> Any:
    hardware = SimpleNamespace(
        nodes=nodes,
        is_host=is_host,
        devices_per_node=devices,
        device_indices=() if is_host else tuple(range(devices)),
        chip=SimpleNamespace(name="cpu" if is_host else "A100-SXM4-40GB"),
        description="a device",
        memory_bytes_per_device=None,
    )
    return SimpleNamespace(hardware=hardware)


def recorded(root: Path, lines: list[Any], node: int = 0) -> RunPaths:
    paths = RunPaths(root)
    paths.telemetry_folder.mkdir(exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    paths.node_raw_telemetry(node).write_text("".join(text + "\n" for text in texts))
    return paths


def line(second: int, *outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"time_ns": second * SECOND, "wall_ns": 9 * SECOND + second, "outputs": list(outputs), **more}


def read(paths: RunPaths, vendor: Any, of: Any) -> NodeTelemetry:
    write_node_readings(paths, of, vendor)
    broken: list[str] = []
    (node,) = read_telemetry(paths, broken)
    assert broken == []
    return node


def nvidia() -> Any:
    return NVIDIA.Adapter(load_spec("nvidia"))


def smi(text: str = SMI) -> dict[str, Any]:
    return {"argv": SMI_ARGV, "text": text}


def test_nvidia_smi_of_a_node_is_read_as_here(tmp_path: Path) -> None:
    host = {"time_ns": SECOND, "busy_seconds": 1.0, "own_seconds": 0.5, "cores": 4}
    paths = recorded(tmp_path, [line(0, before=True), line(1, smi(), host=host), line(2, smi())])
    node = read(paths, nvidia(), plan())
    assert [r.power_watts for r in node.readings] == [57.0, 58.5, 57.0, 58.5]
    assert [r.time_ns for r in node.readings] == [SECOND, SECOND, 2 * SECOND, 2 * SECOND]
    assert node.readings[0].memory_used_bytes == 15 * 2**20 and node.reasons["energy_joules"]
    assert node.host[0].cores == 4 and node.wall_clock[0] == (0, 9 * SECOND)


def test_the_commands_of_nvidia_are_those_that_its_adapter_reads() -> None:
    commands = replayable_commands(nvidia())
    assert [list(command.argv) for command in commands.sampling_commands] == [SMI_ARGV]
    assert commands.sampling_commands[0].timeout_seconds == 5.0 and "nvidia-smi" in commands.fact_commands


NVIDIA_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a tool that is not there": (
        {"argv": SMI_ARGV, "reason": "nvidia-smi cannot be started", "absent": True},
        "started",
    ),
    "another command": ({"argv": ["rocm-smi"], "text": SMI}, "nvidia-smi was not recorded on the node"),
    "an output cut in its first line": (smi(SMI[:40]), "no longer shows this device"),
    "an output that is a number": ({"argv": SMI_ARGV, "text": 5}, "no output was recorded"),
    "another unit": (smi(SMI.replace("57.00", "57000.00")), "expected"),
}


@pytest.mark.parametrize("name", NVIDIA_FAULTS)
def test_what_cannot_be_read_is_no_value(tmp_path: Path, name: str) -> None:
    output, reason = NVIDIA_FAULTS[name]
    first = read(recorded(tmp_path, [line(1, output)]), nvidia(), plan()).readings[0]
    assert first.power_watts is None and reason in first.reasons["power_watts"]


def test_damaged_lines_are_reported_and_a_cut_end_is_dropped(tmp_path: Path) -> None:
    paths = recorded(tmp_path, [line(1, smi()), "not an object", line(2, smi())])
    with paths.node_raw_telemetry(0).open("a") as file:
        file.write(json.dumps(line(3, smi()))[:50])
    write_node_readings(paths, plan(), nvidia())
    broken: list[str] = []
    (node,) = read_telemetry(paths, broken)
    assert len(node.readings) == 4
    (fault,) = broken
    assert re.search(r"\btelemetry/node0\.jsonl\b.*\b2:.*b'not\san\sobject'$", fault)


def test_a_node_without_a_recording_gets_no_file(tmp_path: Path) -> None:
    paths = recorded(tmp_path, [line(1, smi())], node=1)
    write_node_readings(paths, plan(nodes=3), nvidia())
    assert sorted(path.name for path in paths.telemetry_folder.iterdir()) == ["node1.jsonl", "node1.raw.jsonl"]


def test_an_adapter_that_cannot_is_named(tmp_path: Path) -> None:
    class Subclass(DeclaredVendor):
        """A subclass whose code may read this machine."""

    vendors: tuple[Any, ...] = (Subclass(load_spec("nvidia")), SimpleNamespace(spec=load_spec("nvidia")))
    nothing: Any = SimpleNamespace()
    for vendor in vendors:
        assert replayable_commands(vendor) == replayable_commands(nothing)
        node = read(recorded(tmp_path, [line(1, smi())]), vendor, plan())
        assert node.readings == () and node.reasons == {"tool": NOT_REPLAYABLE}


@pytest.mark.parametrize(("hip_ids", "power"), [((1, 0), 151.0), ((0, 1), 146.0), ((1, 1), 146.0), (None, 146.0)])
def test_a_nodes_device_is_read_by_the_tools_number_of_it(
    tmp_path: Path, hip_ids: tuple[int, int] | None, power: float
) -> None:
    """The plan's device 0 of another node is HIP's 0, which may be the tool's 1: its second recorded record."""
    vendor = Registry(()).vendor("amd")
    (command,) = replayable_commands(vendor).sampling_commands
    monitor = (Path(__file__).resolve().parents[2] / "vendors/amd/recorded/monitor.json").read_text()
    paths = recorded(tmp_path, [line(1, {"argv": list(command.argv), "text": monitor})])
    listing = json.dumps([{"gpu": index, "hip_id": number} for index, number in enumerate(hip_ids or ())])
    facts = {
        "tools": {
            "numbering": {"argv": list(replayable_commands(vendor).fact_commands["numbering"].argv), "text": listing}
        }
    }
    paths.node_facts(0).parent.mkdir(exist_ok=True)
    paths.node_facts(0).write_text(json.dumps(facts if hip_ids else {}))
    (reading,) = read(paths, vendor, plan(devices=1)).readings
    assert (reading.device, reading.power_watts) == ("0", power)


@pytest.mark.parametrize("name", ["amd", "ascend", "cambricon", "hygon", "iluvatar", "intel", "kunlunxin", "metax"])
def test_a_declared_vendors_recording_is_read_as_on_its_machine(tmp_path: Path, name: str) -> None:
    """The shipped recording of the monitor, through a node's file, against the same adapter over the recording."""
    vendor = Registry(()).vendor(name)
    (command,) = replayable_commands(vendor).sampling_commands
    files = sorted((Path(__file__).resolve().parents[2] / "vendors" / name / "recorded").glob("monitor*"))
    if not files:
        pytest.fail(f"{name} has no recording of its monitor")
    text = files[0].read_text()
    here = DeclaredVendor(vendor.spec, lambda argv, seconds: CommandOutput(text))
    devices = [Device(index, None, "", None) for index in range(2)]
    paths = recorded(tmp_path, [line(1, {"argv": list(command.argv), "text": text})])
    node = read(paths, vendor, plan())
    assert any(r.power_watts is not None or r.memory_used_bytes is not None for r in node.readings)
    for reading, sample in zip(node.readings, here.sample(devices), strict=True):
        assert (reading.device, reading.temperature_celsius) == (str(sample.index), sample.temperature_celsius)
        assert reading.utilisation == sample.utilisation


def test_the_facts_of_a_declared_vendor_have_its_software() -> None:
    vendor = Registry(()).vendor("amd")
    assert set(vendor.spec.software) <= set(replayable_commands(vendor).fact_commands)


# -- the host's processors


def kernel(idle: int = 1000, busy: int = 0, total: int = 1000, available: int = 400) -> dict[str, Any]:
    stat = f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5 6\n"
    text = f"{stat}MemTotal:       {total} kB\nMemFree: 10 kB\nMemAvailable:    {available} kB\n"
    return {"argv": ["cat", "/proc/stat", "/proc/meminfo"], "text": text}


def package(number: int, microjoules: int, span: int = 1000, name: str = "") -> dict[str, Any]:
    text = f"{name or f'package-{number}'}\n{span}\n{microjoules}\n"
    return {"argv": list(CPU._PACKAGES[number]), "text": text}


def no_package(number: int, reason: str = "No such file or directory") -> dict[str, Any]:
    return {"argv": list(CPU._PACKAGES[number]), "reason": f"cat ended with exit code 1: cat: x/name: {reason}"}


def cpu() -> Any:
    return CPU.Adapter(load_spec("cpu"))


def absent(first: int) -> list[dict[str, Any]]:
    return [no_package(number) for number in range(first, 4)]


def test_a_hosts_own_files_are_read(tmp_path: Path) -> None:
    lines = [
        line(1, kernel(), package(0, 900), package(1, 10), *absent(2)),
        line(2, kernel(idle=1025, busy=75), package(0, 50), package(1, 20), *absent(2)),
    ]
    first, second = read(recorded(tmp_path, lines), cpu(), plan(is_host=True)).readings
    assert (first.memory_used_bytes, first.energy_joules, first.utilisation) == (600 * 1024, 0.0, None)
    assert second.utilisation == 0.75
    assert second.energy_joules == pytest.approx(((1000 - 900 + 50 + 1) + 10) / 1e6), "package 0 wrapped"


def test_the_real_files_of_this_machine_are_read(tmp_path: Path) -> None:
    commands = replayable_commands(cpu()).sampling_commands
    ask = DeclaredVendor(load_spec("cpu"))._ask

    def outputs() -> list[dict[str, Any]]:
        answers = [(command, ask(command.argv, command.timeout_seconds)) for command in commands]
        return [{"argv": list(c.argv), **({"text": a.text} if a.text else {"reason": a.reason})} for c, a in answers]

    first, second = read(recorded(tmp_path, [line(1, *outputs()), line(2, *outputs())]), cpu(), plan(True)).readings
    assert first.memory_used_bytes is not None and first.memory_used_bytes > 2**26
    assert second.utilisation is None or 0 <= second.utilisation <= 1
    assert (second.energy_joules is None) == ("energy_joules" in second.reasons)


CPU_FAULTS = {
    "a package that this user may not read": (no_package(0, "Permission denied"), "energy_joules", "Permission denied"),
    "a package that is a part of another": (package(0, 5, name="core"), "energy_joules", "cannot be read on the node"),
    "a counter that is a word": ({**package(0, 5), "text": "package-0\nmax\n5\n"}, "energy_joules", "cannot be read"),
}


@pytest.mark.parametrize("name", CPU_FAULTS)
def test_a_damaged_package_gives_no_energy(tmp_path: Path, name: str) -> None:
    output, field, reason = CPU_FAULTS[name]
    (reading,) = read(recorded(tmp_path, [line(1, kernel(), output, *absent(1))]), cpu(), plan(True)).readings
    assert getattr(reading, field) is None and reason in reading.reasons[field]


def test_memory_that_is_not_printed_is_unknown(tmp_path: Path) -> None:
    for text in (
        "",
        "MemTotal: 5 kB\n",
        "MemTotal: 5 kB\nMemAvailable: 9 kB\n",
        "MemTotal: x kB\nMemAvailable: 1 kB\n",
    ):
        output = {**kernel(), "text": text}
        (reading,) = read(recorded(tmp_path, [line(1, output, *absent(0))]), cpu(), plan(True)).readings
        assert reading.memory_used_bytes is None and "memory_used_bytes" in reading.reasons
        assert reading.energy_joules is None


def test_answers_are_found_by_their_whole_command() -> None:
    ask = replaying_ask([{"argv": ["a", "b"], "text": "x"}, "nothing", {"argv": 5}])
    assert ask(["a", "b"], 1.0) == CommandOutput("x") and ask(["a"], 1.0).text is None
    assert cpu().replayed(ask) is not None
