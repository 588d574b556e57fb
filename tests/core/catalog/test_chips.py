"""Private chips: added and corrected by a file, seen wherever chips are, and marked as private wherever they count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry, private_chips_file
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
from levelfield.judge.collector import collect
from levelfield.report.one_run import run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump, load
from levelfield.specs.chips import ChipCorrection
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.vendor import Chip
from plans import PLUGINS, make_plan
from recorded_runs import seal_again

CORRECTED = """\
schema: levelfield.chips/1
vendors:
  fake:
    - name: F1-8GB
      memory_bytes: 4294967296
      memory_source: a mail
      peaks: {fp32: {tflops: 50, source: a sheet}, bf16: {tflops: 90, source: a sheet}}
    - name: F9
      aliases: [F9-X]
      device_is: card
      peaks: {bf16: {tflops: 900, source: a plan}}
"""
CORRECTED_FIELDS = ("memory_bytes", "memory_source", "peaks.fp32", "peaks.bf16")  # of F1
HEAD = "schema: levelfield.chips/1\nvendors:\n"


def private_source(path: Path, source: str) -> str:
    """The source of a value that comes from a private file."""
    return f"private ({path.name}): {source}"


@pytest.fixture
def chips(tmp_path: Path) -> Path:
    path = tmp_path / "chips.yaml"
    path.write_text(CORRECTED)
    return path


def chip(registry: Registry, name: str) -> Chip:
    match = registry.vendor_file("fake").chip(name)
    assert match is not None
    return match


def test_a_correction_changes_its_fields_and_no_others(registry: Registry, chips: Path) -> None:
    before, after = chip(registry, "F1"), chip(Registry([PLUGINS], chips), "F1")
    assert after.name == "F1" and after.aliases == before.aliases and after.device_is == before.device_is
    assert (after.memory_bytes, after.memory_source) == (2**32, private_source(chips, "a mail"))
    assert after.peaks["fp16"] == before.peaks["fp16"]
    assert {d: p.tflops for d, p in after.peaks.items()} == {"bf16": 90, "fp16": 120, "fp32": 50}
    assert after.peaks["bf16"].source == after.peaks["fp32"].source == private_source(chips, "a sheet")


def test_links_and_reached_rates_are_corrected_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    link = "interconnect: {description: a switch, each_way_bytes_per_second: 2.0e+11, source: a mail}"
    path.write_text(HEAD + f"  fake: [{{name: F1, achievable: {{fp16: {{tflops: 99, source: a bench}}}}, {link}}}]\n")
    private = Registry([PLUGINS], path)
    corrected = chip(private, "F1")
    assert corrected.interconnect is not None and corrected.interconnect.source == private_source(path, "a mail")
    assert corrected.achievable["fp16"].source == private_source(path, "a bench")
    assert private.overlay is not None
    used = private.overlay.overlay_used(private.vendor_file("fake"), corrected)
    assert used is not None and used.fields == ("interconnect", "achievable.fp16")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("peaks: {bf16: {tflops: 90000, source: a seller}}", "the bf16 peak in TFLOP/s is 9e+04, expected 5 to 20000"),
        ("power_watts: 0.7, power_source: a seller", "power_watts is 0.7, expected 30 to 10000"),
        ("memory_bytes: 192, memory_source: a seller", "memory_bytes in GiB is 1.788e-07, expected 2 to 4096"),
        ("peaks: {fp8: {tflops: 1000, source: with sparsity}}", "fp8 over bf16 is 10, expected 0.95 to 4.2"),
    ],
)
def test_a_number_that_no_chip_can_have_is_refused(fields: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + f"  fake: [{{name: F1, {fields}}}]\n")
    with pytest.raises(DocumentError, match=rf"mine\.yaml:.*'vendors\.fake\.0',.*F1: {re.escape(message)}"):
        Registry([PLUGINS], path).vendor_file("fake")


def test_other_chips_and_vendors_stay_as_they_are(registry: Registry, chips: Path) -> None:
    private = Registry([PLUGINS], chips)
    assert chip(private, "F2") == chip(registry, "F2")
    assert private.vendor_file("nvidia") == registry.vendor_file("nvidia")


def test_a_new_chip_stands_behind_the_others_and_reaches_the_adapter(chips: Path) -> None:
    private = Registry([PLUGINS], chips)
    assert [c.name for c in private.vendor("fake").spec.chips] == ["F1", "F2", "F9"]
    assert chip(private, "f9-x").peaks["bf16"].source == private_source(chips, "a plan")


def test_a_value_may_be_corrected_to_unknown(tmp_path: Path) -> None:
    path = tmp_path / "chips.yaml"
    path.write_text(HEAD + "  fake: [{name: F1, memory_bytes: null, memory_source: null}]\n")
    corrected = chip(Registry([PLUGINS], path), "F1")
    assert (corrected.memory_bytes, corrected.memory_source) == (None, None) and len(corrected.peaks) == 2


def test_every_field_of_a_chip_can_be_corrected() -> None:
    assert set(ChipCorrection.model_fields) == set(Chip.model_fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("schema: levelfield.vendor/1\nvendors: {}\n", "key 'schema': found 'levelfield.vendor/1'"),
        ("vendors: {}\n", "key 'schema': found None"),
        ("- a list\n", "found list, expected a mapping"),
        ("{", "not valid yaml"),
        (HEAD + "  nvida: []\n", "key 'vendors.nvida': unknown vendor 'nvida'; nearest: nvidia"),
        ("peeks: {}", "key 'vendors.fake.0.peeks': unknown key"),
        ("peaks: {bf16: {tflops: 1}}", "key 'vendors.fake.0.peaks.bf16.source': missing; it is required"),
        ("peaks: {bf16: {tflops: -1, source: made up}}", "key 'vendors.fake.0.peaks.bf16.tflops': found -1"),
        ("peaks: {bf16: {tflops: .nan, source: made up}}", "key 'vendors.fake.0.peaks.bf16.tflops': found nan"),
        ("peaks: {int8: {tflops: 1, source: made up}}", "key 'vendors.fake.0.peaks.int8"),
        ("memory_bytes: 5", "found memory_bytes without memory_source"),
        ("memory_bandwidth_bytes_per_second: 5", "found memory_bandwidth_bytes_per_second without bandwidth_source"),
        ("achievable: {bf16: {tflops: 1}}", "key 'vendors.fake.0.achievable.bf16.source': missing; it is required"),
        ("achievable: {fp16: {tflops: 121, source: made up}}", "tflops: found 121, expected at most the peak, 120"),
        (HEAD + "  fake: [{memory_bytes: 1}]\n", "key 'vendors.fake.0.name': missing"),
        (HEAD + "  fake: [{name: F8}]\n", "key 'vendors.fake.0.device_is': missing; fake has no chip 'F8'"),
        (HEAD + "  fake: [{name: F1}, {name: F1-8GB}]\n", "key 'vendors.fake.1.name': found 'F1' twice"),
        (HEAD + "  fake: [{name: F8, device_is: die, aliases: [F2]}]\n", "found the names f2 twice"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    """content: the file, or the keys of chip F1."""
    path = tmp_path / "mine.yaml"
    path.write_text(content if content.endswith(("\n", "{")) else f"{HEAD}  fake: [{{name: F1, {content}}}]\n")
    with pytest.raises(DocumentError) as refusal:
        Registry([PLUGINS], path).vendor_file("fake")
    assert str(path) in str(refusal.value) and message in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_the_users_own_file_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert private_chips_file(None) is None
    own = tmp_path / "levelfield" / "chips.yaml"
    own.parent.mkdir()
    own.write_text(CORRECTED)
    assert private_chips_file(None) == own


def test_a_named_file_wins_and_has_to_be_there(chips: Path, tmp_path: Path) -> None:
    assert private_chips_file(chips) == chips
    with pytest.raises(UsageError, match=rf"--chips {tmp_path}: found.*levelfield\.chips/1$"):
        private_chips_file(tmp_path)
    with pytest.raises(UsageError, match=rf"--chips {tmp_path}/absent\.yaml: no.*levelfield\.chips/1$"):
        private_chips_file(tmp_path / "absent.yaml")


@pytest.fixture
def private_plan(chips: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    return make_plan(Registry([PLUGINS], chips), "tiny:fake:F1:1:2", scale="smoke")


def test_the_plan_says_what_came_from_which_private_file(private_plan: Plan, chips: Path, tmp_path: Path) -> None:
    used = private_plan.hardware.overlay
    assert used is not None and used.file == str(chips)
    assert used.fields == CORRECTED_FIELDS
    overlay = Registry([PLUGINS], chips).overlay
    assert overlay is not None and used.digest == overlay.content.fingerprint()
    assert (private_plan.peak.tflops, private_plan.peak.source) == (50, private_source(chips, "a sheet"))
    (tmp_path / "plan.json").write_text(dump(private_plan))
    assert load(Plan, tmp_path / "plan.json") == private_plan


def test_a_plan_whose_chip_the_file_does_not_touch_has_no_overlay(
    chips: Path, plan_for: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    assert plan_for("tiny:fake:F1:1:2", scale="smoke").hardware.overlay is None
    chips.write_text(HEAD + "  fake: [{name: F2, device_is: die}]\n")
    assert make_plan(Registry([PLUGINS], chips), "tiny:fake:F1:1:2", scale="smoke").hardware.overlay is None


def test_the_result_shows_that_its_peak_is_private(run: RunPaths, private_plan: Plan, chips: Path) -> None:
    run.plan.write_text(dump(private_plan.model_copy(update={"run_id": run.root.name})))
    seal_again(run)
    result = collect(run)
    assert {u.peak_source for u in result.utilisation if u.value} == {private_source(chips, "a sheet")}
    (row,) = (line for line in run_report(result, read_plan(run)).splitlines() if line.startswith("| chip data |"))
    assert re.search(rf"{', '.join(CORRECTED_FIELDS)}: .*private.*`sha256:", row)


def chip_table(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", "chips", "--plugins", str(PLUGINS), *arguments]) == 0
    return capsys.readouterr().out


def test_list_chips_marks_what_is_private(chips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = chip_table(capsys, "--chips", str(chips))
    private = [line.split()[0] for line in text.splitlines() if "  private; fake; " in line]
    assert private == ["F1", "F9"] and all(len(line) <= 80 or str(chips) in line for line in text.splitlines())
    assert f"F1: {', '.join(CORRECTED_FIELDS)}, " in " ".join(text.split())
    assert "private" not in chip_table(capsys)


def test_list_chips_marks_them_for_programs(chips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(chip_table(capsys, "--chips", str(chips), "--json"))["chips"]}
    assert rows["F2"]["overlay"] is None and rows["F9"]["overlay"]["file"] == str(chips)
    assert rows["F1"]["overlay"]["fields"] == list(CORRECTED_FIELDS)


def test_list_chips_has_links_and_reached_rates(capsys: pytest.CaptureFixture[str]) -> None:
    v100 = " ".join(chip_table(capsys).split()).split("V100-SXM2-16GB")[1].split("A100-SXM4-40GB")[0]
    parts = dict(fp16=" 125;", reached=": fp16 101;", links=": 150 GB/s", pair=": 25; 8 joined, 50 Gb/s", most=" 300 W")
    assert [name for name, text in parts.items() if name + text not in v100] == []
    rows = {row["name"]: row for row in json.loads(chip_table(capsys, "--json"))["chips"]}
    assert rows["H100-SXM5-80GB"]["interconnect"]["each_way_bytes_per_second"] == 450e9
    assert rows["H100-SXM5-80GB"]["achievable"]["bf16"]["tflops"] == 794.5
    assert rows["A800-SXM4-80GB"]["achievable"] == rows["A100-SXM4-80GB"]["achievable"]  # the same die
    assert rows["B200-SXM-180GB"]["achievable"] == {} and rows["cpu"]["interconnect"] is None


@pytest.mark.parametrize("command", [["show", "chips"], ["--case", "tiny:fake:F1", "--dry-run"], ["show", "tiny"]])
def test_a_chips_file_that_is_not_there_is_exit_code_2(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--plugins", str(PLUGINS), "--chips", "/no/chips.yaml"]) == 2
    assert "--chips /no/chips.yaml:" in capsys.readouterr().err


def test_a_chip_that_only_the_file_knows_can_be_planned_for(
    chips: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--case", "tiny:fake:F9:1:2", "--scale", "smoke", "--dry-run", "--json", "--runs", str(tmp_path)]
    assert main([*arguments, "--plugins", str(PLUGINS), "--chips", str(chips)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["plan"]["hardware"]["chip"]["name"] == "F9"
    assert shown["plan"]["hardware"]["overlay"]["fields"] == ["aliases", "device_is", "peaks.bf16"]
