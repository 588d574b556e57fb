"""The generic adapter on recorded output of every shape (recorded/README.md), and on damaged copies of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from declared_specs import SHAPES, recorded, spec_of
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.command import CommandOutput
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.contracts.vendor import Device, DeviceList, Sample

MIB = 2**20


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)


def replay(output: str | None, reason: str = "") -> Callable[[Sequence[str], float], CommandOutput]:
    return lambda argv, timeout_seconds: CommandOutput(output, reason)


def vendor(shape: str, output: str | None = None) -> DeclaredVendor:
    """The adapter of a shape over its own recording, or over `output`."""
    return DeclaredVendor(spec_of(SHAPES[shape][0]), replay(recorded(shape) if output is None else output))


def devices(shape: str) -> Sequence[Device]:
    return vendor(shape).devices()


def samples(shape: str, output: str | None = None) -> Sequence[Sample]:
    return vendor(shape, output).sample(devices(shape))


def values(sample: Sample) -> dict[str, Any]:
    return {field: getattr(sample, field) for field in SAMPLED_FIELDS}


EXPECTED = {
    "csv": {0: (57.0, None, 15 * MIB, 0.0, 31.0), 1: (58.5, None, 15 * MIB, 0.0, 33.0)},
    "list": {0: (146.0, 1532.25, 283 * MIB, 0.12, 41.0), 1: (None, 1533.5, 284 * MIB, 0.0, 42.0)},
    "keyed": {0: (57.0, None, 11264000, 0.07, None), 1: (58.5, None, 11264001, 0.0, None)},
    "npu": {4: (None, None, 861 * MIB, 0.0, 43.0), 5: (67.5, None, 862 * MIB, 0.12, 44.0)},
    "mx": {0: (56.0, None, 914 * MIB, 0.0, 35.0), 1: (57.0, None, 915 * MIB, 0.03, 36.0)},
    "headed": {0: (96.0, None, None, 0.0, 53.0), 1: (97.0, None, None, 0.05, 54.0)},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_recorded_values_in_the_contracts_units(shape: str) -> None:
    assert {s.index: tuple(values(s).values()) for s in samples(shape)} == EXPECTED[shape]
    for sample in samples(shape):
        assert set(sample.reasons) == {field for field, value in values(sample).items() if value is None}


def test_devices_with_chip_memory_and_identity() -> None:
    name = "NVIDIA A100-SXM4-40GB"
    assert devices("csv")[0] == Device(0, "X", name, 40536 * MIB, "GPU-00000000-aaaa-bbbb-cccc-000000000000")
    assert replace(devices("npu")[1], unnumbered_reason=None) == Device(5, "X", "910A", 21534 * MIB, "0000:82:00.0")
    bare = devices("headed")[1]
    assert (bare.index, bare.chip, bare.memory_bytes, bare.identity) == (1, None, None, None)
    assert bare.description.split() == ["acme", "device", "1"]


def test_each_line_of_json_lines_is_a_record() -> None:
    spec = spec_of(SHAPES["list"][0].replace("format: json\n  records: [gpu_data]", "format: json_lines"))
    lines = [json.dumps(record) + "\n" for record in json.loads(recorded("list"))["gpu_data"]]

    def read(text: str) -> list[Sample]:
        return list(DeclaredVendor(spec, replay(text)).sample(devices("list")))

    assert read("".join(lines)) == list(samples("list"))
    first, *others = read(lines[0])  # of a machine with one device
    assert first == samples("list")[0] and all(set(values(sample).values()) == {None} for sample in others)
    cut = read(lines[0][:40] + "\n" + "".join(lines[1:]))
    assert cut[1:] == list(samples("list"))[1:] and "a line that is no JSON" in cut[0].reasons["power_watts"]
    nothing = DeclaredVendor(spec, replay("no driver\n")).devices()
    assert isinstance(nothing, DeviceList) and "printed no device" in (nothing.problem or "")


@pytest.mark.parametrize("shape", ["csv", "npu", "mx", "headed"])
@given(data=st.data())
def test_no_line_lost_twice_or_elsewhere_gives_a_wrong_value(shape: str, data: st.DataObject) -> None:
    lines = recorded(shape).splitlines(keepends=True)
    at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    # In mx's table only the first of two lines says whose they are: second lines that changed places leave no trace.
    change = data.draw(st.sampled_from(["lose", "repeat"] if shape == "mx" else ["lose", "repeat", "swap"]))
    if change == "swap":
        lines[at], lines[to] = lines[to], lines[at]
    else:
        lines[at : at + 1] = lines[at : at + 1] * (2 if change == "repeat" else 0)
    for read, right in zip(samples(shape, "".join(lines)), samples(shape), strict=True):
        assert all(value in (None, getattr(right, field)) for field, value in values(read).items())


# One damage to the recording of a shape, the device it is done to, and which of its fields must be None for it.
# None in place of fields: all.
DAMAGES: list[tuple[str, str, str, tuple[str, ...] | None, str]] = [
    # decimal commas
    ("csv", "57.00", "57,00", None, "11 columns, expected 10"),
    ("keyed", '"57.0"', '"57,0"', ("power_watts",), "found '57,0'"),
    ("headed", "96.0W", "96,0W", ("power_watts",), "found '96,0'"),
    ("mx", "56W", "56,0W", ("power_watts",), "found '56,0'"),
    # other units
    ("csv", "57.00", "57 W", ("power_watts",), "found '57 W'"),
    ("csv", "57.00", "57000", ("power_watts",), "found 57000, expected 1 to 10000"),
    ("csv", ", 15,", ", 15728640,", ("memory_used_bytes",), "expected"),
    ("csv", ", 15,", ", 40537,", ("memory_used_bytes",), "expected at most the device's"),
    ("mx", "56W", "56000mW", ("power_watts",), "found '56000m'"),
    ("mx", "65536 MiB", "65536 GiB", None, "no whole record"),
    ("mx", "35C", "95F", ("temperature_celsius",), "found '95F'"),
    ("headed", " 0% Normal", " 0.0 Normal", ("utilisation",), "'%' behind it"),
    ("list", '146, "unit": "W"', '146, "unit": "mW"', ("power_watts",), "found '146 m'"),
    ("list", '"value": 283, "unit": "MB"', '"value": 283, "unit": "GB"', ("memory_used_bytes",), "found '283 GB'"),
    ("keyed", '"11264000"', '"11264000 B"', ("memory_used_bytes",), "found '11264000 B'"),
    ("keyed", "GPU use (%)", "GPU use", ("utilisation",), "found nothing at ['GPU use (%)']"),
    ("npu", "| 0 861", "| 101 861", ("utilisation",), "found 1.01, expected 0 to 1"),
    # words for what is not available
    ("csv", "57.00", "[Not Supported]", ("power_watts",), "the tool says '[Not Supported]'"),
    ("csv", "57.00", "n/a", ("power_watts",), "the tool says 'n/a'"),
    ("csv", "57.00", "ERR!", ("power_watts",), "found 'ERR!'"),
    ("list", '{"value": 12, "unit": "%"}', "null", ("utilisation",), "the tool says 'null'"),
    ("list", '"value": 41', '"value": "N/A"', ("temperature_celsius",), "the tool says 'N/A C'"),
    # values that are none
    ("list", "1532.25", "NaN", ("energy_joules",), "found 'NaN'"),
    ("list", "1532.25", "true", ("energy_joules",), "found true"),
    ("list", "1532.25", "[1532.25]", ("energy_joules",), "found [1532.25]"),
    ("list", '{"value": 146, "unit": "W"}', '{"value": 146}', ("power_watts",), 'found {"value": 146}'),
    ("keyed", '"57.0"', '"-57.0"', ("power_watts",), "found -57"),
    # records that are none, or another device's
    ("csv", "GPU-0000", "MIG-0000", None, "found the identity 'MIG-0000"),
    ("csv", "0, GPU-0", "x0, GPU-0", None, "found the index 'x0'"),
    ("csv", "0, GPU-0", "7, GPU-0", None, "no whole record of device 0"),
    ("csv", "Disabled, 470", "Disabled, more, 470", None, "11 columns"),
    ("csv", "GPU-00000000", "GPU-99999999", None, "another device now: GPU-99999999"),
    ("csv", "1, GPU-1", "0, GPU-2", None, "more than one record of index '0'"),
    ("csv", "GPU-11111111-aaaa-bbbb-cccc-111111111111", "GPU-00000000-aaaa-bbbb-cccc-000000000000", None, "identity"),
    ("keyed", "card1", "card0", None, "a key is there twice"),
    ("list", '"gpu": 1', '"gpu": 0', None, "more than one record of index '0'"),
    ("list", "gpu_data", "gpu_datum", None, "found nothing at ['gpu_data']"),
    ("list", "{", "[", None, "no JSON as it should be"),
    ("headed", "AvgPwr", "Puissance", None, "found no column 'AvgPwr' in the header 'DCU, Temp, Pui"),
    ("headed", "DCU% Mode", "DCU% DCU%", None, "found column 'DCU%' twice in the header"),
    ("headed", "DCU Temp AvgPwr Perf PwrCap VRAM% DCU%", "A B C D E F G", None, "; the first line is '"),
    ("headed", "0% 0% Normal", "0% Normal", None, "a line of 7 columns, expected 8"),
    ("csv", "NVIDIA A100-SXM4-40GB", '"BI-V100, 32 GB"', None, "expected 10; quotes around a column are not read"),
    ("mx", "|  35C", "\n|  35C", None, "no whole record of device 0"),
    ("npu", "| 0 0 |", "| lost |", ("memory_used_bytes", "utilisation", "energy_joules"), "not in this form"),
]


@pytest.mark.parametrize(("shape", "old", "new", "fields", "says"), DAMAGES)
def test_what_is_damaged_is_passed_over_with_the_reason(
    shape: str, old: str, new: str, fields: tuple[str, ...] | None, says: str
) -> None:
    whole = recorded(shape)
    assert old in whole
    first, right = samples(shape, whole.replace(old, new, 1))[0], samples(shape)[0]
    missing = set(SAMPLED_FIELDS) if fields is None else {*fields, *right.reasons}
    assert {field for field, value in values(first).items() if value is None} == missing == set(first.reasons)
    assert all(values(first)[field] == getattr(right, field) for field in set(SAMPLED_FIELDS) - missing)
    assert says in first.reasons[fields[0] if fields else "power_watts"]


@pytest.mark.parametrize("shape", SHAPES)
def test_windows_line_ends_and_blank_lines_change_nothing(shape: str) -> None:
    assert samples(shape, "\n" + recorded(shape).replace("\n", "\r\n") + "\n\n") == samples(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_byte_order_mark_belongs_to_no_column_and_to_no_json(shape: str) -> None:
    marked = samples(shape, "\ufeff" + recorded(shape))
    assert marked == samples(shape) and any(values(marked[0]).values())


def test_damage_to_one_device_leaves_the_others() -> None:
    assert samples("csv", recorded("csv").replace("57.00", "57,00"))[1] == samples("csv")[1]
    assert samples("mx", recorded("mx").replace("56W", ""))[1] == samples("mx")[1]


def test_devices_are_found_by_index_in_any_order_and_among_others() -> None:
    lines = recorded("csv").splitlines(keepends=True)
    more = lines[0].replace("0, GPU-0", "7, GPU-7", 1)
    assert samples("csv", more + lines[1] + lines[0]) == samples("csv")
    assert [d.index for d in vendor("csv", more + lines[1] + lines[0]).devices()] == [0, 1, 7]


def test_a_record_whose_first_line_is_lost_is_not_mixed_with_the_one_before() -> None:
    lines = recorded("npu").splitlines(keepends=True)
    first, second = samples("npu", lines[0] + lines[1] + lines[3])
    assert first.memory_used_bytes is None and "once" in first.reasons["memory_used_bytes"]
    assert first.temperature_celsius == 43.0 and second.temperature_celsius is None


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        *(
            (None, [0, 1]),
            ("1", [1]),
            ("1,0", [1, 0]),
            ("0,9,1", [0]),
            ("0,0", [0]),
            (" 1 , 0 ", [1, 0]),
            ("1,,0", [1]),
        ),
        *(("GPU-1", [1]), ("GPU-", []), ("", []), ("-1", []), ("all", [])),
    ],
)
def test_what_the_visible_devices_variable_leaves(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, indices: list[int]
) -> None:
    if variable is not None:
        monkeypatch.setenv("ACME_VISIBLE_DEVICES", variable)
    assert [d.index for d in devices("csv")] == indices


def test_a_variable_that_shows_nothing_is_no_machine_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_VISIBLE_DEVICES", "77")
    listing = vendor("csv").devices()
    assert isinstance(listing, DeviceList) and not listing
    assert re.search(r"\bACME_VISIBLE_DEVICES=77\b.*\b0, 1\b", listing.problem or "")


@pytest.mark.parametrize(
    ("outer", "inner", "indices"),
    [(None, "1", [1]), ("1", None, [1]), ("1", "0", [1]), ("1,0", "0", [1]), ("1,0", "1,0", [0, 1]), ("", "0", [])],
)
def test_the_second_variable_counts_what_the_first_one_left(
    outer: str | None, inner: str | None, indices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HIP's does after ROCR's. The devices keep the tool's indices, by which they are read and locked."""
    for name, value in (("OUTER_VISIBLE_DEVICES", outer), ("ACME_VISIBLE_DEVICES", inner)):
        if value is not None:
            monkeypatch.setenv(name, value)
    spec = spec_of(SHAPES["csv"][0], "outer_devices_variable: OUTER_VISIBLE_DEVICES\n")
    assert [d.index for d in DeclaredVendor(spec, replay(recorded("csv"))).devices()] == indices
