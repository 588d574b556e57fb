"""`plan --tokens`: what a training takes; nodes and networks of the makers; chips whose rates are assumed.

test_plan_words.py has the sentences.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.report.words import significant
from plan_outputs import in_one_line, plan_output, plan_refusal, plan_values

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
    plan = plan_values(capsys, *CASE, "--devices", "16", "--tokens", "1.5T", "--prices", prices)
    assert (plan["tokens"], plan["currency"], plan["power_watts"]) == (1.5e12, "EUR", 700)
    for row in plan["rows"]:
        hours = 1.5e12 / row["tokens_per_second_per_device"] / 3600
        assert row["training"]["device_hours"] == pytest.approx(hours)
        assert row["training"]["seconds"] == pytest.approx(3600 * hours / 16)
        assert row["training"]["kilowatt_hours"] == pytest.approx(0.7 * hours)
        assert row["training"]["cost"] == pytest.approx(2 * hours)


def test_the_table_of_a_training_is_that_of_its_rows(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    question = (*CASE, "--tokens", "300B", "--prices", prices)
    _, table = plan_output(capsys, *question).split("a training on")
    lines, rows = table.splitlines(), plan_values(capsys, *question)["rows"]
    assert lines[0].split()[0] == "300,000,000,000"
    assert lines[1].split() == ["row", "days", "device-hours", "MWh", "EUR"]
    for number, (line, row) in enumerate(zip(lines[2:], rows, strict=False), start=1):
        training = row["training"]
        figures = (training["seconds"] / 86400, training["device_hours"], training["kilowatt_hours"] / 1000)
        assert line.split() == [str(number), *map(significant, (*figures, training["cost"]))]


def test_a_bill_has_the_interval_of_the_speed(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    question = ("--tokens", "300B", "--prices", prices)
    rows = plan_values(capsys, *CASE, *question)["rows"]
    row = rows[0]
    slow, fast = row["tokens_per_second_interval"]
    for end, speed in zip(row["training_interval"], (fast, slow), strict=True):
        hours = 3e11 / speed / 3600
        assert end["device_hours"] == pytest.approx(hours)
        assert end["kilowatt_hours"] == pytest.approx(0.7 * hours)
        assert end["cost"] == pytest.approx(2 * hours)
    roomy = next(number for number, row in enumerate(rows) if not row["is_tight"])
    assert roomy > 0, "the fastest row leaves too little memory"
    least, most = (significant(end["cost"]) for end in rows[roomy]["training_interval"])
    *_, interval = in_one_line(plan_output(capsys, *CASE, *question)).partition(f" row {roomy + 1}, expected:")
    assert f" {least} to {most} EUR" in interval
    mixture = ("mixtral_8x7b", "--chip", "H100", "--devices", "64", "--top", "1", *question)
    slow, fast = plan_values(capsys, *mixture)["rows"][0]["training_interval"]
    assert fast["seconds"] > slow["seconds"] > 0


def test_the_interval_is_of_the_row_that_leaves_memory_free_also_where_it_is_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("llama3_70b", "--chip", "H100", "--devices", "1024", "--framework", "megatron", "--tokens", "15T")
    few = in_one_line(plan_output(capsys, *arguments, "--top", "2"))
    rows = plan_values(capsys, *arguments, "--top", "100")["rows"]
    row = next(row for row in rows if not row["is_tight"])
    low, high = (end["seconds"] / 86400 for end in row["training_interval"])
    *_, interval = few.partition(f" {row['layout']}, not")
    assert f" {low:.1f} to {high:.1f} days" in interval


def test_a_chip_without_public_rates_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    row = plan_values(capsys, "llama3_8b", "--chip", "Ascend-910B1", "--tokens", "300B", "--top", "2")["rows"][0]
    assert row["tokens_per_second_interval"] is row["training_interval"] is row["training"] is None


def test_a_plan_without_a_layout_says_that_it_has_no_cost(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    question = ("llama3_405b", "--chip", "H100", "--devices", "8", "--tokens", "1T")
    assert plan_values(capsys, *question, "--prices", prices)["rows"] == []
    assert "cost" in plan_output(capsys, *question, "--prices", prices)
    assert "cost" not in plan_output(capsys, *question)


@pytest.mark.parametrize(
    ("text", "tokens"), [("1T", 1e12), ("300B", 3e11), ("2e12", 2e12), ("15.6t", 15.6e12), ("7000", 7e3), ("1K", 1e3)]
)
def test_the_tokens_of_a_text(capsys: pytest.CaptureFixture[str], text: str, tokens: float) -> None:
    assert plan_values(capsys, *CASE, "--tokens", text)["tokens"] == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["0", "nan", "inf", "1 T", "1TB", "1e99", "2e12T", "1T\n2T", "9" * 400])
def test_other_texts_are_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    message = plan_refusal(capsys, *CASE, "--tokens", text)
    assert "--tokens" in message and "1e18 tokens," in message


def test_prices_alone_are_refused(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    message = plan_refusal(capsys, *CASE, "--prices", prices)
    assert "--prices:" in message and "--tokens N" in message


def test_a_chip_without_a_price_or_a_power_has_no_cost(capsys: pytest.CaptureFixture[str], prices: str) -> None:
    question = ("llama3_8b", "--top", "1", "--tokens", "1T", "--prices", prices, "--chip")
    unpriced, unpowered = (plan_values(capsys, *question, chip) for chip in ("H200", "A800"))
    assert unpriced["rows"][0]["training"]["cost"] is None
    assert unpriced["rows"][0]["training"]["kilowatt_hours"] > 0
    assert unpowered["power_watts"] is unpowered["rows"][0]["training"]["kilowatt_hours"] is None
    assert unpowered["rows"][0]["training"]["cost"] is None


def test_assumed_rates_give_an_order_and_no_speed_time_cost_or_utilisation(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("llama3_8b", "--chip", "910B1", "--top", "3", "--tokens", "1T")
    plan = plan_values(capsys, *question)
    assert plan["rates"].startswith("assumed:") and plan["rates"].endswith(" A100-SXM4-80GB")
    shares = [row["speed_over_first_row"] for row in plan["rows"]]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True) and shares[2] > 0.3
    for row in plan["rows"]:
        assert row["tokens_per_second_per_device"] is row["step_seconds"] is row["training"] is None
    assert "tokens/s" not in plan_output(capsys, *question, "--explain", "1")
    rated = plan_values(capsys, *CASE)
    assert not rated["rates"].startswith("assumed") and "speed_over_first_row" not in rated["rows"][0]


def test_every_layout_fits_into_an_unknown_memory(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_values(capsys, "llama3_8b", "--chip", "910B2", "--top", "1")
    assert plan["capacity_bytes"] is None and plan["beyond"] == []
    assert any("memory:" in assumption and "Ascend-910B2" in assumption for assumption in plan["assumed"])


@pytest.mark.parametrize(
    ("chip", "devices", "nodes", "gigabits"),
    [("H100", 16, 2, 8 * 400), ("A100", 16, 2, 8 * 200), ("GB200", 256, 4, 64 * 400), ("GB300", 144, 2, 72 * 800)],
)
def test_nodes_and_networks_are_those_of_the_makers(
    capsys: pytest.CaptureFixture[str], chip: str, devices: int, nodes: int, gigabits: int
) -> None:
    question = ("llama3_70b", "--framework", "megatron", "--chip", chip, "--devices", str(devices), "--top", "1")
    plan = plan_values(capsys, *question)
    assert (plan["nodes"], plan["nodes"] * plan["devices_per_node"]) == (nodes, devices)
    assert plan["network_bytes_per_second"] == pytest.approx(gigabits * 1e9 / 8)


def test_devices_that_fill_no_part_of_a_rack_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    message = plan_refusal(capsys, "llama3_8b", "--chip", "GB200", "--devices", "254")
    assert "254" in message and "multiple" in message


def test_products_in_nvfp4_are_faster_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("flagperf_llama3_8b_fp8", "--framework", "megatron", "--chip", "GB300", "--devices", "8", "--top", "1")
    fp8, nvfp4 = (plan_values(capsys, *question, "--precision", name) for name in ("fp8", "nvfp4"))
    rates = [plan["rows"][0]["tokens_per_second_per_device"] for plan in (fp8, nvfp4)]
    assert 1.1 < rates[1] / rates[0] < 3
    assert fp8["rows"][0]["memory_parts_bytes"] == nvfp4["rows"][0]["memory_parts_bytes"]
    assert [any("NVFP4" in text for text in plan["assumed"]) for plan in (fp8, nvfp4)] == [False, True]
    assert "nvfp4" in plan_refusal(capsys, "flagperf_llama3_8b_fp8", "--chip", "H100", "--precision", "nvfp4")
