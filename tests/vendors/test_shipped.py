"""The vendors of this repository: their folders, which devices they find, and what containers are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from adapters import VENDORS, load_spec, tool
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.lookup import detect_vendor
from levelfield.catalog.registry import Registry
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import Device
from levelfield.errors import UsageError
from shipped import ALL, DECLARED, WHOLE


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DECLARED:
        monkeypatch.delenv(load_spec(name).visible_devices_variable or "NONE", raising=False)


# -- the folders


def test_there_are_eleven_and_two_need_code() -> None:
    assert tuple(sorted(p.parent.name for p in VENDORS.glob("*/vendor.yaml"))) == ALL
    assert sorted(p.parent.name for p in VENDORS.glob("*/adapter.py")) == ["cpu", "nvidia"]
    assert all((VENDORS / name / "README.md").is_file() for name in ALL)


def test_each_vendor_of_devices_has_its_own_number_on_the_pci_bus() -> None:
    """As pci.ids lists the makers; the host's own cores are on no bus."""
    numbers = {name: load_spec(name).pci_vendor for name in ALL}
    assert numbers.pop("cpu") is None
    assert numbers == {
        "amd": "0x1002",
        "ascend": "0x19e5",
        "cambricon": "0xcabc",
        "hygon": "0x1d94",
        "iluvatar": "0x1e3e",
        "intel": "0x1da3",
        "kunlunxin": "0x1d22",
        "metax": "0x9999",
        "mthreads": "0x1ed5",
        "nvidia": "0x10de",
    }


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        *(
            ("mi300x", "amd"),
            ("910C", "ascend"),
            ("MLU370-X8", "cambricon"),
            ("K100-AI", "hygon"),
            ("BI100", "iluvatar"),
        ),
        *(("HL-325L", "intel"), ("P800", "kunlunxin"), ("mxc500", "metax"), ("S4000", "mthreads"), ("A100", "nvidia")),
    ],
)
def test_a_chip_is_found_among_all_vendors(name: str, vendor: str) -> None:
    assert find_chip(Registry(), name)[0].name == vendor


@pytest.mark.parametrize("vendor", DECLARED)
def test_the_page_of_a_vendor_that_ran_nowhere_states_it(vendor: str) -> None:
    assert load_spec(vendor).verified == "none"
    assert re.search(r"\bNothing\b.*\brun on\b", (VENDORS / vendor / "README.md").read_text())
    assert "No " in (origins := (VENDORS / vendor / "recorded/README.md").read_text()) or "not recorded" in origins


def test_peaks_that_public_figures_disagree_on_are_unknown() -> None:
    with_peaks = {chip.name for v in DECLARED for chip in load_spec(v).chips if chip.peaks}
    assert with_peaks == {
        *("MI355X", "MI350X", "MI325X", "MI300X", "MI250X", "MI250", "MI210"),
        *("BI-V100", "Gaudi2", "Gaudi3"),
    }


@pytest.mark.parametrize(
    ("vendor", "dies"),
    [
        ("amd", {"MI250X", "MI250"}),
        ("ascend", {"Ascend-910C"}),
        ("cambricon", {"MLU370-X8"}),
        ("iluvatar", {"BI-V150"}),
    ],
)
def test_the_page_of_a_vendor_of_dies_explains_them(vendor: str, dies: set[str]) -> None:
    assert {chip.name for chip in load_spec(vendor).chips if chip.device_is == "die"} == dies
    assert "**Device** is" in (VENDORS / vendor / "README.md").read_text()


@pytest.mark.parametrize(
    ("vendor", "name", "chip"),
    [
        ("amd", "AMD Instinct MI300X", "MI300X"),
        ("amd", "AMD Instinct MI300X VF", "MI300X"),
        ("amd", "AMD Instinct MI300A", "MI300A"),
        ("amd", "AMD Instinct MI250X", "MI250X"),
        ("amd", "AMD Instinct MI250X / MI250", "MI250"),
        ("amd", "AMD Instinct MI308X", "MI308X"),
        ("amd", "AMD Instinct MI350X", "MI350X"),
        ("amd", "AMD Instinct MI300X HF", None),
        ("ascend", "910B2C", "Ascend-910B2C"),
        ("cambricon", "MLU590-M9DG", "MLU590"),
        ("iluvatar", "Iluvatar BI-V150S", "BI-V150S"),
        ("ascend", "910B4-1", "Ascend-910B4-1"),
        ("ascend", "910B4", "Ascend-910B4"),
        ("ascend", "910ProB", None),
        ("cambricon", "MLU370-S4", None),
        ("intel", "HL-225C", None),
        ("metax", "MetaX C500X", None),
        ("mthreads", "MTT S80", None),
    ],
)
def test_a_chip_is_known_by_the_end_of_its_name(vendor: str, name: str, chip: str | None) -> None:
    spec = load_spec(vendor)
    chips = [c.name for c in spec.chips if any(name.lower().endswith(end.lower()) for end in c.match)]
    assert chips[:1] == ([chip] if chip else [])


