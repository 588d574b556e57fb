"""Speed-up and efficiency over numbers of devices, strong and weak."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compared_records import record, with_result
from levelfield.compare.scaling import Scaling, compute_scaling, scaling_json, scaling_sheets
from levelfield.errors import UsageError
from levelfield.report.sheets import format_text
from levelfield.specs.layout import Layout
from levelfield.specs.record import RunRecord

RATES = {1: 1000.0, 2: 980.0, 4: 900.0}


def on(devices: int, rate: float, runs: int = 3, tokens: float | None = None, **changes: Any) -> list[RunRecord]:
    """Return runs on these devices, 0.2 % apart. tokens: of the window, where the batch grows."""
    changes = {"devices": devices, "layout": Layout(data=devices), **changes}
    result = [record(10 * devices + i, rate * (1 + 0.002 * (i - 1)), **changes) for i in range(runs)]
    return result if tokens is None else [_with_tokens(run, tokens) for run in result]


def _with_tokens(run: RunRecord, tokens: float) -> RunRecord:
    speed: Any = run.stored_result.content["throughput"]
    changed = {**speed, "wall_seconds": tokens / speed["tokens_per_second"]}
    return with_result(run, throughput=changed)


def strong(**changes: Any) -> Scaling:
    return compute_scaling([run for n, rate in RATES.items() for run in on(n, rate, **changes)])


def test_efficiency_is_per_device_and_speed_up_is_of_all() -> None:
    result = strong()
    assert result.kind == "strong" and [row.devices for row in result.rows] == [1, 2, 4]
    four = result.rows[2]
    assert four.efficiency and four.efficiency.value == pytest.approx(0.9) and four.speed_up == pytest.approx(3.6)
    assert four.efficiency.standing == "lower" and result.rows[0].efficiency is None


def test_the_smallest_run_is_the_base_in_any_order() -> None:
    runs = [*on(4, 900), *on(2, 980)]
    result = compute_scaling(runs)
    assert result.rows[1].speed_up == pytest.approx(2 * 900 / 980)
    assert compute_scaling(runs[::-1]).rows[1].speed_up == result.rows[1].speed_up


def test_one_run_a_number_has_no_interval() -> None:
    result = compute_scaling([*on(1, 1000, runs=1), *on(2, 980, runs=1)])
    assert result.rows[1].efficiency and result.rows[1].efficiency.standing == "inconclusive"


def test_weak_scaling_has_equal_tokens_a_device() -> None:
    runs = [*on(1, 1000, tokens=1000, case="gpt"),
            *on(2, 950, tokens=2000, case="gpt+batch64", work="sha256:" + "5" * 64)]  # fmt: skip
    result = compute_scaling(runs)
    assert result.kind == "weak" and not result.unequal
    assert result.rows[1].efficiency and result.rows[1].efficiency.value == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tokens of the window per device", {"tokens": 1500.0}),
        ("case", {"case": "gpt+seed7+batch64"}),
        ("window", {"window": (11, 29)}),
        ("framework", {"framework": "paddle"}),
        ("chip", {"chip": "Y2"}),
        ("device", {"device_is": "die"}),
        ("formulas", {"formulas": ("palm/2",)}),
        ("training", {"verdict": "diverged"}),
    ],
)
def test_what_is_not_the_same_training_has_no_ratio(field: str, change: dict[str, Any]) -> None:
    other = {"case": "gpt+batch64", "work": "sha256:" + "5" * 64, "tokens": 2000.0, **change}
    result = compute_scaling([*on(1, 1000, tokens=1000, case="gpt"), *on(2, 950, **other)])
    assert field in [entry.name for entry in result.unequal]
    assert result.rows[1].efficiency is None and result.rows[1].speed_up is None
    assert "NOT COMPARABLE" in format_text(scaling_sheets(result)) and scaling_json(result)["comparable"] is False


def test_strong_scaling_with_other_tokens_has_no_ratio() -> None:
    result = compute_scaling([*on(1, 1000), *on(2, 980, tokens=7.0)])
    assert [field.values for field in result.unequal] == [(("10240",), ("7",))]


def test_a_number_of_devices_that_failed_keeps_the_others() -> None:
    result = compute_scaling([*on(1, 1000), *on(2, 980), *on(8, 1.0, runs=1, word="oom", reason="tight")])
    assert result.rows[2].reason == "oom: tight" and result.rows[1].speed_up is not None
    assert "8 devices:" in format_text(scaling_sheets(result)) and ": oom: tight" in format_text(scaling_sheets(result))


def test_the_smallest_run_that_failed_is_no_base() -> None:
    result = compute_scaling([*on(1, 1000, runs=1, word="failed"), *on(2, 980), *on(4, 900)])
    assert result.rows[2].speed_up == pytest.approx(2 * 900 / 980)


@pytest.mark.parametrize("runs", [[], [record(1), record(2)]])
def test_one_number_of_devices_is_no_scaling(runs: list[RunRecord]) -> None:
    with pytest.raises(UsageError, match=r"--scaling: .*(no device|1 device\(s\)) only"):
        compute_scaling(runs)


def test_the_table_fits_eighty_columns_and_json_is_whole() -> None:
    result = strong(case="c" * 70, chip="a-chip-with-a-very-long-name-of-its-own")
    assert max(map(len, format_text(scaling_sheets(result)).splitlines())) <= 80
    values = json.loads(json.dumps(scaling_json(result), allow_nan=False))
    assert values["rows"][2]["efficiency"]["value"] == pytest.approx(0.9)


def predicted(runs: list[RunRecord], rate: float | None) -> list[RunRecord]:
    return [with_result(run, predicted_rate=rate) for run in runs]


def test_the_planners_prediction_stands_beside() -> None:
    result = compute_scaling([*predicted(on(1, 1000), 1200.0), *predicted(on(2, 980), 1140.0), *on(4, 900)])
    assert [row.predicted for row in result.rows] == [1200.0, 1140.0, None]
    assert [row.predicted_efficiency for row in result.rows] == [None, pytest.approx(0.95), None]
    text = format_text(scaling_sheets(result))
    assert "predicted" in text and "1,140.0 0.950" in text and max(map(len, text.splitlines())) <= 80
    assert scaling_json(result)["rows"][1]["predicted_efficiency"] == pytest.approx(0.95)


def test_without_a_prediction_the_column_says_why() -> None:
    (_, table) = list(scaling_sheets(strong()))
    assert table.header[-1] == "predicted" and [row[-1] for row in table.rows] == ["-", "-", "-"]
    assert "; - where" in table.notes[-1]


def test_runs_with_two_predictions_have_none() -> None:
    two = on(2, 980)
    result = compute_scaling([*predicted(on(1, 1000), 1200.0), *predicted(two[:1], 1.0), *predicted(two[1:], 2.0)])
    assert result.rows[1].predicted is None and result.rows[1].efficiency is not None


@pytest.mark.parametrize("rate", [0.0, -5.0])
def test_a_prediction_that_is_no_speed_is_none(rate: float) -> None:
    result = compute_scaling([*predicted(on(1, 1000), rate), *predicted(on(2, 980), 1140.0)])
    assert result.rows[1].predicted_efficiency is None
