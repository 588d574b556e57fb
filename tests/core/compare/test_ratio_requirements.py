"""Required ratios: the whole interval decides; 1 % around the limit, NaN, swapped sides and missing figures."""

from __future__ import annotations

from typing import Any

import pytest
from compared_records import record, repeats, time_to_loss, with_result
from levelfield.compare.comparison import compare
from levelfield.compare.ratio_requirements import (
    RatioRequirement,
    RequirementFinding,
    judge_requirements,
    parse_requirement,
    requirement_sheet,
)
from levelfield.compare.sides import QUANTITIES, side_of
from levelfield.errors import UsageError
from levelfield.report.sheets import format_text
from levelfield.specs.record import RunRecord

SPEED = "tokens_per_second>=0.95"
BASE = repeats(1000, 1002, 998, first=50)


def finding_of(text: str, runs: list[RunRecord], base: list[RunRecord] = BASE) -> RequirementFinding:
    [finding] = judge_requirements([parse_requirement(text)], compare([side_of("A", base), side_of("B", runs)]))
    return finding


def scaled(part: float, **changes: Any) -> list[RunRecord]:
    return repeats(*(part * rate for rate in (1000, 1001, 999)), **changes)


def test_one_percent_on_either_side_of_the_limit_is_told_apart() -> None:
    above, below, at = (finding_of(SPEED, scaled(part)) for part in (0.96, 0.94, 0.95))
    assert (above.word, below.word, at.word) == ("met", "missed", "undecided")
    assert below.reason == "" and "0.95;" in at.reason
    assert below.ratio and below.ratio.value == pytest.approx(0.94, abs=1e-4)
    most = [finding_of("tokens_per_second<=0.95", scaled(part)).word for part in (0.96, 0.94, 0.95)]
    assert most == ["missed", "met", "undecided"]


def test_an_interval_that_ends_at_the_limit_is_within_it() -> None:
    comparison = compare([side_of("A", BASE), side_of("B", scaled(0.95))])
    ratio = comparison.figures[0].ratios[0]
    assert ratio.low is not None and ratio.high is not None
    name = comparison.figures[0].quantity.column.name
    least, most = RatioRequirement("", name, True, ratio.low), RatioRequirement("", name, False, ratio.high)
    assert [entry.word for entry in judge_requirements([least, most], comparison)] == ["met", "met"]


def test_noise_decides_nothing() -> None:
    assert finding_of(SPEED, repeats(930, 950, 940)).word == "undecided"


def test_swapped_sides_are_another_ratio() -> None:
    slow = scaled(0.9)
    assert (finding_of(SPEED, slow).word, finding_of(SPEED, BASE, slow).word) == ("missed", "met")


def test_every_side_after_the_first_is_judged() -> None:
    sides = [side_of("A", BASE), side_of("B", scaled(1.0)), side_of("C", scaled(0.9, first=20, framework="jax"))]
    findings = judge_requirements([parse_requirement(SPEED), parse_requirement("mfu>=0.9")], compare(sides))
    words = [(finding.side, finding.word) for finding in findings]
    assert words == [("B", "met"), ("C", "missed"), ("B", "met"), ("C", "met")]
    assert all(finding.against == "A" for finding in findings)


def test_one_run_of_a_side_is_undecided() -> None:
    finding = finding_of(SPEED, [record(1, 2000)])
    assert finding.word == "undecided" and (finding.ratio and finding.ratio.standing) == "inconclusive"


def test_a_missing_figure_is_undecided_with_its_reason() -> None:
    one = [*repeats(1000, 1001, 999), record(9, 1000, joules=None)]
    for runs in (scaled(1.0, joules=None), one):
        finding = finding_of("joules_per_token<=10", runs)
        assert finding.word == "undecided", "also where one run lacks it"
        assert " B:" in finding.reason and finding.reason.endswith(": no reading")
    assert " A:" in finding_of("joules<=10", scaled(1.0), repeats(1, 2, 3, first=50, joules=None)).reason
    assert finding_of("node_joules<=10", scaled(1.0)).reason.endswith(" node_joules_per_token")


