"""What `vendor check` shows of a table for people, and what it finds when the table is read badly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from acme_folder import VENDOR, replace, write_acme
from levelfield.cli.main import main
from levelfield.testing.check_suite import CHECKS, run_checks, run_one_check
from levelfield.testing.findings import CheckFinding
from levelfield.testing.subject import VendorSubject

OUTPUT = """Acme System Management 2.0            Driver 6.7.0
Card 0  Acme A1  bus 0000:3b:00.0
  temp 61 degC   power 183.5 W of 350 W
  memory 1204 / 65536 MiB   busy 97 %
Card 1  Acme A1  bus 0000:5e:00.0
  temp N/A   power 61 W of 350 W
  memory 3 / 65536 MiB   busy 0 %
"""
MONITOR = r"""monitor:
  command: [acme-smi]
  format: pattern
  patterns:
    - '^Card (?P<index>\d+)  (?P<name>Acme \S+)  bus (?P<identity>[0-9a-f:.]+)$'
    - '^  temp (?P<temperature>[0-9.]+ degC|N/A)   power (?P<power>[0-9.]+ W|N/A) of \d+ W$'
    - '^  memory (?P<memory_used>\d+|N/A) / (?P<memory_total>\d+) MiB   busy (?P<utilisation>\d+ %|N/A)$'
  fields:
    index: {}
    name: {}
    identity: {}
    memory_total: {unit: MiB}
    memory_used: {unit: MiB}
    power: {unit: W, printed: W}
    utilisation: {unit: percent, printed: "%"}
    temperature: {unit: celsius, printed: degC}
"""
SHOWN = """ok       values          read: memory_total, memory_used, power, temperature,
                         utilisation
         device  total MiB  used MiB  power W  load %  temp C
              0      65536      1204    183.5      97      61
              1      65536         3       61       0    null
         device 1: temperature null (the tool says 'N/A')
"""
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The vendor whose tool prints this table."""
    folder = write_acme(tmp_path)
    declared = VENDOR[VENDOR.index("monitor:") : VENDOR.index("software:")]
    replace(folder / "vendor.yaml", declared, MONITOR)
    (folder / "recorded/monitor.csv").unlink()
    (folder / "recorded/monitor.txt").write_text(OUTPUT)
    replace(folder / "recorded/README.md", "monitor.csv", "monitor.txt")
    return folder


def finding_of(folder: Path, name: str) -> CheckFinding:
    subject = VendorSubject(folder.name, [folder.parents[1]])
    return run_one_check(subject, next(item for item in CHECKS if item.name == name))


def test_a_table_for_people_is_read_and_shown_in_80_columns(folder: Path, capsys: Captured) -> None:
    assert main(["vendor", "check", "acme", "--fast", "--plugins", str(folder.parents[1])]) == 0
    report = capsys.readouterr().out
    assert SHOWN in report and all(len(line) <= 80 for line in report.splitlines())


