"""Which device a run takes where a tool counts otherwise than the runtime, and where it shows parts of a card.

The outputs are public ones (recorded/README.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from adapters import load_spec, tool
from declared_specs import SHAPES, recorded, spec_of
from levelfield.catalog.machine import devices_of
from levelfield.cli.main import main
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.vendor import DeviceList

RECORDED = Path(__file__).with_name("recorded")
SLOT_NUMBERS = "0, 1, 3, 4"
GAP = rf"\b{SLOT_NUMBERS},.*\b{', '.join(map(str, range(4)))}:"  # which numbers there are, and which were expected
SLOTS = (RECORDED / "npu_smi_slots_0134.txt").read_text()
VARIABLES = (
    *("ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("HABANA_VISIBLE_MODULES", "ACME_VISIBLE_DEVICES"),
)


@pytest.fixture(autouse=True)
def none_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def ascend(text: str = SLOTS) -> DeviceList:
    return devices_of(DeclaredVendor(load_spec("ascend"), lambda argv, seconds: CommandOutput(text)))


def amd(static: str, metric: str, listing: str | None) -> DeviceList:
    texts = {"static": static, "metric": metric, "list": listing}

    def replay(argv: Sequence[str], seconds: float) -> CommandOutput:
        text = texts[argv[1]]
        return CommandOutput(text, "" if text else "amd-smi ended with exit code 2: unknown option -e")

    return devices_of(DeclaredVendor(load_spec("amd"), replay))


def whole_cards(count: int) -> tuple[str, str]:
    asic = {"market_name": "AMD Instinct MI300X", "num_compute_units": 304}
    vram = {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}}
    static = {"gpu_data": [{"gpu": index, "asic": asic} for index in range(count)]}
    metric = {"gpu_data": [{"gpu": index, "mem_usage": vram} for index in range(count)]}
    return json.dumps(static), json.dumps(metric)


def hip_ids(numbers: Mapping[int, object]) -> str:
    return json.dumps([{"gpu": index, "hip_id": number} for index, number in numbers.items()])


# -- a gap in the tool's numbers


def test_slots_with_a_gap_are_devices_whose_numbers_are_unknown() -> None:
    devices = ascend()
    assert [device.index for device in devices] == [0, 1, 3, 4]
    assert all(re.search(GAP, device.unnumbered_reason or "") for device in devices)
    assert devices.problem == devices[0].unnumbered_reason
    without_a_gap = SLOTS.replace("| 4     910B2", "| 2     910B2")
    assert not any(device.unnumbered_reason for device in ascend(without_a_gap))


@pytest.mark.parametrize(
    ("variable", "pairs"),
    [
        ("0,1,2,3", [(0, "0"), (1, "1"), (3, "2"), (4, "3")]),
        ("3,2", [(4, "3"), (3, "2")]),
        ("0,1,3,4", None),
        ("0,0", None),
        ("4", None),
        ("0000:66:00.0", None),
    ],
)
def test_behind_a_gap_the_user_names_the_runtimes_numbers(
    variable: str, pairs: list[tuple[int, str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", variable)
    devices = ascend()
    assert [(device.index, device.visible) for device in devices] == (pairs or [])
    assert f"found ASCEND_RT_VISIBLE_DEVICES={variable}" in str(devices.problem)
    assert ("cannot be" in str(devices.problem)) is (pairs is None)
    assert not any(device.unnumbered_reason for device in devices)


def test_a_gap_is_refused_by_name_and_a_named_number_is_what_a_rank_gets(
    tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tools, "npu-smi", f"exec cat {RECORDED / 'npu_smi_slots_0134.txt'}")
    for count in ("", ":1:1"):
        assert main(["--case", "gpt2_small:torch:ascend" + count, "--dry-run", "--scale", "smoke"]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(GAP, error)
        assert "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3" in error and "--runtime docker" in error
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2")
    assert main(["--case", "gpt2_small:torch:ascend", "--dry-run", "--scale", "smoke"]) == 0
    plan = capsys.readouterr().out
    assert re.search(r"ASCEND_RT_VISIBLE_DEVICES=2$", plan, re.MULTILINE)
    assert re.search(rf"\bdevice 3\b.*\b{SLOT_NUMBERS},", " ".join(plan.split()))


def test_the_monitor_reads_the_slot_whose_number_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2")
    vendor = DeclaredVendor(load_spec("ascend"), lambda argv, seconds: CommandOutput(SLOTS))
    (sample,) = vendor.sample(vendor.devices())
    assert (sample.index, sample.power_watts) == (3, 96.4)
    assert "/dev/davinci3" in vendor.container(vendor.devices()).device_nodes


def test_a_module_keeps_its_number_where_another_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "{}, 01P4-HL3090A0-18-U4V193-22-07-0{}, HL-325L, 131072 MiB, 672 MiB, 226 W, 0 %, 36 C\n"
    text = "".join(line.format(module, module) for module in (0, 1, 3))
    vendor = DeclaredVendor(load_spec("intel"), lambda argv, seconds: CommandOutput(text))
    assert [(device.visible, device.unnumbered_reason) for device in vendor.devices()] == [
        ("0", None),
        ("1", None),
        ("3", None),
    ]
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", "3")
    assert [device.index for device in vendor.devices()] == [3]


def test_a_record_that_is_passed_over_is_a_problem() -> None:
    whole = recorded("csv")
    vendor = DeclaredVendor(spec_of(SHAPES["csv"][0]), lambda argv, seconds: CommandOutput(whole + "2, lost\n"))
    assert re.search(r"\b0, 1:.*\b2\b.*\b10$", str(devices_of(vendor).problem))


# -- numbers that a tool prints


def test_hip_counts_as_hip_id_says_and_the_tool_by_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = whole_cards(3)
    devices = amd(*cards, hip_ids({0: 2, 1: 1, 2: 0}))
    assert [(device.index, device.visible) for device in devices] == [(0, "2"), (1, "1"), (2, "0")]
    assert devices.problem is None
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert [device.index for device in amd(*cards, hip_ids({0: 2, 1: 1, 2: 0}))] == [2]
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,1")
    assert [(d.index, d.visible) for d in amd(*cards, hip_ids({0: 2, 1: 1, 2: 0}))] == [(0, "2")]


@pytest.mark.parametrize("listing", [None, "{}", hip_ids({0: 1}), hip_ids({0: 1, 1: 1}), hip_ids({0: "N/A", 1: "N/A"})])
def test_without_hip_id_the_numbers_of_several_are_unknown_and_that_of_one_is_0(
    listing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = amd(*whole_cards(2), listing)
    assert len(devices) == 2 and all("HIP_VISIBLE_DEVICES" in str(d.unnumbered_reason) for d in devices)
    assert [(d.visible, d.unnumbered_reason) for d in amd(*whole_cards(1), None)] == [("0", None)]
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "1,0")
        assert [device.index for device in amd(*whole_cards(2), listing)] == [0, 1]
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    devices = amd(*whole_cards(2), listing)
    assert devices == [] and re.search(r"\bHIP_VISIBLE_DEVICES=0,.*cannot", str(devices.problem))


def test_a_plan_gives_hip_its_own_numbers_and_refuses_some_of_unknown_ones(
    tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in zip(("static", "metric"), whole_cards(2), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "list").write_text(hip_ids({0: 1, 1: 0}))
    tool(tools, "amd-smi", f'exec cat {tmp_path}/"$1"')
    arguments = ["--dry-run", "--scale", "smoke"]
    assert main(["--case", "gpt2_small:torch:amd:1:1", *arguments]) == 0
    assert re.search(r"HIP_VISIBLE_DEVICES=1$", capsys.readouterr().out, re.MULTILINE)
    (tmp_path / "list").unlink()
    assert main(["--case", "gpt2_small:torch:amd:1:2", *arguments]) == 0
    assert re.search(r"HIP_VISIBLE_DEVICES=0,1$", capsys.readouterr().out, re.MULTILINE)
    assert main(["--case", "gpt2_small:torch:amd:1:1", *arguments]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(r"`amd-smi.*--json`.*\bHIP_VISIBLE_DEVICES\b.*\b0, 1:.*\ball\s2\b", error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected one of the keys 'tool' and 'keeps_gaps: true'"),
        ("{keeps_gaps: false}", "expected one of the keys"),
        ("{tool: {command: [a], format: csv, columns: 1, fields: {index: {column: 1}}}}",
         "tool.fields.visible: missing"),
    ],
)  # fmt: skip
def test_a_numbering_says_one_thing(text: str, message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        spec_of(f"numbering: {text}\n")


# -- parts of a card


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("cpx", "devices 0, 1, 2, 3, 4, 5, 6, 7: found 38 of the 304 compute units of chip MI300X"),
        ("dpx", "device 1: found 103070826496 of the 206158430208 bytes of memory of chip MI300X"),
    ],
)
def test_parts_of_a_card_are_no_devices(
    mode: str, message: str, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    static, metric = ((RECORDED / f"amd_{mode}_{name}.json").read_text() for name in ("static", "metric"))
    devices = amd(static, metric, None)
    assert devices == [] and message in str(devices.problem) and "SPX" in str(devices.problem)
    tool(tools, "amd-smi", f'[ "$1" = list ] && exit 2; exec cat {RECORDED}/amd_{mode}_"$1".json')
    assert main(["--case", "gpt2_small:torch:amd", "--scale", "smoke"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_whole_cards_beside_a_part_are_kept_where_their_units_are_known() -> None:
    static, metric = whole_cards(2)
    document = json.loads(static)
    document["gpu_data"][1]["asic"] = {"market_name": "AMD Instinct MI300X", "num_compute_units": 38}
    devices = amd(json.dumps(document), metric, hip_ids({0: 0, 1: 1}))
    assert [device.index for device in devices] == [0] and re.search(r"\b1:.*\b38\b", str(devices.problem))
    assert amd(json.dumps(document), metric, None) == [], "which number is the whole card's is unknown"
