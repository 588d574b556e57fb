"""`plan --tokens`: what a training takes; nodes and networks of the makers; chips whose rates are assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from levelfield.report.words import significant
from test_plan_command import refused, said

PRICES = """\
schema: levelfield.prices/1
currency: EUR
chips:
  H100-SXM5-80GB: {per: device, rent: 2.0}
  A800-SXM4-80GB: {per: node, own: {capital: 87660, years: 4, utilisation: 0.5, power_per_kwh: 0.1, pue: 1.2}}
"""
CASE = ("llama3_8b", "--chip", "H100", "--top", "3")


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES)
    return str(path)


def test_time_energy_and_cost_follow_from_the_speed(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    found = json.loads(said(capsys, *CASE, "--devices", "16", "--tokens", "1.5T", "--prices", prices, "--json"))
    assert (found["tokens"], found["currency"], found["power_watts"]) == (1.5e12, "EUR", 700)
    for row in found["rows"]:
        hours = 1.5e12 / row["tokens_per_second_per_device"] / 3600
        assert row["training"]["device_hours"] == pytest.approx(hours)
        assert row["training"]["seconds"] == pytest.approx(3600 * hours / 16)
        assert row["training"]["kilowatt_hours"] == pytest.approx(0.7 * hours)
        assert row["training"]["cost"] == pytest.approx(2 * hours)


def test_the_table_of_a_training_has_80_columns_and_its_sources(
    capsys: pytest.CaptureFixture[str], prices: str
) -> None:
    text = said(capsys, *CASE, "--tokens", "300B", "--prices", prices)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "a training on 300,000,000,000 tokens row days device-hours MWh EUR 1 " in words
    assert "MWh: at most, 700 W for each device and no host (meterpreter.org" in words
    assert "EUR: H100-SXM5-80GB: rent of 2 EUR an hour per device" in words


def test_a_bill_has_the_interval_of_the_speed(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    asked = ("--tokens", "300B", "--prices", prices)
    row = json.loads(said(capsys, *CASE, *asked, "--json"))["rows"][0]
    slow, fast = row["tokens_per_second_interval"]
    for end, speed in zip(row["training_interval"], (fast, slow), strict=True):
        hours = 3e11 / speed / 3600
        assert end["device_hours"] == pytest.approx(hours)
        assert end["kilowatt_hours"] == pytest.approx(0.7 * hours)
        assert end["cost"] == pytest.approx(2 * hours)
    words = " ".join(said(capsys, *CASE, *asked).split())
    rows = json.loads(said(capsys, *CASE, *asked, "--json"))["rows"]
    taken = next(number for number, each in enumerate(rows) if not each["is_tight"])
    assert taken > 0, "the fastest row leaves too little memory"
    least, most = (significant(end["cost"]) for end in rows[taken]["training_interval"])
    assert f"row {taken + 1} in 90 of 100 runs: " in words
    assert f"{least} to {most} EUR, as its speed is within 75% to 114%" in words
    mixture = ("mixtral_8x7b", "--chip", "H100", "--devices", "64", "--top", "1", *asked)
    assert "no interval: no published run near to this one" in " ".join(said(capsys, *mixture).split())
    assert json.loads(said(capsys, *mixture, "--json"))["rows"][0]["training_interval"] is None


def test_the_interval_is_of_the_row_that_leaves_memory_free_also_where_it_is_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("llama3_70b", "--chip", "H100", "--devices", "1024", "--framework", "megatron", "--tokens", "15T")
    few = " ".join(said(capsys, *arguments, "--top", "2").split())
    rows = json.loads(said(capsys, *arguments, "--top", "100", "--json"))["rows"]
    row = next(each for each in rows if not each["is_tight"])
    low, high = (end["seconds"] / 86400 for end in row["training_interval"])
    assert f"{row['layout']}, not shown here, in 90 of 100 runs: {low:.1f} to {high:.1f} days" in few


def test_a_chip_whose_maker_has_no_run_in_the_fit_has_no_interval(
    capsys: pytest.CaptureFixture[str], prices: str
) -> None:
    asked = ("llama3_8b", "--chip", "MI300X", "--tokens", "300B", "--top", "2")
    words = " ".join(said(capsys, *asked).split())
    assert words.count("no published run on a chip of amd set the rates") == 2 and "90 of 100" not in words
    row = json.loads(said(capsys, *asked, "--json"))["rows"][0]
    assert row["tokens_per_second_interval"] is row["training_interval"] is None and row["training"]["seconds"] > 0


def test_a_plan_without_a_layout_says_that_it_has_no_cost(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    asked = ("llama3_405b", "--chip", "H100", "--devices", "8", "--tokens", "1T")
    words = " ".join(said(capsys, *asked, "--prices", prices).split())
    assert "no layout fits" in words
    assert "1,000,000,000,000 tokens has no time and no cost here, as no layout runs it" in words
    assert "tokens has no time here" in " ".join(said(capsys, *asked).split())


@pytest.mark.parametrize(
    ("text", "tokens"), [("1T", 1e12), ("300B", 3e11), ("2e12", 2e12), ("15.6t", 15.6e12), ("7000", 7e3), ("1K", 1e3)]
)
def test_the_tokens_of_a_text(capsys: pytest.CaptureFixture[str], text: str, tokens: float) -> None:
    assert json.loads(said(capsys, *CASE, "--tokens", text, "--json"))["tokens"] == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["0", "nan", "inf", "1 T", "1TB", "1e99", "2e12T", "1T\n2T", "9" * 400])
def test_other_texts_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert "expected 1 to 1e18 tokens, such as 300B" in refused(capsys, *CASE, "--tokens", text)


def test_prices_alone_are_refused(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    assert "--prices: expected --tokens N beside it" in refused(capsys, *CASE, "--prices", prices)


def test_a_chip_without_a_price_or_a_power_has_no_cost_with_the_reason(
    capsys: pytest.CaptureFixture[str], prices: str
) -> None:
    asked = ("llama3_8b", "--top", "1", "--tokens", "1T", "--prices", prices)
    words = " ".join(said(capsys, *asked, "--chip", "H200").split())
    assert "EUR: none: found no price of chip 'H200-SXM-141GB' among" in words
    words = " ".join(said(capsys, *asked, "--chip", "A800").split())
    assert "MWh: none, as no source gives the power of A800-SXM4-80GB" in words
    assert "EUR: none: the run has no energy, so its power has no cost" in words


def test_assumed_rates_give_an_order_and_no_speed_time_cost_or_utilisation(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama3_8b", "--chip", "910B1", "--top", "3", "--tokens", "1T")
    found = json.loads(said(capsys, *asked, "--json"))
    assert found["rates"] == "assumed: the rates of an A100-SXM4-80GB"
    shares = [row["speed_over_first_row"] for row in found["rows"]]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True) and shares[2] > 0.3
    for row in found["rows"]:
        assert row["tokens_per_second_per_device"] is row["step_seconds"] is row["training"] is None
    words = " ".join(said(capsys, *asked).split())
    assert "the speed of Ascend-910B1 is not known" in words and "no speed and no MFU follow from them" in words
    assert "follow from them; tight: leaves less than " in words
    explained = said(capsys, *asked, "--explain", "1")
    assert "s, by the assumed rates" in explained and "tokens/s on each device" not in explained
    known = json.loads(said(capsys, *CASE, "--json"))
    assert known["rates"] == "of the chip" and "speed_over_first_row" not in known["rows"][0]


def test_an_unknown_memory_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(said(capsys, "llama3_8b", "--chip", "910B2", "--top", "1").split())
    assert "enough memory: that of Ascend-910B2 is not public, so every layout counts as fitting" in text


@pytest.mark.parametrize(
    ("chip", "devices", "nodes", "gigabits"),
    [("H100", 16, 2, 8 * 400), ("A100", 16, 2, 8 * 200), ("GB200", 256, 4, 64 * 400), ("GB300", 144, 2, 72 * 800)],
)
def test_nodes_and_networks_are_those_of_the_makers(
    capsys: pytest.CaptureFixture[str], chip: str, devices: int, nodes: int, gigabits: int
) -> None:
    asked = ("llama3_70b", "--framework", "megatron", "--chip", chip, "--devices", str(devices), "--json", "--top", "1")
    found = json.loads(said(capsys, *asked))
    assert (found["nodes"], found["nodes"] * found["devices_per_node"]) == (nodes, devices)
    assert found["network_bytes_per_second"] == pytest.approx(gigabits * 1e9 / 8)


def test_devices_that_fill_no_part_of_a_rack_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected a multiple of" in refused(capsys, "llama3_8b", "--chip", "GB200", "--devices", "254")


def test_products_in_nvfp4_are_faster_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("flagperf_llama3_8b_fp8", "--framework", "megatron", "--chip", "GB300", "--devices", "8", "--top", "1")
    found = [json.loads(said(capsys, *asked, "--precision", name, "--json")) for name in ("fp8", "nvfp4")]
    rates = [each["rows"][0]["tokens_per_second_per_device"] for each in found]
    assert 1.1 < rates[1] / rates[0] < 3
    assert found[0]["rows"][0]["memory_parts_bytes"] == found[1]["rows"][0]["memory_parts_bytes"]
    assert "fp8 with products in NVFP4, in which no framework here trains; predicted only" in found[1]["assumed"]
    assert "nvfp4" in refused(capsys, "flagperf_llama3_8b_fp8", "--chip", "H100", "--precision", "nvfp4")
