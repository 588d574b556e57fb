"""What the repository's vendors read in their recorded output, and in damaged copies of it only what is right."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from adapters import VENDORS, load_spec
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import Device
from shipped import (
    DECLARED,
    EXPECTED,
    MIB,
    WHOLE,
    adapter,
    assert_nothing_wrong,
    devices,
    samples,
    text_of,
    values,
)

PUBLIC = Path(__file__).with_name("recorded")


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DECLARED:
        monkeypatch.delenv(load_spec(name).visible_devices_variable or "NONE", raising=False)


# -- what was recorded


@pytest.mark.parametrize("recording", EXPECTED)
def test_the_recorded_values_in_the_contracts_units(recording: str) -> None:
    assert {s.index: values(s) for s in samples(recording)} == EXPECTED[recording]
    for sample in samples(recording):
        assert {*sample.reasons} == {f for f, v in zip(SAMPLED_FIELDS, values(sample), strict=True) if v is None}


def test_every_recording_is_expected_and_the_first_is_the_whole_monitor() -> None:
    for vendor in DECLARED:
        names = sorted(p.name for p in (VENDORS / vendor / "recorded").iterdir() if p.suffix != ".md")
        recorded = [n for n in names if not n.startswith(("discovery.", "numbering."))]
        assert recorded[0].startswith("monitor.") and {f"{vendor}/{n}" for n in recorded} <= {*EXPECTED}


@pytest.mark.parametrize(
    ("recording", "first"),
    [
        ("amd/monitor.json", Device(0, "MI300X", "AMD Instinct MI300X", 196592 * MIB, "0000:83:00.0", "1", None, 304)),
        ("ascend/monitor.txt", Device(0, "Ascend-910B1", "910B1", 65536 * MIB, "0000:C1:00.0")),
        ("ascend/two-dies-a3.txt", Device(0, "Ascend-910C", "Ascend910", 65536 * MIB, "0000:9D:00.0")),
        ("ascend/older-910a.txt", Device(0, "Ascend-910A", "910A", 21534 * MIB, "0000:81:00.0")),
        ("cambricon/monitor.txt", Device(0, "MLU370-X8", "MLU370-X8", 23374 * MIB, "0000:39:00.0")),
        ("hygon/monitor.txt", Device(0, None, "hygon device 0", None)),
        ("intel/monitor.csv", Device(0, "Gaudi3", "HL-325L", 131072 * MIB, "01P4-HL3090A0-18-U4V193-22-07-00")),
        ("kunlunxin/monitor.txt", Device(0, "P800", "P800 OAM", 98304 * MIB, "00000000:16:00.0")),
        ("metax/older-c500.txt", Device(0, "C500", "MXC500", 65536 * MIB, "0000:1b:00.0")),
        (
            "mthreads/monitor.json",
            Device(0, "MTT-S5000", "MTT S5000", 81920 * MIB, "00000000-0000-0000-0000-000000000000"),
        ),
        ("mthreads/older-s3000.json", Device(0, "MTT-S3000", "MTT S3000", 32768 * MIB)),
    ],
)
def test_devices_with_chip_memory_and_identity(recording: str, first: Device) -> None:
    assert devices(recording)[0] == first


def test_the_two_releases_of_amd_smi_are_read_alike() -> None:
    bare = json.dumps(json.loads(text_of("amd/monitor.json"))["gpu_data"])
    assert samples("amd/monitor.json", bare) == samples("amd/monitor.json")


def test_the_table_of_two_dies_counts_by_physical_id_and_that_of_one_by_npu() -> None:
    swapped = text_of("ascend/two-dies-a3.txt").replace("| 1     1  ", "| 1     13 ")
    assert [d.index for d in adapter("ascend/two-dies-a3.txt", swapped).devices()] == [0, 13]
    third = text_of("ascend/monitor.txt").replace("| 1     910B1", "| 7     910B1")
    assert [d.index for d in adapter("ascend/monitor.txt", third).devices()] == [0, 7]


def test_two_chips_of_a_card_that_share_an_address_are_two_devices_without_one() -> None:
    """A 310P3 has two chips, which count on from card to card."""
    devices = adapter("ascend/monitor.txt", (PUBLIC / "npu_smi_310p3.txt").read_text()).devices()
    assert [(d.index, d.memory_bytes, d.identity) for d in devices] == [
        (0, 44278 * MIB, None),
        (1, 43693 * MIB, None),
        (2, 44278 * MIB, None),
        (3, 43693 * MIB, None),
    ]
    assert adapter("ascend/monitor.txt").devices()[0].identity == "0000:C1:00.0"


def test_a_table_of_cnmon_4_has_no_address() -> None:
    read = adapter("cambricon/monitor.txt", (PUBLIC / "cnmon_4_20.txt").read_text())
    assert [(d.index, d.chip, d.memory_bytes, d.identity) for d in read.devices()] == [
        (0, "MLU370-X4", 23308 * MIB, None),
        (1, "MLU370-X4", 23308 * MIB, None),
    ]
    assert [values(sample) for sample in read.sample(read.devices())] == [
        (30.0, None, 0, 0.0, 32.0),
        (25.0, None, 0, 0.0, 33.0),
    ]


# -- damaged


@pytest.mark.parametrize("recording", EXPECTED)
@given(data=st.data())
def test_no_truncation_gives_a_wrong_value(recording: str, data: st.DataObject) -> None:
    whole = text_of(recording)
    assert_nothing_wrong(recording, whole[: data.draw(st.integers(0, len(whole)))])


@pytest.mark.parametrize("recording", EXPECTED)
def test_no_lost_or_repeated_line_gives_a_wrong_value(recording: str) -> None:
    lines = text_of(recording).splitlines(keepends=True)
    for at in range(len(lines)):
        assert_nothing_wrong(recording, "".join(lines[:at] + lines[at + 1 :]))
        assert_nothing_wrong(recording, "".join(lines[: at + 1] + lines[at:]))


@pytest.mark.parametrize("recording", [name for name in EXPECTED if not name.endswith(".json")])
def test_no_lost_column_gives_a_wrong_value(recording: str) -> None:
    """Each word of a line left out once: what stands behind it moves up by one place."""
    whole = text_of(recording)
    for word in re.finditer(r"\S+ *", whole):
        assert_nothing_wrong(recording, whole[: word.start()] + whole[word.end() :])


@pytest.mark.parametrize("recording", EXPECTED)
def test_a_decimal_comma_is_no_number(recording: str) -> None:
    whole = text_of(recording)
    commas = re.sub(r"\b(\d+)(\.\d+)?( ?[CW%][ |/\",\n])", r"\1,5\3", whole)
    assert_nothing_wrong(recording, commas)
    assert commas == whole or all(len(s.reasons) > 1 for s in samples(recording, commas))


# One damage to a recording, the device it is done to, and which of its fields must then be None; None: all.
DAMAGES: list[tuple[str, str, str, tuple[str, ...] | None]] = [
    ("amd/monitor.json", '"unit": "W"', '"unit": "mW"', ("power_watts",)),
    ("amd/monitor.json", '"value": 283', '"value": "N/A"', ("memory_used_bytes",)),
    ("amd/monitor.json", '"value": 12,', '"value": 120,', ("utilisation",)),
    ("amd/monitor.json", '"unit": "J"', '"unit": "kJ"', ("energy_joules",)),
    ("amd/monitor.json", '"gpu": 1', '"gpu": 0', None),
    ("ascend/monitor.txt", "| 99.3 ", "| NA   ", ("power_watts",)),
    ("ascend/monitor.txt", "Health", "健康", ()),
    ("ascend/monitor.txt", "99.3", "99,3", ("power_watts",)),
    ("ascend/monitor.txt", "3453 / 65536", "65537 / 65536", ("memory_used_bytes",)),
    ("ascend/monitor.txt", "0000:C1:00.0", "NA          ", None),
    ("cambricon/monitor.txt", "32C", "89F", ("temperature_celsius",)),
    ("cambricon/monitor.txt", "106 W/", "106kW/", ("power_watts",)),
    ("cambricon/monitor.txt", "106 W/ 250 W", "N/A / 250 W", None),
    ("cambricon/monitor.txt", "/ 23374 MiB", "/ 23374 GiB", None),
    ("cambricon/monitor.txt", "| 0     / ", "| 0     1 ", None),
    ("hygon/monitor.txt", "96.0W", "96000mW", ("power_watts",)),
    ("hygon/monitor.txt", "96.0W", "N/A", ("power_watts",)),
    ("hygon/monitor.txt", "DCU     Temp", "卡      温度", ()),
    ("hygon/monitor.txt", "53.0C", "127.4F", ("temperature_celsius",)),
    ("iluvatar/monitor.csv", " 50,", " 50 W,", ("power_watts",)),
    ("iluvatar/monitor.csv", " 50,", " [N/A],", ("power_watts",)),
    ("iluvatar/monitor.csv", "513,", "513,5,", None),
    ("intel/monitor.csv", "226 W", "226 mW", ("power_watts",)),
    ("intel/monitor.csv", "672 MiB", "N/A", ("memory_used_bytes",)),
    ("intel/monitor.csv", "36 C", "309 K", ("temperature_celsius",)),
    ("kunlunxin/monitor.txt", " 93 ", " N/A ", ("power_watts",)),
    ("kunlunxin/monitor.txt", " 93 ", " 93W ", ("power_watts",)),
    ("kunlunxin/monitor.txt", '"P800 OAM"', "P800", None),
    ("metax/monitor.txt", "29W /", "29kW /", ("power_watts",)),
    ("metax/monitor.txt", "666/65536 MiB", "666/65536 GiB", None),
    ("metax/monitor.txt", "| 0% ", "| N/A", ("utilisation",)),
    ("metax/monitor.txt", "GPU-Util", "利用率", ()),
    ("mthreads/older-s3000.json", "109.51W", "109.51mW", ("power_watts",)),
    ("mthreads/older-s3000.json", "109.51W", "109,51W", ("power_watts",)),
    ("mthreads/older-s3000.json", '"1MiB"', '"1GiB"', ("memory_used_bytes",)),
    ("mthreads/older-s3000.json", '"45C"', '"N/A"', ("temperature_celsius",)),
    ("mthreads/older-s3000.json", "Power Draw ", "Power Draw", ("power_watts",)),
]


@pytest.mark.parametrize(("recording", "old", "new", "fields"), DAMAGES)
def test_what_is_damaged_is_passed_over_with_the_reason(
    recording: str, old: str, new: str, fields: tuple[str, ...] | None
) -> None:
    whole = text_of(recording)
    assert old in whole
    first, right = samples(recording, whole.replace(old, new, 1))[0], samples(recording)[0]
    missing = {*SAMPLED_FIELDS} if fields is None else {*fields, *right.reasons}
    assert {*first.reasons} == missing and all(first.reasons.values())
    assert all(getattr(first, f) == (None if f in missing else getattr(right, f)) for f in SAMPLED_FIELDS)


@pytest.mark.parametrize("recording", WHOLE)
@given(output=st.text(max_size=300))
def test_no_text_makes_an_adapter_raise_or_invent(recording: str, output: str) -> None:
    listing = devices(recording) if recording.startswith("amd") else []  # by another tool, which says no memory
    assert adapter(recording, output).devices() == [replace(device, memory_bytes=None) for device in listing]
    assert all({*s.reasons} == {*SAMPLED_FIELDS} for s in samples(recording, output))


@pytest.mark.parametrize("vendor", DECLARED)
@pytest.mark.parametrize("reason", ["cannot be started", "did not answer within 10 s", "ended with exit code 9"])
def test_a_tool_without_an_answer_is_no_device_and_every_value_says_why(vendor: str, reason: str) -> None:
    silent = DeclaredVendor(load_spec(vendor), lambda argv, timeout_seconds: CommandOutput(None, reason))
    assert silent.devices() == []
    (sample,) = silent.sample([Device(0, None, "", None)])
    assert sample.reasons == dict.fromkeys(SAMPLED_FIELDS, reason)
