"""`plan` on several chips: the row that a run takes on each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main

CASE = ("llama3_8b", "--devices", "8")
PRICES = """\
schema: levelfield.prices/1
currency: EUR
chips:
  H100-SXM5-80GB: {per: device, rent: 2.0}
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    content = json.loads(said(capsys, *arguments, "--json"))
    assert isinstance(content, dict)
    return content


def row_of(text: str, chip: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(chip)).split()


def test_each_chip_has_the_row_of_a_run_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *CASE, "--chip", "H100, H200,A100,H100")
    assert max(map(len, text.splitlines())) <= 80 and " on 1 x 8 devices" in text.splitlines()[0]
    several = found(capsys, *CASE, "--chip", "H100,H200,A100")
    assert several["schema"] == "levelfield.planned_chips/1" and several["base"] == "H100-SXM5-80GB"
    assert [each["chip"] for each in several["chips"]] == ["H200-SXM-141GB", "H100-SXM5-80GB", "A100-SXM4-80GB"]
    base = next(each for each in several["chips"] if each["chip"] == several["base"])["rows"][0]
    for each in several["chips"]:
        alone = found(capsys, *CASE, "--chip", each["chip"])
        (row,) = each["rows"]
        assert row == next(one for one in alone["rows"] if not one["is_tight"])
        speed = row["tokens_per_second_per_device"]
        assert each["speed_over_base"] == speed / base["tokens_per_second_per_device"]
        assert row_of(text, each["chip"])[-2:] == [f"{speed:,.0f}", f"{each['speed_over_base']:.2f}"]
    assert " ".join(text.split()).count("90 of 100 published runs by other programs") == 1


def test_a_vendor_stands_for_its_chips(capsys: pytest.CaptureFixture[str]) -> None:
    chips = {chip.name for chip in Registry().vendor_file("amd").chips}
    several = found(capsys, *CASE, "--chip", "H100,AMD,MI300X")
    listed = [each["chip"] for each in several["chips"]] + [each["chip"] for each in several["not_planned"]]
    assert sorted(listed) == sorted({"H100-SXM5-80GB", *chips}) and len(chips) > 1
    assert several["base"] == "H100-SXM5-80GB"


def test_what_a_chip_cannot_is_said_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CASE, "--chip", "A100,V100,Ascend-910B1,B200")
    text = said(capsys, *arguments)
    lines = " ".join(text.split())
    assert "none fits" in text and "V100-SXM2-16GB: no layout fits; the smallest is " in lines
    assert row_of(text, "Ascend-910B1")[-2:] == ["-", "-"] and "Ascend-910B1: assumed: peak of bf16" in lines
    assert [each["speed_over_base"] is None for each in found(capsys, *arguments)["chips"]] == [
        False,
        False,
        True,
        True,
    ]
    narrow = (*CASE, "--precision", "nvfp4", "--chip", "A100,B200")
    assert " ".join(said(capsys, *narrow).split()).count("A100-SXM4-80GB: no plan: ") == 1
    (refused,) = found(capsys, *narrow)["not_planned"]
    assert refused["chip"] == "A100-SXM4-80GB" and refused["why"]


def test_different_numbers_of_devices_are_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama3_70b", "--devices", "72", "--framework", "megatron", "--chip", "H100,GB200")
    assert "devices," not in text.splitlines()[0] and "9 x 8" in text and "1 x 72" in text


def test_a_training_on_each_chip_has_its_time_and_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    arguments = (*CASE, "--chip", "H100,A100,Ascend-910B1", "--tokens", "1T", "--prices", str(prices))
    several = found(capsys, *arguments)
    table = said(capsys, *arguments).split("a training on 1,000,000,000,000 tokens")[1]
    h100 = next(each for each in several["chips"] if each["chip"] == "H100-SXM5-80GB")["rows"][0]["training"]
    assert h100["cost"] == pytest.approx(2.0 * h100["device_hours"])
    assert row_of(table, "H100-SXM5-80GB")[2] == f"{h100['device_hours']:,.0f}"
    assert row_of(table, "A100-SXM4-80GB")[-1] == "-" and "A100-SXM4-80GB: EUR: none: " in " ".join(table.split())
    assert "Ascend-910B1" not in table


@pytest.mark.parametrize("option", [("--explain", "1"), ("--calibrate", "latest"), ("--rehearse",), ("--beyond", "2")])
def test_what_is_of_one_chip_is_refused_of_several(capsys: pytest.CaptureFixture[str], option: tuple[str, ...]) -> None:
    assert main(["plan", *CASE, "--chip", "H100,A100", *option]) == 2
    assert f"{option[0]}: found 2 chips, expected one" in " ".join(capsys.readouterr().err.split())


def test_an_unknown_name_and_chips_without_any_plan_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for names, wanted in (
        ("H100,", "unknown vendor or chip ''"),
        ("H100,B2000", "unknown vendor or chip 'B2000'"),
        ("A100,H100", "A100-SXM4-80GB"),
    ):
        precision = ("--precision", "nvfp4") if wanted == "A100-SXM4-80GB" else ()
        assert main(["plan", *CASE, "--chip", names, *precision]) == 2
        assert wanted in " ".join(capsys.readouterr().err.split())
