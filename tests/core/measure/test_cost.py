"""The cost of a million tokens: one example by hand, and files and units that are wrong on purpose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_records import record, repeats
from levelfield.cli.main import main
from levelfield.compare.comparison import compare, comparison_json, comparison_sheets
from levelfield.compare.sides import cost_quantity, side_of
from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.measure.cost import ResourceUse, cost_per_million_tokens, training_bill
from levelfield.report.costs import RunCosts, format_results
from levelfield.report.sheets import format_text
from levelfield.report.words import significant
from levelfield.specs.base import parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.prices import Prices
from levelfield.specs.result import Result
from levelfield.specs.vendor import HOST_SHARE

Change = Callable[[dict[str, Any]], object]
OWN = {"capital": 87660.0, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.3, "pue": 1.5}
USE = ResourceUse("X1", False, nodes=2, devices=16, tokens_per_second=20_000.0, joules_per_token=0.6)


def content(**price: Any) -> dict[str, Any]:
    return {"schema": "levelfield.prices/1", "currency": "EUR", "chips": {"X1": {"per": "node", **price}}}


def prices(**price: Any) -> Prices:
    return parse(Prices, content(**price), "prices.yaml")


def test_one_example_by_hand() -> None:
    """Two nodes of 8 devices train 20,000 tokens/s together, and each token takes 0.6 J."""
    # 87,660 EUR a node over 4 years of 8,766 h, half of them in use: 87,660 / 17,532 h = 5 EUR/h, 10 EUR/h for two.
    # 20,000 tokens/s are 72 million tokens an hour. 10 EUR / 72 = 0.138889 EUR per million tokens.
    # 1e6 tokens take 600,000 J = 0.166667 kWh; with PUE 1.5 0.25 kWh, at 0.30 EUR/kWh 0.075 EUR.
    million = cost_per_million_tokens(USE, prices(own=OWN))
    assert million.machine == pytest.approx(10 / 72) and million.power == pytest.approx(0.075)
    assert million.value == pytest.approx(0.213889, abs=1e-6)


def test_a_training_by_hand() -> None:
    # 7.2e12 tokens at 20,000 tokens/s are 3.6e8 s = 100,000 h; 16 devices 1.6 million device-hours.
    # 0.6 J x 7.2e12 / 3.6e6 = 1.2 million kWh. 0.213889 EUR a million tokens: 1.54 million EUR.
    bill = training_bill(USE, 7.2e12, prices(own=OWN))
    assert (bill.seconds, bill.device_hours) == pytest.approx((3.6e8, 1.6e6))
    assert bill.kilowatt_hours == pytest.approx(1.2e6) and bill.cost == pytest.approx(1.54e6)
    assert training_bill(USE, 7.2e12).cost is None and training_bill(USE, 7.2e12).reason is None


def test_a_training_without_power_has_no_energy_and_an_owned_one_no_cost() -> None:
    reason = "no source gives it"
    use = replace(USE, joules_per_token=None, missing_energy_reason=reason)
    bill = training_bill(use, 1e12, prices(own=OWN))
    assert bill.kilowatt_hours is None and bill.cost is None
    assert (bill.reason or "").endswith(f": {reason}")
    assert training_bill(use, 1e12, prices(rent=3.0)).cost == pytest.approx(6 / 72 * 1e6)


@pytest.mark.parametrize(
    ("rate", "tokens"), [(math.nan, 1e12), (0.0, 1e12), (None, 1e12), (1.0, math.nan), (1.0, 0.0), (1.0, math.inf)]
)
def test_a_training_needs_a_speed_and_tokens(rate: float | None, tokens: float) -> None:
    with pytest.raises(ValueError, match=f"{tokens} tokens at {rate} "):
        training_bill(replace(USE, tokens_per_second=rate), tokens)


def test_a_rent_is_paid_per_device_or_per_node_of_the_run() -> None:
    # 3 EUR/h for each of 16 devices are 48 EUR/h; for each of 2 nodes 6 EUR/h; 72 million tokens an hour.
    assert cost_per_million_tokens(USE, prices(rent=3.0, per="device")).value == pytest.approx(48 / 72)
    assert cost_per_million_tokens(USE, prices(rent=3.0)).value == pytest.approx(6 / 72)
    assert cost_per_million_tokens(USE, prices(rent=3.0)).power is None


@pytest.mark.parametrize(
    ("use", "price", "text"),
    [
        ({"chip": "X2"}, {"rent": 3.0}, "found no price of chip 'X2' among X1"),
        ({"is_host_share": True}, {"rent": 3.0, "per": "device"}, "give its price per node"),
        ({"tokens_per_second": None}, {"rent": 3.0}, "no speed"),
        ({"tokens_per_second": math.nan}, {"rent": 3.0}, "no speed"),
        ({"joules_per_token": None, "missing_energy_reason": "no reading"}, {"own": OWN}, "no cost: no reading"),
        ({"joules_per_token": math.nan}, {"own": OWN}, "no energy"),
    ],
)
def test_without_a_term_there_is_no_cost_and_a_reason(use: dict[str, Any], price: Any, text: str) -> None:
    million = cost_per_million_tokens(ResourceUse(**{**vars(USE), **use}), prices(**price))
    assert million.value is None and text in str(million.reason)


def test_a_rent_needs_no_energy_and_a_share_of_a_host_has_the_price_of_its_host() -> None:
    use = ResourceUse(**{**vars(USE), "joules_per_token": None, "is_host_share": True})
    assert cost_per_million_tokens(use, prices(rent=3.0)).value == pytest.approx(6 / 72)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c["chips"]["X1"].pop("own"), "found neither of rent and own"),
        (lambda c: c["chips"]["X1"].update(rent=2.0), "found both of rent and own"),
        (lambda c: c["chips"]["X1"].update(currency="USD"), "found a currency of its own, 'USD'"),
        (lambda c: c.update(currency=["EUR", "USD"]), "key 'currency'"),
        (lambda c: c.update(currency="EUR/USD"), "key 'currency'"),
        (lambda c: c.pop("currency"), "key 'currency': missing"),
        (lambda c: c["chips"]["X1"].pop("per"), "key 'chips.X1.per': missing"),
        (lambda c: c["chips"]["X1"].update(per="rack"), "key 'chips.X1.per': found 'rack'"),
        (lambda c: c["chips"]["X1"]["own"].update(pue=0.9), "key 'chips.X1.own.pue': found 0.9"),
        (lambda c: c["chips"]["X1"]["own"].update(pue=130), "key 'chips.X1.own.pue': found 130"),
        (lambda c: c["chips"]["X1"]["own"].update(utilisation=70), "key 'chips.X1.own.utilisation': found 70"),
        (lambda c: c["chips"]["X1"]["own"].update(utilisation=0), "key 'chips.X1.own.utilisation': found 0"),
        (lambda c: c["chips"]["X1"]["own"].update(years=48), "key 'chips.X1.own.years': found 48"),
        (lambda c: c["chips"]["X1"]["own"].update(capital=-1.0), "key 'chips.X1.own.capital': found -1.0"),
        (lambda c: c["chips"]["X1"]["own"].update(capital=math.nan), "key 'chips.X1.own.capital': found nan"),
        (lambda c: c["chips"]["X1"]["own"].update(power_per_kwh=math.inf), "key 'chips.X1.own.power_per_kwh'"),
        (lambda c: c["chips"]["X1"]["own"].update(power_per_kwh="0.3"), "expected a number"),
        (lambda c: c["chips"]["X1"]["own"].pop("pue"), "key 'chips.X1.own.pue': missing"),
        (lambda c: c["chips"]["X1"]["own"].update(power_per_mwh=300), "found 300); nearest: power_per_kwh"),
        (lambda c: c.update(chips={}), "key 'chips'"),
    ],
)
def test_a_wrong_file_is_refused_with_its_key(change: Change, text: str) -> None:
    wrong = content(own=dict(OWN))
    parse(Prices, wrong, "prices.yaml")
    change(wrong)
    with pytest.raises(DocumentError) as error:
        parse(Prices, wrong, "prices.yaml")
    assert text in str(error.value) and "prices.yaml" in str(error.value)


def test_a_side_has_the_costs_of_its_runs_and_a_ratio_of_them() -> None:
    """B is twice as fast by the same rent, so it costs half."""
    sides = [side_of("A", repeats(1000, 1010, 990)), side_of("B", repeats(2000, 2020, 1980, first=10))]
    rent = prices(rent=3.6)
    comparison = compare(sides, prices=rent)
    rate, figure = comparison.figures[0], comparison.figures[-1]
    # 3.6 / 3600 / 1000 tokens/s = 1e-6 a token, 1 a million; the interval is that of the three costs
    assert figure.sides[0].values == pytest.approx((1.0, 1 / 1.01, 1 / 0.99))
    assert figure.ratios[0].value == pytest.approx(0.5) and figure.ratios[0].standing == "lower"
    highest = rate.ratios[0].high
    assert highest is not None and figure.ratios[0].low == pytest.approx(1 / highest)
    text = format_text(comparison_sheets(comparison))
    assert "EUR/M tokens" in text
    assert "X1: rent" in text and " 3.6 EUR " in text
    values = comparison_json(comparison)
    assert values["figures"][-1]["unit"] == "EUR/1e6 tokens"
    assert values["prices"]["currency"] == "EUR"


def test_the_cost_of_a_record_has_all_its_devices() -> None:
    """Two nodes of 8 devices with 1,000 tokens/s on each device, at 3.60 an hour for each: 1 per million tokens."""
    run = record(1, 1000, devices=16, nodes=2)
    assert cost_quantity(prices(rent=3.6, per="device")).read(run) == pytest.approx(1.0)
    assert cost_quantity(prices(rent=3.6)).read(run) == pytest.approx(2 / 16)
    share = record(1, 1000, device_is=HOST_SHARE)
    quantity = cost_quantity(prices(rent=3.6, per="device"))
    assert quantity.read(share) is None and "per node" in (quantity.missing_reason(share) or "")


@pytest.fixture
def result(run: RunPaths) -> Result:
    return collect(run)


def test_a_report_has_the_cost_in_every_format(
    run: RunPaths, result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("schema: levelfield.prices/1\ncurrency: EUR\nchips: {F1: {per: device, rent: 2.0}}\n")
    assert result.throughput and result.chip == "F1"
    expected = 2.0 * result.devices / 3600 / result.throughput.tokens_per_second * 1e6
    amount = f"{significant(expected)} EUR"
    for form in ("table", "markdown"):
        assert main(["report", str(run.root), "--prices", str(file), "--format", form]) == 0
        text = capsys.readouterr().out
        assert f"{amount} per " in text
        assert " 2 EUR " in text
    assert main(["report", str(run.root), "--prices", str(file), "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)[-1]
    assert costs["schema"] == "levelfield.costs/1"
    assert costs["runs"][0]["value"] == pytest.approx(expected)
    assert main(["report", str(run.root), "--prices", str(file), "--format", "csv"]) == 0
    assert repr(expected)[:8] in capsys.readouterr().out
    assert main(["report", str(run.root), "--prices", str(file), "--format", "osdi"]) == 2
    assert main(["report", str(run.root), "--prices", str(file), "--hide", "mfu"]) == 2


def test_repeats_have_the_interval_of_their_costs(result: Result) -> None:
    costs = RunCosts(Prices.model_validate({"currency": "EUR", "chips": {"F1": {"per": "device", "rent": 2.0}}}))
    runs = [result, result.model_copy(update={"repeat": 2, "run_id": "other"})]
    for form in ("table", "markdown"):
        text = format_results(form, runs, ["one plan"] * len(runs), costs)
        assert text.count("EUR/M tokens") == (4 if form == "table" else 3)
        assert form == "markdown" or max(map(len, text.splitlines())) <= 80
    figure = json.loads(format_results("json", runs, ["one plan"] * len(runs), costs))[2]["figures"][
        "cost_per_million_tokens"
    ]
    assert figure["median"] == pytest.approx(costs.cost_of(result).value) and figure["unit"] == "EUR/1e6 tokens"


def test_an_invalid_run_has_no_cost(result: Result) -> None:
    costs = RunCosts(Prices.model_validate({"currency": "EUR", "chips": {"F1": {"per": "device", "rent": 2.0}}}))
    wrong = result.model_copy(update={"status": result.status.model_copy(update={"word": "invalid"})})
    amount, reason = costs.explain(wrong)
    assert amount == "-" and "invalid" in reason


def test_significant_digits() -> None:
    amounts = {0.0001234567: "0.0001235", 0.5: "0.5000", 12.34567: "12.35", 1234.5: "1,234", 1e6: "1,000,000", 0.0: "0"}
    assert {value: significant(value) for value in amounts} == amounts and significant(None) == "-"
