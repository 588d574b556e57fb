"""The cpu adapter on this machine, and on planted /proc and /sys trees."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from adapters import load_adapter, load_spec
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.vendor import ContainerOptions

CPU: ModuleType = load_adapter("cpu")
GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def adapter(root: Path = Path("/")) -> Any:
    return CPU.Adapter(load_spec("cpu"), root)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 GiB, 10 of them in use."""
    memory = SimpleNamespace(total=64 * GIB, available=54 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_this_machine() -> None:
    here = adapter()
    (device,) = here.devices()
    assert (device.index, device.chip) == (0, "cpu")
    assert device.description and device.memory_bytes and GIB / 4 < device.memory_bytes <= psutil.virtual_memory().total
    (sample,) = here.sample([device])
    assert sample.memory_used_bytes and 0 < sample.memory_used_bytes < device.memory_bytes
    assert sample.power_watts is None and {"power_watts", "utilisation"} <= set(sample.reasons)
    assert all(getattr(sample, field) is None for field in sample.reasons)
    assert here.software()["kernel"] == f"{platform.system()} {platform.release()}"
    assert here.container([device]) == ContainerOptions()


def test_nobodys_peak_is_written_down() -> None:
    spec = load_spec("cpu")
    assert spec.is_host and [c.peaks for c in spec.chips] == [{}] and spec.chips[0].device_is == "host share"


def test_the_processors_name(tmp_path: Path) -> None:
    name = "AMD EPYC 7742 64-Core Processor"
    text = f"processor\t: 0\nmodel name\t: {name}\nflags\t: fpu\n"
    assert CPU.model_name(write(tmp_path, {"proc/cpuinfo": text})) == name
    arm = write(tmp_path / "arm", {"proc/cpuinfo": "processor : 0\nCPU part : 0xd0c"})
    assert CPU.model_name(arm) == (platform.processor() or platform.machine() or "unknown processor")


V2 = {"proc/self/cgroup": "0::/user/job"}
V1 = {"proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/"}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("files", "limit", "used"),
    [
        ({}, 64 * GIB, 10 * GIB),
        ({**V2, "sys/fs/cgroup/user/job/memory.max": "max"}, 64 * GIB, 10 * GIB),
        (
            {
                **V2,
                "sys/fs/cgroup/user/job/memory.max": "max",
                "sys/fs/cgroup/user/memory.max": str(8 * GIB),
                "sys/fs/cgroup/user/memory.current": str(3 * GIB),
                "sys/fs/cgroup/user/memory.stat": f"anon 5\ninactive_file {GIB}",
            },
            8 * GIB,
            2 * GIB,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(16 * GIB),
                "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(5 * GIB),
                "sys/fs/cgroup/memory/docker/abc/memory.stat": f"total_inactive_file {2 * GIB}\nrss 1",
            },
            16 * GIB,
            3 * GIB,
        ),
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 64 * GIB, 10 * GIB),
        # Within a container the path is the host's and not there; the mounted root is the container's own group.
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB)}, 4 * GIB, None),
        ({**V2, "sys/fs/cgroup/user/job/memory.max": "-1"}, 64 * GIB, 10 * GIB),
        ({**V2, "sys/fs/cgroup/user/job/memory.max": "8 GiB"}, 64 * GIB, 10 * GIB),
    ],
    ids=["none", "v2 max", "v2 parent", "v1", "v1 unlimited", "v1 in container", "negative", "with a unit"],
)
def test_the_smallest_limit_counts_with_its_own_use(
    tmp_path: Path, files: dict[str, str], limit: int, used: int | None
) -> None:
    here = adapter(write(tmp_path, files))
    assert here.devices()[0].memory_bytes == limit
    sample = here.sample(here.devices())[0]
    assert sample.memory_used_bytes == used and ("memory_used_bytes" in sample.reasons) == (used is None)


@pytest.mark.parametrize(
    ("files", "paid"),
    [
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "50000 100000"}, 0.5),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "max 100000"}, None),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "25000",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            },
            0.25,
        ),
        ({**V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({**V2, "sys/fs/cgroup/user/job/cpu.max": "50000 0"}, None),
    ],
)
def test_cores_by_affinity_and_quota(tmp_path: Path, files: dict[str, str], paid: float | None) -> None:
    affinity, quota = CPU.usable_cores(write(tmp_path, files))
    assert affinity == len(os.sched_getaffinity(0)) and quota == (affinity if paid is None else paid)
    assert "usable" in adapter(tmp_path).software()["cores"]


