"""`plan` on several chips: the fastest row of each that leaves memory free. test_plan_words.py has the sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_ERRORS
from plan_outputs import in_one_line, plan_output, plan_refusal, plan_values

CASE = ("llama3_8b", "--devices", "8")
PRICES = """\
schema: levelfield.prices/1
currency: EUR
chips:
  H100-SXM5-80GB: {per: device, rent: 2.0}
"""


def row_of(text: str, chip: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(chip)).split()


def test_each_chip_has_its_roomy_row_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan_output(capsys, *CASE, "--chip", "H100, H200,A100,H100")
    assert max(map(len, text.splitlines())) <= 80
    several = plan_values(capsys, *CASE, "--chip", "H100,H200,A100")
    assert several["schema"] == "levelfield.planned_chips/1" and several["base"] == "H100-SXM5-80GB"
    assert [plan["chip"] for plan in several["chips"]] == ["H200-SXM-141GB", "H100-SXM5-80GB", "A100-SXM4-80GB"]
    base = next(plan for plan in several["chips"] if plan["chip"] == several["base"])["rows"][0]
    for plan in several["chips"]:
        alone = plan_values(capsys, *CASE, "--chip", plan["chip"])
        (row,) = plan["rows"]
        assert row == next(row for row in alone["rows"] if not row["is_tight"])
        speed = row["tokens_per_second_per_device"]
        assert plan["speed_over_base"] == speed / base["tokens_per_second_per_device"]
        cells = row_of(text, plan["chip"])
        assert (cells[-3], cells[-1]) == (f"{speed:,.0f}", f"{plan['speed_over_base']:.2f}")


def test_a_chip_whose_speed_no_published_run_set_stands_last(capsys: pytest.CaptureFixture[str]) -> None:
    plans = plan_values(capsys, *CASE, "--chip", "MI355X,H100,A100")["chips"]
    speeds = [plan["rows"][0]["tokens_per_second_per_device"] for plan in plans]
    assert [plan["chip"] for plan in plans] == ["H100-SXM5-80GB", "A100-SXM4-80GB", "MI355X"]
    assert speeds[2] > speeds[0], "its speed alone would put it first"


@pytest.mark.parametrize(
    ("question", "is_printed"),
    [
        ((*CASE, "--chip", "H100,A100"), True),
        pytest.param((*CASE, "--chip", "MI300X,MI325X"), False, marks=pytest.mark.thorough),
        ((*CASE, "--chip", "H100,MI300X"), False),
        pytest.param((*CASE, "--chip", "H100,Ascend-910B1"), False, marks=pytest.mark.thorough),
        (("mixtral_8x7b", "--devices", "64", "--chip", "H100,H200"), False),
    ],
)
def test_the_error_of_ratios_is_printed_for_dense_models_on_chips_with_published_pairs(
    question: tuple[str, ...], is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    text = in_one_line(plan_output(capsys, *question))
    middle, most = CHIP_RATIO_ERRORS
    assert all(
        (part in text) == is_printed
        for part in (f"{CHIP_PAIRS} published pairs", f"median error {100 * middle:.0f} %", f"max {100 * most:.0f} %")
    )


def test_an_assumption_for_several_chips_names_no_single_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = in_one_line(plan_output(capsys, *CASE, "--chip", "H100,A100,V100", "--precision", "fp8"))
    assert text.count("rates of") == text.count("of an A100-SXM4-80GB") == 2


def test_a_row_that_leaves_little_free_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt3_6.7B", "--devices", "8", "--chip", "H100,V100")
    several = plan_values(capsys, *arguments)
    assert [plan["rows"][0]["is_tight"] for plan in several["chips"]] == [False, True]
    text = plan_output(capsys, *arguments)
    assert [row_of(text, plan["chip"])[-4].endswith("*") for plan in several["chips"]] == [False, True]


def test_an_assumption_of_all_chips_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """megatron lacks a part of this model."""
    for chips in ("B200,H200", "H200"):
        arguments = ("deepseek_v3", "--framework", "megatron", "--devices", "1024", "--chip", chips)
        assert plan_output(capsys, *arguments).count("latent_attention,") == 1, chips
    assert "latent_attention" not in plan_output(capsys, *CASE, "--chip", "H200")


def test_a_private_name_with_a_comma_is_one_chip(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chips = tmp_path / "chips.yaml"
    chips.write_text(
        "schema: levelfield.chips/1\nvendors:\n  nvidia:\n"
        "    - {name: 'X1,80GB', device_is: card, memory_bytes: 85899345920, memory_source: a sample}\n"
    )
    plan = plan_values(capsys, *CASE, "--chip", "X1,80GB", "--chips", str(chips))
    assert (plan["chip"], plan["capacity_bytes"]) == ("X1,80GB", 80 * 2**30)


def test_a_vendor_stands_for_its_chips(capsys: pytest.CaptureFixture[str]) -> None:
    chips = {chip.name for chip in Registry().vendor_file("amd").chips}
    several = plan_values(capsys, *CASE, "--chip", "H100,AMD,MI300X")
    names = [plan["chip"] for plan in [*several["chips"], *several["not_planned"]]]
    assert sorted(names) == sorted({"H100-SXM5-80GB", *chips}) and len(chips) > 1
    assert several["base"] == "H100-SXM5-80GB"


def test_a_chip_of_a_maker_without_calibrated_runs_has_a_speed_and_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CASE, "--chip", "H100,MI300X,MI355X,A100")
    text, several = plan_output(capsys, *arguments), plan_values(capsys, *arguments)
    for plan in several["chips"]:
        speed = f"{plan['rows'][0]['tokens_per_second_per_device']:,.0f}"
        has_ratio = plan["chip"] in ("H100-SXM5-80GB", "A100-SXM4-80GB")
        assert (plan["speed_over_base"] is not None) == (plan["no_ratio"] is None) == has_ratio
        assert has_ratio or plan["no_ratio"].startswith("amd:")
        assert row_of(text, plan["chip"])[-3] == speed
        assert (row_of(text, plan["chip"])[-1] == "-") is not has_ratio


@pytest.mark.parametrize(
    ("chips", "options", "is_within"),
    [
        ("A100,A800", (), True),
        pytest.param("H100,H200,A100,B200,MI355X", (), False, marks=pytest.mark.thorough),
        pytest.param("H100,H200,GB200", ("--framework", "megatron"), True, marks=pytest.mark.thorough),
        pytest.param("H100,H200,B200", ("--framework", "jax"), False, marks=pytest.mark.thorough),
        ("H100,B200,A100", ("--precision", "fp8"), False),
    ],
)
def test_each_row_has_the_error_of_rows_like_it_and_no_ratio_within_it(
    chips: str, options: tuple[str, ...], is_within: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*CASE, *options, "--chip", chips)
    text, several = plan_output(capsys, *arguments), plan_values(capsys, *arguments)
    base = next(plan for plan in several["chips"] if plan["chip"] == several["base"])
    any_within = False
    for plan in several["chips"]:
        cells, errors = row_of(text, plan["chip"]), (plan["error_of_such_rows"], plan["such_rows"])
        assert cells[-2] == (f"{errors[0]:.0%}" if errors[1] else "-")
        assert not errors[1] or f"error: of {errors[1]} run(s) by" in in_one_line(text)
        speed, first = (p["rows"][0]["tokens_per_second_per_device"] for p in (plan, base))
        if plan["chip"] in (base["chip"], "MI355X") or not speed:
            continue
        error = max(CHIP_RATIO_ERRORS[0], errors[0] or 0, base["error_of_such_rows"] or 0)
        within = max(speed / first, first / speed) - 1 <= error
        assert (plan["speed_over_base"] is None) == within == ("within" in cells) == bool(plan["no_ratio"])
        any_within = any_within or within
    assert any_within == is_within


def test_nothing_is_divided_by_the_speed_of_such_a_chip(capsys: pytest.CaptureFixture[str]) -> None:
    """Ascend-910B1 has no speed at all, and is the first one all the same."""
    for chip, maker in (("MI300X", "amd"), ("Ascend-910B1", "ascend")):
        arguments = (*CASE, "--chip", f"{chip},H100,A100")
        text, several = plan_output(capsys, *arguments), plan_values(capsys, *arguments)
        assert several["base"] is None and "ratio: over" not in text and "planned ratios" not in text
        assert {plan["speed_over_base"] for plan in several["chips"]} == {None}
        assert {row_of(text, plan["chip"])[-1] for plan in several["chips"]} == {"-"}
        (reason,) = {
            plan["no_ratio"] for plan in several["chips"] if plan["chip"] in ("A100-SXM4-80GB", "H100-SXM5-80GB")
        }
        assert reason.startswith(f"{chip},") and f"of {maker}: not calibrated" in reason


def test_a_chip_without_a_plan_stands_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*CASE, "--chip", "A100,V100,Ascend-910B1,B200")
    text = plan_output(capsys, *arguments)
    assert row_of(text, "V100-SXM2-16GB")[1:3] == ["none", "fits"]
    assert row_of(text, "Ascend-910B1")[-3:] == ["-", "-", "-"]
    has_ratio = [plan["speed_over_base"] is not None for plan in plan_values(capsys, *arguments)["chips"]]
    assert has_ratio == [True, True, False, False]
    (unplanned,) = plan_values(capsys, *CASE, "--precision", "nvfp4", "--chip", "A100,B200")["not_planned"]
    assert unplanned["chip"] == "A100-SXM4-80GB" and "nvfp4" in unplanned["why"]


def test_different_numbers_of_devices_are_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan_output(capsys, "llama3_70b", "--devices", "72", "--framework", "megatron", "--chip", "H100,GB200")
    assert "devices," not in text.splitlines()[0] and "9 x 8" in text and "1 x 72" in text


def test_a_training_on_each_chip_has_its_time_and_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    arguments = (*CASE, "--chip", "H100,A100,Ascend-910B1", "--tokens", "1T", "--prices", str(prices))
    several = plan_values(capsys, *arguments)
    table = plan_output(capsys, *arguments).split("a training on 1,000,000,000,000 tokens")[1]
    row = next(plan for plan in several["chips"] if plan["chip"] == "H100-SXM5-80GB")["rows"][0]
    h100 = row["training"]
    assert h100["cost"] == pytest.approx(2.0 * h100["device_hours"])
    ends = [end["seconds"] / 86400 for end in row["training_interval"]]
    assert row_of(table, "H100-SXM5-80GB")[2:5] == [f"{ends[0]:.1f}", "to", f"{ends[1]:.1f}"]
    assert row_of(table, "H100-SXM5-80GB")[5] == f"{h100['device_hours']:,.0f}"
    assert row_of(table, "A100-SXM4-80GB")[-1] == "-"
    assert "Ascend-910B1" not in table


@pytest.mark.parametrize("option", [("--explain", "0"), ("--calibrate", "latest"), ("--show-oom", "2")])
def test_options_of_one_chip_are_refused_with_several(
    capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    message = plan_refusal(capsys, *CASE, "--chip", "H100,A100", *option)
    assert f"{option[0]}: found 2" in message


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (("H100,",), "unknown vendor or chip ''"),
        (("H100,B2000",), "unknown vendor or chip 'B2000'"),
        (("A100,H100", "--precision", "nvfp4"), "A100-SXM4-80GB"),
    ],
)
def test_an_unknown_name_and_chips_without_any_plan_are_refused(
    question: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in plan_refusal(capsys, *CASE, "--chip", *question)