def with_seconds(runs: list[RunRecord], seconds: float) -> list[RunRecord]:
    return [with_result(run, to_loss=time_to_loss(2.66, seconds)) for run in runs]


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_figure_that_is_no_positive_number_meets_nothing(bad: float) -> None:
    base = with_seconds(BASE, 10.0)
    good, wrong = (with_seconds(scaled(1.0), entry) for entry in (10.0, bad))
    for text in ("seconds_to_loss<=1.05", "seconds_to_loss>=0.001"):
        assert finding_of(text, good, base).word == "met"
        assert finding_of(text, wrong, base).word != "met"
        assert finding_of(text, good, with_seconds(BASE, bad)).word != "met"


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_a_speed_that_is_no_positive_number_meets_nothing(bad: float) -> None:
    damaged = [run.model_copy(update={"tokens_per_second_per_device": bad}) for run in scaled(1.0)]
    assert finding_of(SPEED, damaged).word != "met"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"work": "sha256:" + "9" * 64}, "work"),
        ({"scale": "full"}, "scale"),
        ({"evidence": "tampered"}, "valid and sealed"),
        ({"word": "failed", "failure": "oom"}, "valid and sealed"),
        ({"verdict": "different"}, "training"),
    ],
)
def test_runs_that_are_not_comparable_meet_nothing(change: dict[str, Any], field: str) -> None:
    for text in (SPEED, "aligned"):
        finding = finding_of(text, scaled(2.0, **change))
        assert finding.word == "not comparable" and field in finding.reason


def test_aligned_is_required_of_every_run_of_both_sides() -> None:
    assert finding_of("aligned", scaled(1.0)).word == "met"
    mixed = [*repeats(1000, 1001), record(9, 999, verdict="consistent")]
    for finding in (finding_of("aligned", mixed), finding_of("aligned", BASE, mixed)):
        assert finding.word == "undecided" and "consistent" in finding.reason


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("speed>=0.95", "figure 'speed'"),
        ("loss_tail_mean<=1.01", "figure 'loss_tail_mean'"),  # equal runs have equal losses, so it has no interval
        ("cost_per_million_tokens<=1", "figure 'cost_per_million_tokens'"),
        ("m>=1", "figure 'm'"),
        ("mfu>0.95", "operator '>'"),
        ("mfu==0.95", "operator '=='"),
        ("mfu=>0.95", "operator '=>'"),
        ("mfu>=nan", "ratio 'nan'"),
        ("mfu<=inf", "ratio 'inf'"),
        ("mfu<=95", "ratio '95'"),
        ("mfu>=0", "ratio '0'"),
        ("mfu>=-1", "ratio '-1'"),
        ("mfu>=95%", "ratio '95%'"),
        ("mfu", "no figure, operator and ratio"),  # what the shell leaves of `mfu>=0.95` without quotes
        ("", "no figure, operator and ratio"),
        ("mfu>=0.9 and more", "no figure, operator and ratio"),
    ],
)
def test_a_wrong_requirement_is_told_with_the_figures(text: str, fault: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_requirement(text)
    noisy = [quantity.column.name for quantity in QUANTITIES if quantity.is_noisy]
    assert f"found {fault}," in str(error.value) and ", ".join(noisy) in str(error.value)


def test_a_figure_may_be_shortened_and_have_blanks_beside_its_operator() -> None:
    full = parse_requirement("tokens_per_second_per_device >= 0.95")
    assert (full.figure, full.is_least, full.limit) == ("tokens_per_second_per_device", True, 0.95)
    assert parse_requirement("joules<=1.1").figure == "joules_per_token", "node_joules_per_token begins otherwise"
    assert parse_requirement("cost<=1", has_prices=True).figure == "cost_per_million_tokens"


def test_the_words_fit_eighty_columns() -> None:
    text = format_text([requirement_sheet([finding_of("tokens_per_second_per_device>=0.95", [record(1)])])])
    assert "undecided" in text and max(map(len, text.splitlines())) <= 80