def test_what_is_read_is_data_for_programs(folder: Path, capsys: Captured) -> None:
    assert main(["vendor", "check", "acme", "--fast", "--json", "--plugins", str(folder.parents[1])]) == 0
    report = {item["check"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    first, second = report["values"]["rows"]
    assert (first["device"], first["values"]["power"], first["values"]["identity"]) == (0, 183.5, "0000:3b:00.0")
    assert second["values"]["temperature"] is None and set(second["reasons"]) == {"temperature"}
    assert "'N/A'" in second["reasons"]["temperature"]
    assert not report["devices"]["rows"]


SWAPPED = (("<memory_used>", "<x>"), ("<memory_total>", "<memory_used>"), ("<x>", "<memory_total>"))


@pytest.mark.parametrize(
    ("changes", "check_name", "says"),
    [
        (SWAPPED, "values", "monitor.fields.memory_used is read on no device: found 68719476736 bytes in use"),
        ([("degC|N/A)", "degC)")], "values", "device 1: power, temperature: null, where another"),
        ([(r"busy (?P<utilisation>\d+", r"busy (?P<utilisation>\d\d+")], "values", "device 1: memory_total, memory_us"),
        ([("{unit: W, printed: W}", "{unit: W, printed: mW}")], "values", "power is read on no device: found '183"),
        ([("memory_total: {unit: MiB}", "memory_total: {unit: MB}")], "values", "with MiB in the place of MB they"),
        ([("memory_bytes: 68719476736", "memory_bytes: 64000000000")], "values", "7.4% apart"),
        ([("[0-9.]+ W|N/A)", "[0-9.]+|N/A)(?: W)?"), (", printed: W", "")], "other-units", "without its unit: dev"),
        ([('"/dev/acme{index}"', "/dev/acme0")], "container", "device 1 has no node: /dev/acme0"),
        ([('"/dev/acme{index}", ', "/dev/acme0, /dev/acme2, ")], "container", "device 1 has no node"),
        ([('  device_nodes: ["/dev/acme{index}", /dev/acmectl]\n', "")], "container", "no option shows a device"),
    ],
)  # fmt: skip
def test_a_table_that_is_read_badly_fails_with_what_to_do(
    folder: Path, changes: list[tuple[str, str]], check_name: str, says: str
) -> None:
    for old, new in changes:
        replace(folder / "vendor.yaml", old, new)
    finding = finding_of(folder, check_name)
    assert says in finding.says and finding.status in ("fails", "missing") and finding.do, finding


def test_a_field_that_no_recorded_device_has_is_reported(folder: Path) -> None:
    (folder / "recorded/monitor.txt").write_text(OUTPUT.replace("61 degC", "N/A"))
    finding = finding_of(folder, "values")
    assert re.search(r"\bmonitor\.fields\.temperature\b.*'N/A'", finding.says)
    assert all(row.values["temperature"] is None for row in finding.rows) and len(finding.rows) == 2


def test_a_record_that_may_be_silent_is_shown_and_no_fault(folder: Path) -> None:
    """vendor.yaml itself lets the group be absent; the table has the null."""
    replace(folder / "vendor.yaml", r"busy (?P<utilisation>\d+ %|N/A)", r"(?:busy (?P<utilisation>\d+ %)|idle)")
    replace(folder / "recorded/monitor.txt", "busy 0 %", "idle")
    finding = finding_of(folder, "values")
    assert finding.status == "ok" and "utilisation" in finding.rows[1].reasons


def test_a_node_for_each_recorded_device_shows_them_all(folder: Path) -> None:
    replace(folder / "vendor.yaml", '"/dev/acme{index}"', "/dev/acme0, /dev/acme1")
    finding = finding_of(folder, "container")
    assert finding.status == "ok" and "all devices" in finding.says


def test_an_optional_unit_is_reported_with_the_key_to_set(folder: Path) -> None:
    replace(folder / "vendor.yaml", "[0-9.]+ W|N/A)", "[0-9.]+|N/A)(?: W)?")
    replace(folder / "vendor.yaml", ", printed: W", "")
    finding = finding_of(folder, "other-units")
    assert re.search(r"\bpower_watts\b.*\b183\.5\b.*'.*\b183\.5\sof\b.*'", finding.says)
    assert "`printed`" in finding.do


def test_a_number_that_never_had_a_unit_may_stand_without(folder: Path) -> None:
    """Memory in use has its unit at the other number of the line only."""
    assert finding_of(folder, "other-units").status == "ok"


def test_all_is_well_before_it_is_broken(folder: Path) -> None:
    assert [f.says for f in run_checks(VendorSubject("acme", [folder.parents[1]]), fast=True) if f.status != "ok"] == []


HEADER = "index, serial, name, memory.total [GiB], memory.used [MiB], power [W], temperature [C], busy [%]\n"
LINES = "0, S0, Acme A1, 64, 1204, 183.5, 61, 97\n1, S1, Acme A1, 64, 3, 61.0, 34, 0\n"
FIELDS = {
    "index": "column: index",
    "identity": "column: serial",
    "name": "column: name",
    "memory_total": "column: 'memory.total [GiB]', unit: GiB",
    "memory_used": "column: 'memory.used [MiB]', unit: MiB",
    "power": "column: 'power [W]', unit: W",
    "temperature": "column: 'temperature [C]', unit: celsius",
    "utilisation": "column: 'busy [%]', unit: percent",
}


def headed(
    tmp_path: Path, header: str = HEADER, fields: Mapping[str, str | None] = MappingProxyType({})
) -> CheckFinding:
    """Return the finding of `values` for a tool that prints a header. fields: other places; None leaves a field out."""
    folder = write_acme(tmp_path)
    places = {field: where for field, where in {**FIELDS, **fields}.items() if where}
    entries = "".join(f"    {field}: {{{where}}}\n" for field, where in places.items())
    declared = VENDOR[VENDOR.index("monitor:") : VENDOR.index("software:")]
    replace(
        folder / "vendor.yaml",
        declared,
        f"monitor:\n  command: [acme-smi, --query]\n  format: csv\n  fields:\n{entries}",
    )
    (folder / "recorded/monitor.csv").write_text(header + LINES)
    return finding_of(folder, "values")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"memory_used": "column: 'memory.used [MiB]', unit: GiB"}, "the tool's unit is MiB (column 'memory.used"),
        ({"memory_used": "column: 'memory.used [MiB]', unit: KiB"}, "and vendor.yaml has unit: KiB"),
        ({"power": "column: 'power [W]', unit: W, scale: 0.1"}, "and vendor.yaml has unit: W, scale: 0.1"),
        ({"temperature": "column: 'temperature [C]', unit: kelvin"}, "the tool's unit is C (column 'temperature [C]')"),
        ({"utilisation": "column: 'busy [%]', unit: ratio"}, "the tool's unit is % (column 'busy [%]')"),
        ({"index": "column: 'memory.used [MiB]'", "memory_used": None}, "whose unit MiB is one of memory"),
        ({"memory_used": "column: 'power [W]', unit: MiB", "power": None}, "whose unit W is one of power"),
        ({"memory_used": "column: 'power [W]', unit: MiB"}, "memory_used and power are read from one place"),
        ({"index": "column: 'busy [%]'"}, "index and utilisation are read from one place, column 'busy [%]'"),
        (
            {
                "temperature": "column: 'busy [%]', unit: celsius",
                "utilisation": "column: 'temperature [C]', unit: percent",
            },
            "temperature is read from column 'busy [%]', whose unit % is one of utilisation",
        ),
    ],
)  # fmt: skip
def test_a_heading_that_contradicts_its_field_fails(fields: dict[str, str | None], says: str, tmp_path: Path) -> None:
    assert headed(tmp_path).status == "ok"
    finding = headed(tmp_path / "broken", fields=fields)
    assert says in finding.says and finding.status == "fails" and finding.do, finding


