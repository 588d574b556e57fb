"""A comparison from sides to tables: comparability first, no ratio where a field differs, 80 columns, one truth."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from compared_records import point, record, repeats, time_to_loss, with_result
from levelfield.compare.comparability import CAUTION_REASONS
from levelfield.compare.comparison import Comparison, compare, comparison_json, comparison_sheets
from levelfield.compare.sides import side_of
from levelfield.errors import UsageError
from levelfield.measure.series import median_interval
from levelfield.report.sheets import format_markdown, format_text
from levelfield.specs.prices import Prices
from levelfield.specs.record import Point, RunRecord
from levelfield.specs.run_figures import MFU_NAME

A = (1000.0, 1010.0, 990.0)
B = (400.0, 404.0, 396.0)


def of(*sides: list[RunRecord], **options: Any) -> Comparison:
    return compare([side_of(chr(ord("A") + i), runs) for i, runs in enumerate(sides)], **options)


@pytest.fixture
def three() -> Comparison:
    paddle = repeats(*B, first=10, framework="paddle", joules=None)
    return of(repeats(*A), paddle, repeats(995, 1004, 1001, first=20, framework="megatron"))


def figure(comparison: Comparison, name: str) -> Any:
    return next(f for f in comparison.figures if f.quantity.column.name == name)


def test_every_side_is_compared_with_the_first(three: Comparison) -> None:
    one, two = figure(three, "tokens_per_second_per_device").ratios
    assert one.value == pytest.approx(0.4) and one.standing == "lower"
    assert two.standing == "within noise" and two.value == pytest.approx(1.0, abs=0.001)


def test_a_side_without_energy_has_no_ratio_and_a_reason(three: Comparison) -> None:
    outcome = figure(three, "joules_per_token")
    assert [ratio.standing for ratio in outcome.ratios] == ["no ratio", "within noise"]
    assert [side.reason for side in outcome.sides] == [None, "no reading", None]


def test_a_figure_that_no_side_has_is_one_sentence() -> None:
    outcome = of(repeats(*A, joules=None), repeats(*B, first=10, joules=None))
    text = format_text(comparison_sheets(outcome))
    assert text.count("J/token") == 1 and "A, B:" in text
    assert "joules_per_token" in [entry["name"] for entry in comparison_json(outcome)["figures"]]


def test_sides_that_are_not_comparable_have_no_figure_at_all() -> None:
    outcome = of(repeats(*A), repeats(*B, first=10, scale="full"))
    text = format_text(comparison_sheets(outcome))
    assert (
        outcome.figures == ()
        and comparison_json(outcome)["figures"] == []
        and comparison_json(outcome)["comparable"] is False
    )
    assert "NOT COMPARABLE" in text and "0.4" not in text and "1,000" not in text
    assert "scale" in text and "smoke" in text and "full" in text


def test_the_loss_is_left_to_the_verdict() -> None:
    outcome = of(repeats(*A), repeats(*B, first=10, loss=2.6))
    (ratio,) = figure(outcome, "loss_tail_mean").ratios
    assert ratio.value == pytest.approx(1.04) and ratio.standing == "see alignment" and ratio.low is None


def test_one_run_a_side_is_inconclusive() -> None:
    outcome = of([record(1, 1000)], [record(2, 500)])
    (ratio,) = figure(outcome, "tokens_per_second_per_device").ratios
    assert ratio.standing == "inconclusive" and ratio.value == pytest.approx(0.5) and ratio.low is None
    assert "inconclusive" in format_text(comparison_sheets(outcome)) and re.findall(r"\d+", ratio.reason)[:2] == [
        "1",
        "1",
    ]


def test_steps_of_one_run_are_never_taken_for_runs() -> None:
    run = record(1).model_copy(update={"step_seconds": tuple(0.5 + 0.001 * i for i in range(1000))})
    assert figure(of([run], [record(2, 500)]), "tokens_per_second_per_device").ratios[0].standing == "inconclusive"


class TestOneRunWithAHistory:
    SIDES = ([record(1, 1000)], [record(2, 900, framework="paddle")])

    def histories(self, nights: int = 10, **changes: Any) -> dict[str, list[Point]]:
        return {
            run.series.fingerprint(): [
                point(
                    run, **(self.night(i) | {"tokens_per_second_per_device": rate * (1 + 0.001 * (-1) ** i)} | changes)
                )
                for i in range(nights)
            ]
            for (run,), rate in zip(self.SIDES, (1000, 900), strict=True)
        }

    @staticmethod
    def night(number: int) -> dict[str, Any]:
        return {"run_id": f"old{number}", "began": f"2026-11-{number + 1:02}T03:00:00+00:00"}

    def standing(self, histories: dict[str, list[Point]]) -> str:
        outcome = figure(of(*self.SIDES, histories=histories), "tokens_per_second_per_device")
        return str(outcome.ratios[0].standing)

    def test_the_history_of_both_series_shows_the_noise(self) -> None:
        assert self.standing(self.histories()) == "lower"

    def test_the_source_of_the_interval_is_said(self) -> None:
        outcome = of(*self.SIDES, histories=self.histories())
        text = " ".join(format_text(comparison_sheets(outcome)).split())
        reason = figure(outcome, "tokens_per_second_per_device").ratios[0].reason
        assert "10 nights" in reason and "since 2026-11-01" in reason
        assert reason in text and "to decide" not in text

    def test_many_runs_of_one_night_are_one_night(self) -> None:
        assert self.standing(self.histories(began="2026-11-01T03:00:00+00:00")) == "inconclusive"
        assert self.standing(self.histories(night="2026-11-01")) == "inconclusive"

    def test_the_newest_45_nights_count(self) -> None:
        """Sixty nights, of which the first fifteen were ten times slower: with one of them the noise is wide."""
        histories = self.histories(30)
        digest, points = next(iter(histories.items()))
        later = [p.model_copy(update={"run_id": f"new{i}", "night": f"{i}"}) for i, p in enumerate(points)]
        for slow, standing in ((15, "lower"), (16, "within noise")):
            first = [p.model_copy(update={"tokens_per_second_per_device": 100.0}) for p in points[:slow]]
            assert self.standing(histories | {digest: [*first, *points[slow:], *later]}) == standing

    def test_the_utilisation_of_nights_shows_its_noise_too(self) -> None:
        outcome = figure(of(*self.SIDES, histories=self.histories(mfu_megatron=0.4)), MFU_NAME)
        assert outcome.ratios[0].standing == "within noise"

    def test_nights_show_no_noise_of_the_seconds_to_a_loss_which_they_do_not_store(self) -> None:
        """Read from the compared run, each night would have its seconds, and no noise at all."""
        sides = [to_loss(runs, 2.66, seconds) for runs, seconds in zip(self.SIDES, (10.0, 20.0), strict=True)]
        outcome = figure(of(*sides, histories=self.histories()), "seconds_to_loss")
        assert outcome.ratios[0].standing == "inconclusive" and outcome.ratios[0].value == pytest.approx(2)

    @pytest.mark.parametrize(
        ("changes", "command"),
        [
            ({}, "compare duel gpt:torch:X1:1:1 gpt:paddle:X1:1:1 --scale smoke"),
            ({"node": "node-2"}, "run_benchmarks.py --case gpt:paddle:X1:1:1 --repeat 3 --scale smoke"),
            ({"chip": "X2"}, "run_benchmarks.py --case gpt:paddle:X2:1:1 --repeat 3 --scale smoke"),
        ],
    )
    def test_without_one_the_deciding_command_is_said(self, changes: dict[str, Any], command: str) -> None:
        """A duel needs one machine with both sides."""
        outcome = of([record(1, 1000)], [record(2, 900, framework="paddle", **changes)])
        assert command in " ".join(format_text(comparison_sheets(outcome)).replace("\\\n", "").split())
        assert comparison_json(outcome)["figures"][0]["ratios"]["B"]["decided_by"].endswith(command)

    def test_the_history_of_one_does_not(self) -> None:
        both = self.histories()
        assert self.standing(dict([next(iter(both.items()))])) == "inconclusive"

    @pytest.mark.parametrize(
        "change",
        [{"node": "node-2"}, {"conditions": "sha256:0"}, {"evidence": "tampered"}, {"word": "invalid"},
         {"verdict": "diverged"}, {"purpose": "confirm-a"}],
    )  # fmt: skip
    def test_runs_of_other_conditions_and_bad_runs_show_none(self, change: dict[str, Any]) -> None:
        assert self.standing(self.histories(**change)) == "inconclusive"

    def test_the_compared_runs_are_not_their_own_history(self) -> None:
        same_runs = {digest: [p.model_copy(update={"run_id": run.run_id}) for p in points]
               for (digest, points), (run,) in zip(self.histories().items(), self.SIDES, strict=True)}  # fmt: skip
        assert self.standing(same_runs) == "inconclusive"


def test_one_truth_in_text_markdown_and_json(three: Comparison) -> None:
    """The median and its interval are those of `report` over repeats."""
    expected = median_interval(A)
    values = json.loads(json.dumps(comparison_json(three), allow_nan=False))
    side = values["figures"][0]["sides"]["A"]
    assert (side["median"], side["low"], side["high"], side["n"]) == (1000.0, expected.low, expected.high, 3)
    assert side["values"] == list(A) and values["figures"][0]["ratios"]["B"]["against"] == "A"
    cells = ["1,000.0", f"[{expected.low:,.1f}, {expected.high:,.1f}]"]
    for text in (format_text(comparison_sheets(three)), format_markdown(comparison_sheets(three))):
        assert all(
            cell.replace("[", "") in text.replace("\\[", "").replace("[", "").replace("\\]", "]") for cell in cells
        )
        assert "B/A" in text and "within noise" in text


def test_it_fits_eighty_columns_with_three_sides_and_long_names() -> None:
    sides = [
        repeats(*A, first=10 * i, case="a-case-with-a-long-name" * 4, framework=f"framework{i}" * 5, chip="chip" * 20,
                node=f"node{i}" * 9, software={"driver": f"{i}." * 40})
        for i in range(3)
    ]  # fmt: skip
    assert max(map(len, format_text(comparison_sheets(of(*sides))).splitlines())) <= 80


def test_what_a_run_says_is_harmless() -> None:
    hostile = "\x1b]0;x\x07\n| <script> `x` \u202e"
    outcome = of(repeats(*A), repeats(*B, first=10, framework_version=hostile, software={hostile: hostile}))
    text, markdown = format_text(comparison_sheets(outcome)), format_markdown(comparison_sheets(outcome))
    assert not {"\x1b", "\x07", "\u202e"} & set(text + markdown) and "<script" not in markdown


def test_one_side_is_no_comparison() -> None:
    with pytest.raises(UsageError, match="found 1"):
        of(repeats(*A))


def to_loss(runs: list[RunRecord], level: float, *seconds: float | None) -> list[RunRecord]:
    return [with_result(run, to_loss=time_to_loss(level, entry)) for run, entry in zip(runs, seconds, strict=True)]


def test_times_to_a_loss_are_compared_at_one_level_only() -> None:
    one = to_loss(repeats(*A), 2.66, 10.0, 10.1, 9.9)
    same = figure(of(one, to_loss(repeats(*B, first=10), 2.66, 20.0, 20.2, 19.8)), "seconds_to_loss")
    assert same.ratios[0].value == pytest.approx(2.0) and same.ratios[0].standing == "higher"
    other = figure(of(one, to_loss(repeats(*B, first=10), 2.67, 20.0, 20.2, 19.8)), "seconds_to_loss")
    assert other.ratios[0].value is None and other.ratios[0].reason.endswith(": 2.66, 2.67")
    none = figure(of(one, to_loss(repeats(*B, first=10), 2.66, None, None, None)), "seconds_to_loss")
    assert none.ratios[0].standing == "no ratio" and none.sides[1].reason == "x"


def test_medians_that_do_not_divide_to_the_ratio_are_told() -> None:
    """By hand: geometric means 1592.7 and 400.0 give 0.2511, and the medians 400 / 1010 = 0.3960."""
    text = format_text(comparison_sheets(of(repeats(1000, 1010, 4000), repeats(*B, first=10))))
    assert "0.3960" in text and "0.2511" in text
    assert "medians" not in format_text(comparison_sheets(of(repeats(*A), repeats(*B, first=10))))


def test_notes_of_some_figures_name_them() -> None:
    """The speeds are noisy on one side alone, so their interval has fewer degrees of freedom than that of memory."""
    outcome = of(repeats(1000, 1300, 800), repeats(*B, first=10))
    notes = " ".join(next(entry for entry in comparison_sheets(outcome) if entry.heading == "against A").notes)
    freedoms = re.findall(r"([^:]+?): 95 %[^:]*?(\d+) degrees", notes)
    assert freedoms[0] == ("tokens/s/device", "2")
    assert freedoms[1][0].split()[-4:] == ["memory,", "J/token,", "MFU", "(megatron)"] and freedoms[1][1] == "4"


def test_a_run_is_not_compared_with_itself() -> None:
    with pytest.raises(UsageError) as error:
        of([record(1)], [record(1)])
    assert record(1).run_id in str(error.value) and " B;" in str(error.value)


def test_costs_of_a_rent_and_of_an_owned_node_ask_for_caution() -> None:
    same_runs = {"capital": 100000, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.2, "pue": 1.5}
    chips = {
        "X1": {"per": "device", "rent": 2.0},
        "Y1": {"per": "node", "own": same_runs},
        "Z1": {"per": "device", "rent": 3},
    }
    prices = Prices.model_validate({"currency": "EUR", "chips": chips})
    rented, owned, other = (repeats(*A, first=9 * i + 1, chip=chip) for i, chip in enumerate(chips))
    text = " ".join(format_text(comparison_sheets(of(rented, owned, prices=prices))).split())
    outcome = of(rented, owned, prices=prices)
    cost = outcome.comparability.cautions[-1]
    assert cost.name == "cost" and outcome.figures[-1].ratios[0].value is not None
    assert ["per device" in cost.cells[0], "per node" in cost.cells[1]] == [
        True,
        True,
    ] and f"cost: {CAUTION_REASONS['cost']}" in text
    assert "cost" not in [field.name for field in of(rented, other, prices=prices).comparability.cautions]