# -- which devices, and what containers are shown


NODES = {
    "amd": ("/dev/kfd", "/dev/dri"),
    "ascend": ("/dev/davinci0", "/dev/davinci2", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    "cambricon": ("/dev/cambricon_dev0", "/dev/cambricon_dev2", "/dev/cambricon_ctl"),
    "hygon": ("/dev/kfd", "/dev/dri"),
    "iluvatar": ("/dev/iluvatar0", "/dev/iluvatar2"),
    "intel": (),
    "kunlunxin": ("/dev/xpu0", "/dev/xpu2", "/dev/xpuctrl"),
    "metax": ("/dev/dri", "/dev/mxcd"),
    "mthreads": (),
}


@pytest.mark.parametrize("vendor", DECLARED)
def test_containers_are_shown_devices_0_and_2(vendor: str) -> None:
    spec = load_spec(vendor)
    options = DeclaredVendor(spec).container([Device(0, None, "", None), Device(2, None, "", None)])
    assert options.device_nodes == NODES[vendor]
    only_these = any("2" in text for text in (*options.device_nodes, *options.environment.values()))
    assert only_these == (vendor not in ("amd", "hygon", "metax"))
    assert only_these or not spec.container.renumbered, "what shows all must pass on the variable that chooses"


def test_the_containers_of_makers_runtimes() -> None:
    two = [Device(0, None, "", None), Device(2, None, "", None)]
    mthreads = DeclaredVendor(load_spec("mthreads")).container(two)
    assert (mthreads.engine_runtime, mthreads.environment) == ("mthreads", {"MTHREADS_VISIBLE_DEVICES": "0,2"})
    intel = DeclaredVendor(load_spec("intel")).container(two)
    assert (intel.engine_runtime, intel.environment) == ("habana", {"HABANA_VISIBLE_MODULES": "0,2"})


# -- detection among all of them


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, but for what a shell needs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "bin"


def test_where_no_tool_is_there_the_cpu_is_what_is_found(tools: Path) -> None:
    assert detect_vendor(Registry()).spec.name == "cpu"


@pytest.mark.parametrize("recording", WHOLE)
def test_each_vendors_tool_is_that_vendors_alone(recording: str, tools: Path) -> None:
    vendor = recording.split("/")[0]
    spec = load_spec(vendor)
    assert spec.monitor
    lines = [f"cat {VENDORS / recording.replace('/', '/recorded/')}"]
    if spec.discovery and spec.discovery.tool:
        words = " ".join(spec.discovery.tool.command[1:])
        lines.insert(0, f'[ "$*" = "{words}" ] && exec cat {VENDORS / vendor / "recorded/discovery.json"}')
    tool(tools, spec.monitor.command[0], "\n".join(lines))
    registry = Registry()
    assert [v for v in registry.vendors if v != "cpu" and registry.vendor(v).devices()] == [vendor]
    assert detect_vendor(registry).spec.name == vendor


def test_no_two_vendors_ask_one_tool() -> None:
    commands = [s.monitor.command[0] for v in DECLARED if (s := load_spec(v)).monitor]
    assert len({*commands}) == len(commands) and not {"rocm-smi", "nvidia-smi"} & {*commands}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("xpu-smi", '[ "$1" = -m ] && { echo "The following argument was not expected: -m" >&2; exit 109; }; echo ok'),
        ("mx-smi", 'echo "│Card1  S30  700MHz  930mV   53C  110W 99%  0:2d:00.0 111MiB/61440MiB 2023243080104│"'),
        ("amd-smi", "exit 255"),
        ("ixsmi", "echo error while loading shared libraries >&2; exit 127"),
        ("npu-smi", "echo 'dcmi module initialize failed. ret is -8005'"),
        ("cnmon", "printf '\\377'"),
    ],
)
def test_another_makers_tool_of_that_name_or_a_broken_one_is_no_device_and_no_reason_for_the_cpu(
    name: str, body: str, tools: Path
) -> None:
    tool(tools, name, body)
    registry = Registry()
    with pytest.raises(UsageError, match=rf"\b{name} (ended|printed)\b.*\bcpu\b"):
        detect_vendor(registry)
    assert not any(registry.machine.devices(vendor) for vendor in registry.vendors if vendor != "cpu")


def test_a_tool_that_no_vendor_runs_changes_nothing(tools: Path) -> None:
    tool(tools, "rocm-smi", """echo '{"card0": {"Average Graphics Package Power (W)": "57.0"}}'""")
    assert detect_vendor(Registry()).spec.name == "cpu"