@pytest.mark.parametrize(
    ("old", "new", "fields", "says"),
    [
        ("busy [%]", "temp", {"utilisation": "column: temp, unit: percent"}, "which speaks of temperature"),
        ("memory.used [MiB]", "mem free", {"memory_used": "column: mem free, unit: MiB"}, "which speaks of free"),
        ("memory.used [MiB]", "Total", {"memory_used": "column: Total, unit: MiB"}, "speaks of memory_total"),
        ("index", "temp", {"index": "column: temp"}, "index is read from column 'temp', which speaks of temperature"),
        (
            *("memory.used [MiB]", "memory [MB]"),
            {"memory_used": "column: 'memory [MB]', unit: MiB", "memory_total": None},
            "the tool's unit is MB, and vendor.yaml has unit: MiB",
        ),
    ],
)
def test_a_heading_that_may_be_another_is_warned_of(
    old: str, new: str, fields: dict[str, str | None], says: str, tmp_path: Path
) -> None:
    finding = headed(tmp_path, HEADER.replace(old, new), fields)
    assert finding.status == "warns" and says in finding.says and finding.do, finding


def test_mb_of_a_tool_may_be_mib_where_the_memory_of_the_chip_shows_it(tmp_path: Path) -> None:
    """As amd-smi prints; several words of one heading are no doubt."""
    where = "column: 'GPU memory usage [MB]', unit: MiB"
    finding = headed(tmp_path, HEADER.replace("memory.used [MiB]", "GPU memory usage [MB]"), {"memory_used": where})
    assert finding.status == "ok", finding


