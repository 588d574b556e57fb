"""`plan` on several chips: the fastest row of each that leaves memory free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_OFF
from test_plan_command import said

CASE = ("llama3_8b", "--devices", "8")
PRICES = """\
schema: levelfield.prices/1
currency: EUR
chips:
  H100-SXM5-80GB: {per: device, rent: 2.0}
"""


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    content = json.loads(said(capsys, *arguments, "--json"))
    assert isinstance(content, dict)
    return content


def row_of(text: str, chip: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(chip)).split()


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_each_chip_has_its_roomy_row_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert in_one_line(text).count("90 of 100 published runs by other programs") == 1


def test_how_far_ratios_were_off_is_said_of_dense_models_on_chips_of_which_it_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    middle, most = CHIP_RATIO_OFF
    sentence = (
        f"ratios of {CHIP_PAIRS} pairs of nvidia chips were off from published ones by {middle:.0%} in the middle"
    )
    two = in_one_line(said(capsys, *CASE, "--chip", "H100,A100"))
    assert f"{sentence} and {most:.0%} at most" in two
    for others in ("MI300X,MI325X", "H100,MI300X", "H100,Ascend-910B1"):
        assert sentence not in in_one_line(said(capsys, *CASE, "--chip", others)), others
    mixture = in_one_line(said(capsys, "mixtral_8x7b", "--devices", "64", "--chip", "H100,H200"))
    assert sentence not in mixture and "no published mixture set the rates" in mixture


def test_a_sentence_of_several_chips_is_said_once_and_that_of_one_has_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = in_one_line(said(capsys, *CASE, "--chip", "H100,B200,GB200"))
    assert "GB200-186GB, B200-SXM-180GB: assumed: large products at 80% of the chip's bf16 peak" in lines
    alone = in_one_line(said(capsys, *CASE, "--chip", "H100,A100,V100", "--precision", "fp8"))
    assert alone.count("the rates of an A100-SXM4-80GB give them") == 2 and "an the chip" not in alone
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    cost = in_one_line(said(capsys, *CASE, "--chip", "H100,A100", "--tokens", "1T", "--prices", str(prices)))
    assert "A100-SXM4-80GB: EUR: none: found no price of chip 'A100-SXM4-80GB' among" in cost


def test_a_row_that_leaves_little_free_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt3_6.7B", "--devices", "8", "--chip", "H100,V100")
    several = found(capsys, *arguments)
    assert [each["rows"][0]["is_tight"] for each in several["chips"]] == [False, True]
    text = said(capsys, *arguments)
    assert [row_of(text, each["chip"])[-3].endswith("*") for each in several["chips"]] == [False, True]


def test_what_the_framework_lacks_of_the_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lacks = "assumed: latent_attention, which megatron does not have here; predicted only"
    for chips in ("B200,H200", "H200"):
        arguments = ("deepseek_v3", "--framework", "megatron", "--devices", "1024", "--chip", chips)
        assert in_one_line(said(capsys, *arguments)).count(lacks) == 1
    assert "predicted only" not in said(capsys, *CASE, "--chip", "H200")


def test_a_private_name_with_a_comma_is_one_chip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chips = tmp_path / "chips.yaml"
    chips.write_text(
        "schema: levelfield.chips/1\nvendors:\n  nvidia:\n"
        "    - {name: 'X1,80GB', device_is: card, memory_bytes: 85899345920, memory_source: a sample}\n"
    )
    assert "X1,80GB, 80 GiB each" in said(capsys, *CASE, "--chip", "X1,80GB", "--chips", str(chips))


def test_a_vendor_stands_for_its_chips(capsys: pytest.CaptureFixture[str]) -> None:
    chips = {chip.name for chip in Registry().vendor_file("amd").chips}
    several = found(capsys, *CASE, "--chip", "H100,AMD,MI300X")
    listed = [each["chip"] for each in several["chips"]] + [each["chip"] for each in several["not_planned"]]
    assert sorted(listed) == sorted({"H100-SXM5-80GB", *chips}) and len(chips) > 1
    assert several["base"] == "H100-SXM5-80GB"


def test_a_chip_of_a_maker_without_calibrated_runs_has_a_speed_and_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CASE, "--chip", "H100,MI300X,MI355X,A100")
    text, several = said(capsys, *arguments), found(capsys, *arguments)
    why = "amd: not calibrated; error unknown"
    for each in several["chips"]:
        speed = f"{each['rows'][0]['tokens_per_second_per_device']:,.0f}"
        has_ratio = each["chip"] in ("H100-SXM5-80GB", "A100-SXM4-80GB")
        assert (each["speed_over_base"] is not None, each["no_ratio"]) == (has_ratio, None if has_ratio else why)
        assert row_of(text, each["chip"])[-2] == speed
        assert (row_of(text, each["chip"])[-1] == "-") is not has_ratio
    assert f"MI355X, MI300X: no ratio: {why}" in in_one_line(text)


def test_nothing_is_divided_by_the_speed_of_such_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    """Ascend-910B1 has no speed at all, and is the first one all the same."""
    for chip, maker in (("MI300X", "amd"), ("Ascend-910B1", "ascend")):
        arguments = (*CASE, "--chip", f"{chip},H100,A100")
        text, several = said(capsys, *arguments), found(capsys, *arguments)
        assert several["base"] is None and "ratio: over" not in text and "planned ratios of" not in text
        assert {each["speed_over_base"] for each in several["chips"]} == {None}
        assert {row_of(text, each["chip"])[-1] for each in several["chips"]} == {"-"}
        why = f"{chip}, the first chip, is of {maker}: not calibrated; error unknown"
        assert f"H100-SXM5-80GB, A100-SXM4-80GB: no ratio: {why}" in in_one_line(text)
        assert next(each for each in several["chips"] if each["chip"] == "A100-SXM4-80GB")["no_ratio"] == why


def test_what_a_chip_cannot_is_said_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CASE, "--chip", "A100,V100,Ascend-910B1,B200")
    text = said(capsys, *arguments)
    lines = in_one_line(text)
    assert "none fits" in text and "V100-SXM2-16GB: no layout fits; the smallest is " in lines
    assert row_of(text, "Ascend-910B1")[-2:] == ["-", "-"] and "Ascend-910B1: assumed: peak of bf16" in lines
    assert [each["speed_over_base"] is None for each in found(capsys, *arguments)["chips"]] == [
        False,
        False,
        True,
        True,
    ]
    narrow = (*CASE, "--precision", "nvfp4", "--chip", "A100,B200")
    assert in_one_line(said(capsys, *narrow)).count("A100-SXM4-80GB: no plan: ") == 1
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
    row = next(each for each in several["chips"] if each["chip"] == "H100-SXM5-80GB")["rows"][0]
    h100 = row["training"]
    assert h100["cost"] == pytest.approx(2.0 * h100["device_hours"])
    ends = [end["seconds"] / 86400 for end in row["training_interval"]]
    assert row_of(table, "H100-SXM5-80GB")[2:5] == [f"{ends[0]:.1f}", "to", f"{ends[1]:.1f}"]
    assert row_of(table, "H100-SXM5-80GB")[5] == f"{h100['device_hours']:,.0f}"
    assert row_of(table, "A100-SXM4-80GB")[-1] == "-" and "A100-SXM4-80GB: EUR: none: " in in_one_line(table)
    assert "Ascend-910B1" not in table


@pytest.mark.parametrize("option", [("--explain", "0"), ("--calibrate", "latest"), ("--beyond", "2")])
def test_what_is_of_one_chip_is_refused_of_several(capsys: pytest.CaptureFixture[str], option: tuple[str, ...]) -> None:
    assert main(["plan", *CASE, "--chip", "H100,A100", *option]) == 2
    assert f"{option[0]}: found 2 chips, expected one" in in_one_line(capsys.readouterr().err)


def test_an_unknown_name_and_chips_without_any_plan_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for names, wanted in (
        ("H100,", "unknown vendor or chip ''"),
        ("H100,B2000", "unknown vendor or chip 'B2000'"),
        ("A100,H100", "A100-SXM4-80GB"),
    ):
        precision = ("--precision", "nvfp4") if wanted == "A100-SXM4-80GB" else ()
        assert main(["plan", *CASE, "--chip", names, *precision]) == 2
        assert wanted in in_one_line(capsys.readouterr().err)