PACKAGE = "sys/class/powercap/intel-rapl:{}"


def rapl(root: Path, microjoules: dict[int, int], span: int = 1000) -> Path:
    for zone, value in microjoules.items():
        folder = PACKAGE.format(zone)
        files = {"name": f"package-{zone}", "energy_uj": str(value), "max_energy_range_uj": str(span)}
        write(root, {f"{folder}/{name}": text for name, text in files.items()})
    return root


def test_energy_counts_from_the_first_reading_over_all_packages(tmp_path: Path) -> None:
    counter = CPU.EnergyCounter(rapl(tmp_path, {0: 500, 1: 100}))
    assert counter.read() == (0.0, "")
    rapl(tmp_path, {0: 800, 1: 150})
    assert counter.read()[0] == pytest.approx(350e-6)


def test_a_wrapped_counter_goes_on(tmp_path: Path) -> None:
    counter = CPU.EnergyCounter(rapl(tmp_path, {0: 900}))
    values = []
    for value in (900, 1000, 0, 300, 50):
        rapl(tmp_path, {0: value})
        values.append(counter.read()[0])
    assert values == pytest.approx([0, 100e-6, 101e-6, 401e-6, 1152e-6])


@given(st.integers(1, 10**6), st.lists(st.integers(0, 10**6), max_size=20))
def test_wraps_never_lose_energy(span: int, steps: list[int]) -> None:
    now, total = 0, 0
    for step in steps:
        step %= span + 1
        before, now = now, (now + step) % (span + 1)
        total += CPU.risen(before, now, span)
    assert total == sum(step % (span + 1) for step in steps)


def test_parts_of_a_package_and_other_zones_are_not_added(tmp_path: Path) -> None:
    root = rapl(tmp_path, {0: 0})
    write(root, {f"{PACKAGE.format('0:0')}/{n}": t for n, t in (("name", "core"), ("max_energy_range_uj", "9"))})
    write(root, {f"{PACKAGE.format('1')}/{n}": t for n, t in (("name", "psys"), ("max_energy_range_uj", "9"))})
    assert [z.counter.parent.name for z in CPU.rapl_zones(root)] == ["intel-rapl:0"]


@pytest.mark.parametrize("content", ["", "12 uJ", "-5", "nan", "1e3"])
def test_a_counter_that_holds_no_number_is_none_with_the_reason(tmp_path: Path, content: str) -> None:
    rapl(tmp_path, {0: 5})
    write(tmp_path, {f"{PACKAGE.format(0)}/energy_uj": content})
    value, reason = CPU.EnergyCounter(tmp_path).read()
    assert value is None and "energy_uj" in reason
    sample = adapter(tmp_path).sample(adapter(tmp_path).devices())[0]
    assert sample.energy_joules is None and "energy_uj" in sample.reasons["energy_joules"]


def times(idle: float, user: float) -> Any:
    fields = {"user": user, "idle": idle, "iowait": 0.0, "guest": 0.0}

    class Times(tuple[float, ...]):
        def __getattr__(self, name: str) -> float:
            return fields[name]

    return Times(fields.values())


def test_utilisation_is_between_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([times(100, 100), times(101, 103), times(101, 103), times(90, 103)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(readings))
    here = adapter()
    utilisations = [here.sample(here.devices())[0].utilisation for _ in range(4)]
    assert utilisations == [None, 0.75, None, None]


@pytest.mark.parametrize(
    ("sensors", "expected"),
    [
        ({"coretemp": [61.0, 64.0], "nvme": [80.0]}, 64.0),
        ({"k10temp": [None, 55.5]}, 55.5),
        ({"k10temp": [55500.0]}, None),
        ({"nvme": [40.0]}, None),
        ({}, None),
    ],
)
def test_temperature_is_the_processors_hottest(
    monkeypatch: pytest.MonkeyPatch, sensors: dict[str, list[float | None]], expected: float | None
) -> None:
    entries = {name: [SimpleNamespace(current=v) for v in values] for name, values in sensors.items()}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: entries, raising=False)
    assert CPU.temperature() == expected


def test_temperature_where_psutil_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert CPU.temperature() is None