def test_two_values_of_one_text_are_two_places(folder: Path) -> None:
    document = {"cards": [{"i": n, "m": f"{used} of 65536 MiB"} for n, used in enumerate((1204, 3))]}
    fields = "memory_used: {path: [m], unit: MiB, matching: '(\\d+) of .*'}, index: {path: [i]}"
    total = "memory_total: {path: [m], unit: MiB, matching: '\\d+ of (\\d+) MiB'}"
    replace(
        folder / "vendor.yaml",
        MONITOR,
        f"monitor: {{command: [acme-smi], format: json, records: [cards], fields: {{{fields}, {total}}}}}\n",
    )
    (folder / "recorded/monitor.json").write_text(json.dumps(document))
    assert finding_of(folder, "values").says.split(": ")[1] == "memory_total, memory_used"


@pytest.mark.parametrize(("unit", "status"), [("MiB", "ok"), ("KiB", "fails"), ("MB", "warns")])
def test_the_unit_that_a_tool_prints_is_the_fields(unit: str, status: str, folder: Path) -> None:
    document = [{"i": n, "m": f"{used} MiB"} for n, used in enumerate((1204, 3))]
    fields = f"{{index: {{path: [i]}}, memory_used: {{path: [m], unit: {unit}, printed: MiB}}}}"
    replace(folder / "vendor.yaml", MONITOR, f"monitor: {{command: [acme-smi], format: json, fields: {fields}}}\n")
    (folder / "recorded/monitor.json").write_text(json.dumps(document))
    finding = finding_of(folder, "values")
    assert finding.status == status, finding
    assert status == "ok" or re.search(rf"\bMiB\b.*\bunit: {unit}\b", finding.says)


@pytest.mark.parametrize(("used", "is_right"), [(65536, True), (67000, True), (99999, False)])
def test_without_a_total_the_memory_in_use_is_at_most_the_chips(used: int, is_right: bool, tmp_path: Path) -> None:
    """Drivers and data sheets differ by up to three per cent."""
    folder = write_acme(tmp_path)
    replace(folder / "vendor.yaml", "    memory_total: {column: 4, unit: GiB}\n", "")
    replace(folder / "recorded/monitor.csv", "64, 1024", f"64, {used}")
    finding = finding_of(folder, "values")
    assert (finding.status == "ok") is is_right, finding
    assert is_right or re.search(rf"\b0: memory_used:.*\b{used * 2**20}\b.*\b68719476736\b.*\bA1\b", finding.says)


@pytest.mark.parametrize(
    ("field", "unit", "printed", "says"),
    [
        ("power", "W", "183500", "power is read on no device: found 183500, expected 1 to 10000; with mW in the place"),
        ("power", "mW", "183.5", "with W in the place of mW it would fit"),
        ("power", "W", "0.1835", "with kW in the place of W it would fit"),
        ("utilisation", "ratio", "97", "with percent in the place of ratio it would fit"),
        ("power", "W", "0", None),
    ],
)
def test_a_unit_that_would_fit_is_named(
    field: str, unit: str, printed: str, says: str | None, folder: Path, tmp_path: Path
) -> None:
    (folder / "recorded/monitor.txt").write_text(f"0 {printed}\n1 {printed}\n")
    pattern = f"patterns: ['^(?P<index>\\d) (?P<{field}>[0-9.]+)$']"
    fields = f"fields: {{index: {{}}, {field}: {{unit: {unit}}}}}"
    replace(
        folder / "vendor.yaml", MONITOR, f"monitor: {{command: [acme-smi], format: pattern, {pattern}, {fields}}}\n"
    )
    finding = finding_of(folder, "values")
    assert finding.status == "fails" and ("place of" in finding.says) is bool(says), finding
    assert says is None or says in finding.says
