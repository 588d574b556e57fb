"""The A of the pairs stays where it is, and a regression keeps its word until pairs, nights or a person end it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from gate_points import at, conditions, day, event, nights, noise, point, series
from levelfield.errors import UsageError
from levelfield.nights.baselines import LevelEvidence, baseline_event
from levelfield.nights.gate import Confirmation, ConfirmingPairs, GateReport, PairRuns, judge_night, suspects
from levelfield.nights.gate_input import GateInput
from levelfield.series.findings import Finding, exit_code
from levelfield.series.judgement import Pairs
from levelfield.specs.record import GatedFigure, Point

TOKENS: GatedFigure = "tokens_per_second_per_device"
ConfirmationOf = Callable[[GateInput], Confirmation]


def inputs_of(points: Sequence[Point], night: int, **more: Any) -> GateInput:
    def regression(digest: str) -> Any:
        return conditions(software={"driver": digest})

    return GateInput(day(night), {"S": points}, {"S": series()}, find_conditions=regression, **more)


def pairs_of(change: float, deviation: float = 0.002, around: float = 1.0) -> ConfirmingPairs:
    """Seven pairs: B is changed by so much. around: what befalls both sides."""
    first, second = noise(7, deviation, 5), noise(7, deviation, 6)
    values: Pairs = [
        (1000 * around * math.exp(a), 1000 * around * (1 + change) * math.exp(b))
        for a, b in zip(first, second, strict=True)
    ]
    return lambda name, figure: values if figure == TOKENS else None


def values_of(pairs: ConfirmingPairs) -> Pairs:
    values = pairs("S", TOKENS)
    assert values is not None and not isinstance(values, str)
    return values


def of(report: GateReport) -> Finding:
    (finding,) = [f for f in report.findings if f.series == "S" and f.figure == TOKENS]
    return finding


def slow_from(first: int, count: int, change: float = -0.05) -> list[Point]:
    """`count` nights, those from `first` on with the change."""
    return [p if i < first else replaced(p, 1 + change) for i, p in enumerate(nights(count))]


def replaced(of_night: Point, factor: float) -> Point:
    return of_night.model_copy(update={TOKENS: (of_night.tokens_per_second_per_device or 0.0) * factor})


def named_at(night: int, points: Sequence[Point], **more: Any) -> list[Finding]:
    report = judge_night(inputs_of(points, night, **more), pairs_of(-0.05))
    assert of(report).word == "regression"
    return list(report.findings)


def first_build(points: Sequence[Point], night: int, **more: Any) -> str:
    """Return the run whose build a suspicious night is held against."""
    finding = suspects(inputs_of([*points[:night], replaced(points[night], 0.9)], night, **more))
    (suspect,) = [entry for entry in finding if entry.figure == TOKENS]
    return suspect.examination.baseline_run


# -- the build on the one side of the pairs


@pytest.mark.parametrize("night", [7, 12, 29, 30, 31, 60, 100])
def test_the_first_build_is_that_of_the_first_night(night: int) -> None:
    assert first_build(nights(101), night) == "run000"


def test_no_undecided_night_moves_the_first_build() -> None:
    """A fall that one night does not show is in the nights after it: none of them is the build to compare with."""
    points, past = slow_from(12, 30, -0.03), list[Finding]()
    for night in range(7, 30):
        assert {s.examination.baseline_run for s in suspects(inputs_of(points, night, past_findings=past))} <= {
            "run000"
        }
        past += judge_night(inputs_of(points, night, past_findings=past), pairs_of(-0.03, deviation=0.05)).findings
    assert not any(f.word == "regression" for f in past), "so noisy pairs never decide"


def test_a_fall_that_its_first_nights_do_not_show_is_found_when_pairs_can() -> None:
    points, past, words = slow_from(12, 30, -0.03), list[Finding](), []
    for night in range(7, 30):
        builds = {s.examination.baseline_run for s in suspects(inputs_of(points, night, past_findings=past))}
        has_fall = [int(run.removeprefix("run")) >= 12 for run in builds]
        change = 0.0 if night < 12 or any(has_fall) else -0.03
        report = judge_night(
            inputs_of(points, night, past_findings=past), pairs_of(change, deviation=0.05 if night < 16 else 0.002)
        )
        past += report.findings
        words.append(of(report).word)
    assert "regression" not in words[:9] and set(words[-10:]) == {"regression"}, words


def test_an_accepted_level_has_its_last_run_as_the_first_build() -> None:
    points = nights(60)
    accepted = baseline_event(LevelEvidence("S", tuple(points[:20])), "ann", "why", at(19, 9))
    for night in (21, 45, 59):
        assert first_build(points, night, events=[accepted]) == "run019"
    expired = accepted.model_copy(update={"until": day(30)})
    assert first_build(points, 45, events=[expired]) == "run000", "the level of the first nights holds again"


def test_an_accepted_change_of_conditions_begins_with_its_first_night() -> None:
    points = [p.model_copy(update={"conditions": "c2"}) if i >= 20 else p for i, p in enumerate(nights(40))]
    step = event("environment-step", 21, data={"before": "c1", "after": "c2"})
    assert first_build(points, 35) == "run000", "without it the level before the change is the reference"
    assert first_build(points, 35, events=[step]) == "run020"


def test_a_first_build_that_no_commit_holds_is_passed_over_within_the_first_seven_nights() -> None:
    points = nights(30)
    assert first_build(points, 25, has_commit=lambda subject: subject not in ("s0", "s1")) == "run002"
    assert first_build(points, 25, has_commit=lambda subject: int(subject[1:]) > 6) == "run000", (
        "the gate judged the later nights: one of them may have what it did not see; the night says why no pairs run"
    )
    accepted = event("baseline", 20, runs=["run005", "run006", "run007"], level={TOKENS: 1000.0})
    assert first_build(points, 25, events=[accepted], has_commit=lambda subject: subject != "s7") == "run006"


# -- a regression that was named


@pytest.mark.parametrize(
    "undecided",
    [
        pairs_of(-0.05, deviation=0.06),
        pairs_of(-0.05, deviation=0.06, around=0.8),
        lambda name, figure: None,
        lambda name, figure: "the budget of the night holds no further pair",
        lambda name, figure: [],
    ],
    ids=["noisy", "bad night", "no pairs", "no budget", "no figures"],
)
def test_a_night_that_does_not_decide_keeps_the_word_and_the_exit_code(undecided: ConfirmingPairs) -> None:
    points = [replaced(p, 1.03 if i > 15 else 1.0) for i, p in enumerate(slow_from(15, 40))]
    past = named_at(15, points)
    report = judge_night(inputs_of(points, 16, past_findings=past), undecided)
    finding = of(report)
    assert (finding.word, finding.named, finding.run_id) == ("regression", day(15), "run016")
    assert exit_code(report.findings) == 4
    assert finding.change == pytest.approx(-0.05, abs=0.01) and finding.against == "run000"
    assert finding.named == day(15) and all(part in finding.detail for part in (day(15), "5 pairs", "tonight: "))
    past += report.findings
    for night in range(17, 20):
        again = judge_night(inputs_of(points, night, past_findings=past), undecided)
        assert (of(again).word, of(again).named) == ("regression", day(15))
        past += again.findings
    judged = judge_night(inputs_of(points, 20, past_findings=past), pairs_of(-0.05))
    assert (of(judged).word, of(judged).named, of(judged).against) == (
        "regression",
        day(15),
        "run000",
    )
    assert of(judged).pairs == 1


def test_a_named_regression_whose_night_looks_good_gets_pairs_and_these_end_it() -> None:
    points = [replaced(p, 1.05 if i == 16 else 1.0) for i, p in enumerate(slow_from(15, 30))]
    past = named_at(15, points)
    mended = [*points[:16], *nights(30)[16:]]
    assert [s.figure for s in suspects(inputs_of(mended, 16, past_findings=past))] == [TOKENS]
    assert of(judge_night(inputs_of(mended, 16, past_findings=past), lambda *_: None)).word == "regression"
    gone = judge_night(inputs_of(mended, 16, past_findings=past), pairs_of(0.0))
    assert of(gone).word == "no change" and exit_code(gone.findings) == 0
    later = inputs_of(mended, 17, past_findings=[*past, *gone.findings])
    assert of(judge_night(later)).word == "no change" and suspects(later) == []


def test_pairs_on_a_slow_machine_end_it_too() -> None:
    points = slow_from(15, 17)
    gone = judge_night(inputs_of(points, 16, past_findings=named_at(15, points)), pairs_of(0.0, around=0.8))
    assert of(gone).word == "bad night" and of(gone).against == "run000"
    later = inputs_of([*points, *nights(1, first=17)], 17, past_findings=[*named_at(15, points), *gone.findings])
    assert of(judge_night(later)).word != "regression"


def test_pairs_look_for_it_where_the_night_seems_better_than_the_level() -> None:
    points = [*slow_from(15, 16), point(16, 1100.0)]
    finding = of(judge_night(inputs_of(points, 16, past_findings=named_at(15, points)), pairs_of(-0.05)))
    assert (finding.word, finding.named, finding.pairs) == ("regression", day(15), 1)


def test_an_older_bad_night_does_not_end_it_and_an_older_no_change_does() -> None:
    """Findings of earlier versions do not say against which build: it may have had the regression itself."""
    points = slow_from(15, 30)
    past = [f.model_copy(update={"against": None}) for f in named_at(15, points)]
    changes: dict[str, Any] = {"against": None, "build_change": 0.0, "pairs": 4, "night": day(16), "run_id": "run016"}
    (opened,) = [f for f in past if f.figure == TOKENS]
    for word, expected in (("bad night", "regression"), ("no change", "inconclusive")):
        older = opened.model_copy(update={**changes, "word": word})
        assert of(judge_night(inputs_of(points, 17, past_findings=[*past, older]))).word == expected, word


def test_an_accepted_regression_is_none() -> None:
    points = slow_from(15, 40)
    past = named_at(15, points)
    accepted = baseline_event(LevelEvidence("S", tuple(points[:16]), tuple(past)), "ann", "known", at(15, 9))
    assert accepted.runs == ("run015",)
    events = [accepted]
    later = inputs_of(points, 16, past_findings=past, events=events)
    assert of(judge_night(later)).word in ("no change", "inconclusive")
    earlier = event("baseline", 15, runs=["run012", "run013", "run014"], level={TOKENS: 1000.0})
    open_findings = judge_night(inputs_of(points, 16, past_findings=past, events=[earlier]))
    assert of(open_findings).word == "regression", "a level of the nights before it accepts nothing of it"
    over = accepted.model_copy(update={"until": day(20)})
    assert of(judge_night(inputs_of(points, 21, past_findings=past, events=[over]))).word == "regression", (
        "it was accepted until then"
    )


def test_a_second_fall_after_an_accepted_one_is_named_against_the_accepted_build() -> None:
    points, past = [replaced(p, 0.9 if i >= 25 else 1.0) for i, p in enumerate(slow_from(15, 40))], list[Finding]()
    for night in (15, 16, 17):
        past += named_at(night, points, past_findings=past)
    accepted = baseline_event(LevelEvidence("S", tuple(points[:18]), tuple(past)), "ann", "known", at(17, 9))
    past += (second := named_at(25, points, past_findings=past, events=[accepted]))
    assert "run017" in [f.against for f in second]
    undecided = judge_night(
        inputs_of(points, 26, past_findings=past, events=[accepted]), pairs_of(-0.05, deviation=0.06)
    )
    assert (of(undecided).word, of(undecided).named) == ("regression", day(25))


def test_nights_end_what_nights_named() -> None:
    """Without pairs: five nights have to be nearer to the level again. One that looks good is not enough."""
    values = [*(1.0,) * 20, *(0.95,) * 6, 1.0, 0.95, *(1.0,) * 8]
    points = [replaced(p, factor) for p, factor in zip(nights(len(values), 0.002), values, strict=True)]
    past, words = list[Finding](), []
    for night in range(20, len(values)):
        report = judge_night(inputs_of(points, night, past_findings=past))
        past += report.findings
        words.append(of(report).word)
    assert words[:9] == ["inconclusive"] + ["regression"] * 8 and "regression" not in words[9:], words
    assert words[9] == "no change", words


def test_a_night_without_a_judged_run_keeps_it() -> None:
    points = slow_from(15, 16)
    past = named_at(15, points)
    failed = point(16, None, word="failed", memory_bytes=None)
    for last in ([failed], []):
        report = judge_night(inputs_of([*points, *last], 16, past_findings=past))
        finding = of(report)
        assert (finding.word, finding.named, exit_code(report.findings)) == ("regression", day(15), 4)
        assert report.compared_count == 0, "the night itself compared nothing"
    missed = judge_night(inputs_of(points, 16, past_findings=past, expected_entries={"suite/entry": "S"}))
    assert sorted(f.word for f in missed.findings) == ["missing", "regression"] and exit_code(missed.findings) == 4
    left_out = judge_night(inputs_of(points, 16, past_findings=past, expected_entries={"suite/other": None}))
    assert not [f for f in left_out.findings if f.word == "regression"], "the suite has no such entry any more"


def test_a_finding_about_the_node_does_not_hide_it() -> None:
    quiet = {
        f"S{i}": [p.model_copy(update={"run_id": f"{i}.{p.run_id}"}) for p in nights(20, seed=i)] for i in range(4)
    }
    quiet["S"] = [*slow_from(15, 20)]
    tonight = {name: [*of_series[:16], replaced(of_series[16], 0.85)] for name, of_series in quiet.items()}
    past = named_at(15, quiet["S"])
    documents = {name: series(case=name) for name in quiet}
    report = judge_night(GateInput(day(16), tonight, documents, past_findings=past), pairs_of(0.0, around=0.85))
    assert [f.label for f in report.findings if f.word == "bad night" and not f.series] == ["node n1"]
    assert (of(report).word, of(report).named) == ("regression", day(15)) and exit_code(report.findings) == 4


def test_an_accepted_driver_does_not_end_a_regression_of_the_build() -> None:
    """The level begins anew; the build is held against the one without the regression, which needs no level."""
    points = [p.model_copy(update={"conditions": "c2"}) if i >= 17 else p for i, p in enumerate(slow_from(15, 40))]
    past = named_at(15, points)
    step = event("environment-step", 17, data={"before": "c1", "after": "c2"})
    night = inputs_of(points, 18, past_findings=past, events=[step])
    (suspect,) = suspects(night)
    assert suspect.examination.baseline_run == "run000"
    for change, expected in ((-0.05, ("regression", False, day(15))), (0.0, ("no change", True, None))):
        finding = of(judge_night(night, pairs_of(change)))
        assert (finding.word, finding.pairs > 2, finding.named) == expected
    assert of(judge_night(night)).named == day(15)


def test_a_regression_of_three_months_still_has_a_level_and_its_word() -> None:
    points, past = slow_from(15, 130), list[Finding]()
    for night in range(15, 130):
        report = judge_night(
            inputs_of(points, night, past_findings=past), pairs_of(-0.05, 0.06 if night % 3 == 1 else 0.002)
        )
        past += report.findings
        assert of(report).word == "regression" and exit_code(report.findings) == 4, night


def test_a_night_that_was_judged_again_counts_once() -> None:
    points = slow_from(15, 30)
    past = named_at(15, points)
    again = [f.model_copy(update={"word": "no change", "build_change": 0.0}) for f in past if f.figure == TOKENS]
    assert of(judge_night(inputs_of(points, 16, past_findings=[*past, *again]))).word == "inconclusive"
    assert of(judge_night(inputs_of(points, 15, past_findings=past))).word == "inconclusive", (
        "a night is not its own past"
    )
    assert of(judge_night(inputs_of(points, 14, past_findings=past))).word == "no change", "nor is a later one"


def test_an_undecided_night_is_no_evidence_that_pairs_judged() -> None:
    points = slow_from(15, 18)
    past = named_at(15, points)
    past += judge_night(inputs_of(points, 16, past_findings=past), pairs_of(-0.05, deviation=0.06)).findings
    with pytest.raises(UsageError, match="found 2"):
        baseline_event(LevelEvidence("S", tuple(points[:17]), tuple(past)), "ann", "why", at(16, 9))


# -- what a named regression costs


def counted(pairs: ConfirmingPairs, calls: list[int]) -> ConfirmationOf:
    """Return what runs these pairs one after another, as a night does, and counts those that ran."""

    def records() -> Iterator[Any]:
        for accepted, tonight in values_of(pairs):
            calls.append(1)
            yield tuple(SimpleNamespace(**{TOKENS: value}) for value in (accepted, tonight))

    def start(night: GateInput) -> Confirmation:
        runs = PairRuns(lambda series: records(), lambda series: True, lambda text: None)
        return Confirmation({(s.series, s.figure): s for s in suspects(night)}, runs)

    return start


@pytest.mark.parametrize("change", [-0.02, -0.05, -0.2])
def test_one_pair_a_night_holds_a_named_regression(change: float) -> None:
    """It keeps its word, its change and why its steps take longer; only the pairs that named it were three or more."""
    points, past, pairs_of_nights = slow_from(15, 45, change), list[Finding](), []
    for number in range(15, 45):
        night, calls = inputs_of(points, number, past_findings=past), list[int]()
        report = judge_night(night, counted(pairs_of(change), calls)(night))
        finding = of(report)
        assert (finding.word, exit_code(report.findings), finding.against) == ("regression", 4, "run000")
        assert finding.change == pytest.approx(change, abs=0.005)
        if number == 15:
            report = replace(report, findings=(finding.model_copy(update={"explanation": ("a kernel",)}),))
        assert of(report).explanation == ("a kernel",)
        past += report.findings
        pairs_of_nights.append(len(calls))
    assert pairs_of_nights[0] >= 3 and pairs_of_nights[1:] == [1] * 29


def test_a_named_regression_that_one_pair_does_not_show_gets_further_pairs_and_ends_in_this_night() -> None:
    points = [*slow_from(15, 20), *nights(30)[20:]]
    past = named_at(15, points)
    night, calls = inputs_of(points, 20, past_findings=past), list[int]()
    report = judge_night(night, counted(pairs_of(0.0), calls)(night))
    assert of(report).word == "no change" and len(calls) >= 3
    later = inputs_of(points, 21, past_findings=[*past, *report.findings])
    assert suspects(later) == [] and of(judge_night(later)).word == "no change"


@pytest.mark.parametrize(("bias", "node", "is_reconfirmed"), [
    (0.0, "n1", True),
    (-0.05, "n1", False),  # B is 5 % slower whatever its build, and so is the one pair
    (-0.05, "n2", False),  # by null pairs of another node, where tonight's has none
])  # fmt: skip
def test_one_pair_holds_a_regression_only_beyond_the_arms_bias(bias: float, node: str, is_reconfirmed: bool) -> None:
    points = slow_from(15, 20)
    past = named_at(15, points)
    values = values_of(pairs_of(bias))
    points += [
        point(17, value, purpose=arm, run_id=f"{arm}{i}", node=node)
        for i, pair in enumerate(values) for arm, value in zip(("null-a", "null-b"), pair, strict=True)
    ]  # fmt: skip
    night, calls = inputs_of(points, 18, past_findings=past), list[int]()
    judge_night(night, counted(pairs_of(-0.05), calls)(night))
    assert (len(calls) == 1) == is_reconfirmed


def test_where_a_night_holds_one_pair_those_of_its_nights_together_end_a_regression() -> None:
    """Pairs of nights before one that showed it again do not count."""
    points, past = [*slow_from(15, 20), *nights(40)[20:]], named_at(15, slow_from(15, 40))
    words = list[str]()
    for number in range(16, 28):
        change = -0.05 if number in (16, 17, 18, 19, 21) else 0.0
        (pair,) = values_of(pairs_of(change))[number % 7 :][:1]
        values = zip(("confirm-a", "confirm-b"), pair, strict=True)
        points += [point(number, value, purpose=arm, run_id=f"{arm}{number}") for arm, value in values]
        night = inputs_of(points, number, past_findings=past)
        report = judge_night(night, night.stored_pairs)
        past += report.findings
        words.append(of(report).word)
    assert words[:8] == ["regression"] * 8 and words[8:] == ["no change"] * 4, words
