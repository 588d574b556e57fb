"""The gate of a night: every word from planted nights, and nothing green that was not compared."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from gate_points import at, conditions, day, event, nights, noise, point, series
from levelfield.nights.gate import ConfirmingPairs, GateReport, judge_night, suspects
from levelfield.nights.gate_input import GateInput, examinations
from levelfield.series.examination import era_of, nights_before
from levelfield.series.finding_forms import format_text
from levelfield.series.findings import FAILURE_WORDS, FINDING_WORDS, Finding, FindingPage, exit_code
from levelfield.series.segments import condition_changes, differences, observations, segments_of
from levelfield.specs.record import Conditions, Point

TOKENS = "tokens_per_second_per_device"
NIGHT = 40


def gate_night(points: Sequence[Point], night: int = NIGHT, **more: Any) -> GateInput:
    return GateInput(day(night), {"S": points}, {"S": series()}, **more)


def word(report: GateReport, figure: str | None = TOKENS, name: str = "S") -> str:
    (finding,) = [f for f in report.findings if f.figure == figure and f.series == name]
    return finding.word


def pairs(change: float, night: float = 1.0) -> ConfirmingPairs:
    """A source of pairs: B is changed, the night slows both."""
    values = [(1000 * night * math.exp(z), 1000 * night * (1 + change) * math.exp(w)) for z, w in zip(
        noise(7, 0.002, 5), noise(7, 0.002, 6), strict=True)]  # fmt: skip
    return lambda series, figure: values if figure == TOKENS else None


def shifted(change: float, **changes: Any) -> list[Point]:
    """Forty quiet nights and tonight, changed."""
    return [*nights(NIGHT), point(NIGHT, 1000 * (1 + change), **changes)]


# -- one series, one night


def test_quiet_nights_are_no_change_with_what_they_could_have_seen() -> None:
    outcome = judge_night(gate_night(nights(NIGHT + 1)))
    assert word(outcome) == "no change" and exit_code(outcome.findings) == 0
    (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
    assert 0.02 < (finding.detectable or 0) < 0.06 and finding.nights == 30 and finding.level_since == day(10)
    assert finding.level == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_a_fall_of_one_percent_is_never_called_and_ten_percent_is(seed: int) -> None:
    quiet = nights(NIGHT, 0.01, seed)
    for change, allowed in ((-0.01, {"no change", "inconclusive"}), (-0.10, {"regression"})):
        night = gate_night([*quiet, point(NIGHT, 1000 * (1 + change) * math.exp(noise(99, 0.01, seed)[50]))])
        assert word(judge_night(night, pairs(change))) in allowed


def test_a_suspicion_that_pairs_confirm_is_a_regression_with_the_pairs_interval() -> None:
    (finding,) = [f for f in judge_night(gate_night(shifted(-0.06)), pairs(-0.05)).findings if f.figure == TOKENS]
    assert finding.word == "regression" and finding.pairs >= 3 and finding.run_id == f"run{NIGHT:03d}"
    assert finding.low is not None and finding.high is not None and finding.change is not None
    assert finding.low < finding.change < finding.high < 0 and finding.change == pytest.approx(-0.05, abs=0.01)
    assert exit_code([finding]) == 4


def test_a_suspicion_that_pairs_do_not_confirm_is_no_change() -> None:
    assert word(judge_night(gate_night(shifted(-0.06)), pairs(0.0))) == "no change"


def test_a_bad_night_is_never_a_regression() -> None:
    for size in (0.05, 0.1, 0.2, 0.5):
        outcome = judge_night(gate_night(shifted(-size)), pairs(0.0, night=1 - size))
        assert word(outcome) == "bad night" and exit_code(outcome.findings) == 0
        assert exit_code(outcome.findings, strict=True) == 4


def test_pairs_are_only_run_for_a_suspicion_to_the_worse() -> None:
    called: list[str] = []

    def source(name: str, figure: str) -> None:
        called.append(figure)

    judge_night(gate_night(nights(NIGHT + 1)), source)
    judge_night(gate_night(shifted(0.10)), source)
    assert called == []
    judge_night(gate_night(shifted(-0.10)), source)
    assert called == [TOKENS]
    assert [(s.series, s.figure) for s in suspects(gate_night(shifted(-0.10)))] == [("S", TOKENS)]
    assert suspects(gate_night(shifted(0.10))) == []


def test_the_largest_suspicion_is_confirmed_first() -> None:
    outcome = GateInput(day(NIGHT), {"S": shifted(-0.06), "T": shifted(-0.2)}, {})
    assert [suspect.series for suspect in suspects(outcome)] == ["T", "S"]


@pytest.mark.parametrize(
    ("figure", "values", "expected"),
    [
        ("memory_bytes", (2.0e9, 2.1e9), "regression"),
        ("memory_bytes", (2.1e9, 2.0e9), "improvement"),
        ("joules_per_token", (0.10, 0.11), "regression"),
        ("joules_per_token", (0.11, 0.10), "improvement"),
    ],
)
def test_more_memory_and_more_energy_are_worse(figure: str, values: tuple[float, float], expected: str) -> None:
    before, after = values
    points = [point(i, **{figure: before if i < NIGHT - 1 else after}) for i in range(NIGHT + 1)]
    assert word(judge_night(gate_night(points)), figure) == expected


# -- without pairs: two nights running


def test_one_night_is_inconclusive_and_the_second_decides() -> None:
    first = judge_night(gate_night(shifted(-0.10)))
    assert word(first) == "inconclusive" and exit_code(first.findings) == 0
    again = [*shifted(-0.10), point(NIGHT + 1, 905.0)]
    assert word(judge_night(gate_night(again, NIGHT + 1, past_findings=first.findings))) == "regression"
    back = [*shifted(-0.10), point(NIGHT + 1, 1000.0)]
    assert word(judge_night(gate_night(back, NIGHT + 1, past_findings=first.findings))) == "no change"


def test_one_bad_node_does_not_decide_where_there_is_another() -> None:
    quiet = [point(i, 1000 * math.exp(z), node=f"n{i % 2}") for i, z in enumerate(noise(NIGHT))]
    same = [*quiet, point(NIGHT, 900.0, node="n1"), point(NIGHT + 1, 900.0, node="n1")]
    assert word(judge_night(gate_night(same, NIGHT + 1))) == "inconclusive"
    other = [*quiet, point(NIGHT, 900.0, node="n1"), point(NIGHT + 1, 900.0, node="n0")]
    assert word(judge_night(gate_night(other, NIGHT + 1))) == "regression"


def test_a_slow_fall_is_a_regression_without_pairs_too() -> None:
    points, past, words = nights(NIGHT), list[Finding](), list[str]()
    for night, z in zip(range(NIGHT, NIGHT + 25), noise(25, 0.01, 8), strict=True):
        points = [*points, point(night, 1000 * math.exp(z - 0.003 * (night - NIGHT)))]
        outcome = judge_night(gate_night(points, night, past_findings=past))
        past = [*past, *outcome.findings]
        words.append(word(outcome))
    assert "regression" in words and words[-1] == "regression"


def test_a_regression_stays_until_it_is_accepted() -> None:
    points, past, words = nights(NIGHT), list[Finding](), list[str]()
    for night in range(NIGHT, NIGHT + 40):
        points = [*points, point(night, 900.0 + night % 3)]
        outcome = judge_night(gate_night(points, night, past_findings=past))
        past = [*past, *outcome.findings]
        words.append(word(outcome))
    assert words == ["inconclusive"] + ["regression"] * 39


def test_a_gain_is_an_improvement_until_it_is_accepted_and_then_a_fall_back_is_seen() -> None:
    points, past = nights(NIGHT), list[Finding]()
    for night in range(NIGHT, NIGHT + 4):
        points = [*points, point(night, 1100.0 + night % 3)]
        outcome = judge_night(gate_night(points, night, past_findings=past))
        past = [*past, *outcome.findings]
    assert word(outcome) == "improvement" and exit_code(outcome.findings) == 0
    fallen = [*points, point(NIGHT + 4, 1000.0), point(NIGHT + 5, 1001.0)]
    assert word(judge_night(gate_night(fallen, NIGHT + 5, past_findings=past))) == "no change", (
        "four nights may be luck"
    )
    runs = [p.run_id for p in points[-3:]]
    accepted = event("baseline", NIGHT + 3, runs=runs, level={TOKENS: 1100.0})
    assert word(judge_night(gate_night(fallen, NIGHT + 5, past_findings=past, events=[accepted]))) == "regression"


def gained(count: int, after: Sequence[float] = (), change: float = 0.1) -> tuple[list[Point], list[Finding]]:
    """A gain of so many nights that nobody accepts, and what the gate said of them; then nights of these tokens/s."""
    points, past = nights(NIGHT), list[Finding]()
    for night, z in zip(range(NIGHT, NIGHT + count), noise(count, 0.005, 3), strict=True):
        points = [*points, point(night, 1000 * (1 + change) * math.exp(z))]
        past += judge_night(gate_night(points, night, past_findings=past)).findings
    return [*points, *(point(NIGHT + count + i, value) for i, value in enumerate(after))], past


def test_a_fall_from_a_lasting_gain_that_nobody_accepted_is_a_regression_against_a_provisional_level() -> None:
    points, past = gained(10, [1000.0, 1001.0])
    first = judge_night(gate_night(points[:-1], NIGHT + 10, past_findings=past))
    assert word(first) == "inconclusive", "one night, without pairs"
    (finding,) = [
        f
        for f in judge_night(gate_night(points, NIGHT + 11, past_findings=[*past, *first.findings])).findings
        if f.figure == TOKENS
    ]
    assert finding.word == "regression" and finding.level == pytest.approx(1100, rel=0.01)
    assert finding.level_since == day(NIGHT) and finding.change == pytest.approx(-0.09, abs=0.01)
    assert "provisional" in finding.detail and f"since {day(NIGHT)} " in finding.detail


def test_pairs_of_a_fall_from_a_gain_have_the_build_of_its_seventh_night() -> None:
    points, past = gained(10, [1000.0])
    night = gate_night(points, NIGHT + 10, past_findings=past)
    (suspect,) = suspects(night)
    assert suspect.examination.baseline_run == f"run{NIGHT + 6:03d}", "later nights may have lost a part of the gain"
    outcome = judge_night(night, lambda series, figure: [(1100.0 + i, 1000.0 + i) for i in range(7)])
    (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
    assert finding.word == "regression" and finding.pairs == 3 and "gain's build" in finding.detail
    assert exit_code(outcome.findings) == 4
    assert word(judge_night(night, lambda series, figure: [(1100.0 + i, 1101.0 + i) for i in range(7)])) == "no change"
    slow = judge_night(night, lambda series, figure: [(1000.0 + i, 1000.0 + i) for i in range(7)])
    assert word(slow) == "bad night", "the gain's build is slow tonight as well"


def test_a_gain_that_stays_or_falls_in_part_is_judged_by_the_level_that_it_left() -> None:
    points, past = gained(10, [1100.0])
    (finding,) = [
        f for f in judge_night(gate_night(points, NIGHT + 10, past_findings=past)).findings if f.figure == TOKENS
    ]
    assert finding.word == "improvement" and finding.level == pytest.approx(1000, rel=0.01)
    assert "provisional" not in finding.detail
    points, past = gained(10, [1045.0])
    assert word(judge_night(gate_night(points, NIGHT + 10, past_findings=past), pairs(-0.05))) == "regression", (
        "still above the old one"
    )


def test_an_accepted_gain_and_a_gain_that_was_accepted_away_have_no_provisional_level() -> None:
    points, past = gained(10, [1000.0, 1001.0, 1002.0, 1003.0])
    for level, runs, expected in ((1100.0, range(7, 10), "regression"), (1001.0, range(10, 13), "no change")):
        accepted = event("baseline", NIGHT + 12, runs=[f"run{NIGHT + i:03d}" for i in runs], level={TOKENS: level})
        outcome = judge_night(gate_night(points, NIGHT + 13, past_findings=past, events=[accepted]), pairs(-0.1))
        assert word(outcome) == expected and not any("provisional" in f.detail for f in outcome.findings)


def test_nights_that_were_better_now_and_then_make_no_level() -> None:
    history = observations(nights(20), TOKENS)
    runs = [night.run_id for night in history]

    def gain(better: Sequence[str]) -> int:
        era = era_of(segments_of(nights(20)), 0, [], at(30))
        tonight = history[-1]._replace(night="tonight", began=at(25))
        return len(nights_before(era, TOKENS, tonight, [], better, (), better).gain_nights)

    assert gain(runs[8:15]) == 7 and gain(runs[8:14]) == 0, "seven nights, not six"
    assert gain([*runs[4:8], *runs[10:13]]) == 9 and gain([*runs[:4], *runs[17:]]) == 0, "seven of nine, not of twenty"


# -- accepted levels


def accepted_fall(until: str | None = None) -> GateInput:
    quiet = [*nights(NIGHT), *(point(NIGHT + i, 900.0 + i) for i in range(12))]
    runs = [f"run{NIGHT + i:03d}" for i in range(3)]
    accepted = event("baseline", NIGHT + 2, runs=runs, level={TOKENS: 901.0}, until=until)
    past = [bare("regression").model_copy(update={"figure": TOKENS, "run_id": run}) for run in runs]
    return gate_night(quiet, NIGHT + 11, events=[accepted], past_findings=past)


def test_an_accepted_level_is_the_reference() -> None:
    outcome = judge_night(accepted_fall())
    assert word(outcome) == "no change"
    assert [f.level_since for f in outcome.findings if f.figure == TOKENS] == [day(NIGHT)]


def test_an_acceptance_that_has_expired_opens_the_verdict_again() -> None:
    assert word(judge_night(accepted_fall(until=day(NIGHT + 11)))) == "no change"
    expired = judge_night(accepted_fall(until=day(NIGHT + 10)))
    assert word(expired) in ("inconclusive", "regression"), "the level is the old one again"


def test_an_acceptance_holds_from_its_own_time_and_for_its_own_evidence() -> None:
    points = [*nights(NIGHT), *(point(NIGHT + i, 900.0 + i) for i in range(3))]
    runs = [f"run{NIGHT + i:03d}" for i in range(3)]
    accepted = event("baseline", NIGHT + 2, runs=runs, level={TOKENS: 901.0})
    assert word(judge_night(gate_night(points, NIGHT + 2, events=[accepted]))) == "no change", "the evidence itself"
    other = event("baseline", NIGHT + 2, runs=["run010"], level={TOKENS: 901.0})
    assert word(judge_night(gate_night(points, NIGHT + 1, events=[other]))) == "regression", "the night came before it"


def test_an_accepted_level_under_a_new_driver_ends_the_step() -> None:
    points = changed_driver(-0.06, 12)
    runs = [f"run{NIGHT + i:03d}" for i in range(3)]
    accepted = event("baseline", NIGHT + 2, runs=runs, level={TOKENS: 940.0})
    for after in (3, 11):
        assert word(judge_night(gate_night(points, NIGHT + after, events=[accepted]))) == "no change"


def test_a_level_rests_on_no_night_that_was_found_bad_or_changed() -> None:
    points = [*nights(20), *(point(20 + i, 900.0) for i in range(15)), point(35, 1000.0)]
    for outcome in ("bad night", "regression", "improvement"):
        past = [bare(outcome).model_copy(update={"figure": TOKENS, "run_id": f"run{20 + i:03d}"}) for i in range(15)]
        (finding,) = [f for f in judge_night(gate_night(points, 35, past_findings=past)).findings if f.figure == TOKENS]
        assert finding.level == pytest.approx(1000.0, rel=0.01) and finding.nights == 20
        assert (finding.detectable or 1.0) < 0.06


def test_a_young_accepted_level_is_judged_at_once_with_the_old_scatter() -> None:
    points = [*nights(NIGHT), *(point(NIGHT + i, 900.0 + i) for i in range(3)), point(NIGHT + 3, 800.0)]
    runs = [f"run{NIGHT + i:03d}" for i in range(3)]
    accepted = event("baseline", NIGHT + 2, runs=runs, level={TOKENS: 901.0})
    assert word(judge_night(gate_night(points, NIGHT + 3, events=[accepted]), pairs(-0.11))) == "regression"
    steady = [*points[:-1], point(NIGHT + 3, 903.0)]
    assert word(judge_night(gate_night(steady, NIGHT + 3, events=[accepted]))) == "no change"


def test_a_new_series_says_how_many_nights_it_has() -> None:
    outcome = judge_night(gate_night(nights(5), 4))
    (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
    assert (finding.word, re.findall(r"\d+", finding.detail)) == (
        "new series",
        ["4", "7"],
    ) and outcome.compared_count == 0
    assert word(judge_night(gate_night(nights(8), 7))) == "no change"


def test_a_level_without_recent_nights_is_stale() -> None:
    assert word(judge_night(gate_night([*nights(20), point(50, 1000.0)], 50))) == "stale"


# -- conditions


def changed_driver(change: float, after: int = 1) -> list[Point]:
    factor = 1 + change
    later = [
        point(NIGHT + i, 1000 * factor * math.exp(z), conditions="c2") for i, z in enumerate(noise(after, 0.005, 9))
    ]
    return [*nights(NIGHT), *later]


def document_of(digest: str) -> Conditions:
    return conditions(software={"driver": "550" if digest == "c1" else "560"})


CHANGE = condition_changes(document_of("c1"), document_of("c2"))


def test_a_step_at_a_new_driver_is_an_environment_step_that_fails_until_it_is_accepted() -> None:
    past: list[Finding] = []
    for after in range(1, 12):
        night = NIGHT + after - 1
        source = pairs(0.0, night=0.94)
        outcome = judge_night(
            gate_night(changed_driver(-0.06, after), night, past_findings=past, find_conditions=document_of), source
        )
        (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
        assert finding.word == ("environment step" if after > 1 else "inconclusive"), after
        assert CHANGE[0] in finding.detail and finding.fields == CHANGE
        assert exit_code(outcome.findings) == (4 if after > 1 else 0), "a bad night looks like the first one"
        past += outcome.findings
    step = event("environment-step", NIGHT + 11, data={"before": "c1", "after": "c2"})
    later = gate_night(
        changed_driver(-0.06, 13), NIGHT + 12, past_findings=past, events=[step], find_conditions=document_of
    )
    assert word(judge_night(later)) == "no change"


def test_a_step_is_no_silent_new_level_after_seven_nights_either() -> None:
    outcome = judge_night(gate_night(changed_driver(-0.06, 30), NIGHT + 29, find_conditions=document_of))
    assert word(outcome) == "environment step"


def test_pairs_are_spent_once_on_a_step() -> None:
    called: list[str] = []

    def source(name: str, figure: str) -> list[tuple[float, float]]:
        called.append(figure)
        return [(940.0 + i, 940.0 - i) for i in range(7)]

    first = judge_night(gate_night(changed_driver(-0.06), NIGHT), source)
    judge_night(gate_night(changed_driver(-0.06, 2), NIGHT + 1, past_findings=first.findings), source)
    outcome = judge_night(gate_night(changed_driver(-0.06, 12), NIGHT + 11, past_findings=first.findings), source)
    assert called == [TOKENS, "memory_bytes"] and word(outcome) == "environment step"


def test_a_slower_build_under_a_new_driver_is_a_regression() -> None:
    assert word(judge_night(gate_night(changed_driver(-0.06), NIGHT), pairs(-0.06))) == "regression"


def test_a_new_driver_without_an_effect_is_no_finding_and_the_level_goes_on() -> None:
    for after in (1, 3, 8, 12):
        assert word(judge_night(gate_night(changed_driver(0.0, after), NIGHT + after - 1))) == "no change"
    drifted = [*changed_driver(0.0, 10), point(NIGHT + 10, 900.0, conditions="c2")]
    assert word(judge_night(gate_night(drifted, NIGHT + 10), pairs(-0.1))) == "regression"


def test_a_slow_night_under_a_new_driver_is_open_while_the_driver_may_be_the_cause() -> None:
    outcome = judge_night(gate_night(changed_driver(-0.022), find_conditions=document_of), pairs(0.0, night=0.97))
    (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
    assert (finding.word, finding.fields) == ("inconclusive", CHANGE)


def test_later_nights_of_another_node_are_not_known_yet() -> None:
    both = [point(i, 1000 * math.exp(z), node=f"n{i % 2}", conditions=f"c{i % 2}") for i, z in enumerate(noise(NIGHT))]
    tonight = point(NIGHT, 1000.0, node="n1", conditions="c1")
    later = [point(NIGHT + 1 + i, 500.0, node="n0", conditions="c0") for i in range(30)]
    assert judge_night(gate_night([*both, tonight, *later])) == judge_night(gate_night([*both, tonight]))


def test_a_gain_by_a_driver_is_an_improvement_that_names_it() -> None:
    outcome = judge_night(gate_night(changed_driver(0.08, 2), NIGHT + 1, find_conditions=document_of))
    (finding,) = [f for f in outcome.findings if f.figure == TOKENS]
    assert (finding.word, finding.fields) == ("improvement", CHANGE)


def test_a_regression_within_the_new_segment_is_not_hidden_by_the_step() -> None:
    points = [*changed_driver(-0.06, 12), point(NIGHT + 12, 800.0, conditions="c2")]
    assert word(judge_night(gate_night(points, NIGHT + 12), pairs(-0.15))) == "regression"


def test_a_node_with_an_offset_is_no_finding_once_it_is_known() -> None:
    quiet = [point(i, (1000 if i % 2 else 960) * math.exp(z), node=f"n{i % 2}") for i, z in enumerate(noise(NIGHT))]
    for tonight in (point(NIGHT, 960.0, node="n0"), point(NIGHT, 1000.0, node="n1")):
        assert word(judge_night(gate_night([*quiet, tonight]))) == "no change"
    assert word(judge_night(gate_night([*quiet, point(NIGHT, 920.0, node="n1")]), pairs(-0.08))) == "regression"


# -- what the nights are made of


def test_order_and_duplicates_change_nothing() -> None:
    points = shifted(-0.10)
    mixed = [*points, *points[::3]]
    random.Random(2).shuffle(mixed)
    assert judge_night(gate_night(mixed), pairs(-0.1)) == judge_night(gate_night(points), pairs(-0.1))


def test_tonight_never_enters_its_own_level_nor_does_a_later_night() -> None:
    alone = judge_night(gate_night(shifted(-0.10)), pairs(-0.1))
    later = [*shifted(-0.10), *(point(NIGHT + 1 + i, 900.0) for i in range(20))]
    assert judge_night(gate_night(later), pairs(-0.1)).findings == alone.findings


def test_confirmations_and_invalid_runs_change_no_level() -> None:
    quiet = judge_night(gate_night(shifted(-0.02)))
    noisy = [
        *shifted(-0.02),
        *(point(i, 500.0, run_id=f"a{i}", purpose="confirm-a") for i in range(20)),
        *(point(i, 500.0, run_id=f"u{i}", evidence="unsealed") for i in range(20)),
        *(point(i, 500.0, run_id=f"t{i}", evidence="tampered") for i in range(20)),
        *(point(i, 500.0, run_id=f"d{i}", verdict="diverged") for i in range(20)),
        *(point(i, None, run_id=f"f{i}", word="failed") for i in range(20)),
        point(NIGHT, 400.0, run_id="b", purpose="confirm-b"),
    ]
    assert judge_night(gate_night(noisy)).findings == quiet.findings


def test_a_pair_with_a_run_that_is_no_evidence_is_none() -> None:
    """The night refuses it when it runs it; a gate over the store does as well."""
    arms = {
        n: [
            point(NIGHT, rate + n, run_id=f"{arm}{n}", purpose=f"confirm-{arm}", began=f"{at(NIGHT)}{arm}{n}")
            for arm, rate in (("a", 1000.0), ("b", 900.0))
        ]
        for n in range(3)
    }
    for bad in ({"evidence": "tampered"}, {"word": "failed"}, {"verdict": "diverged"}):
        first, second = arms[1]
        runs = [*arms[0], first, second.model_copy(update=bad), *arms[2]]
        assert gate_night([*nights(NIGHT), *runs]).stored_pairs("S", TOKENS) == [(1000.0, 900.0), (1002.0, 902.0)]


def test_what_a_later_night_measures_is_not_missing_in_an_earlier_one() -> None:
    def night_with(index: int, joules: float | None) -> Point:
        return point(index, joules_per_token=joules)

    runs = [night_with(i, None if i < 12 else 0.5) for i in range(20)]
    late = [night_with(i, 0.5 if i < 12 else None) for i in range(13)]
    assert "missing" not in [f.word for f in judge_night(gate_night(runs, 11)).findings]
    assert "missing" in [f.word for f in judge_night(gate_night(late, 12)).findings]


def test_a_unit_mix_up_is_no_number_to_average() -> None:
    outcome = judge_night(gate_night(shifted(999.0)))
    assert word(outcome) == "inconclusive"
    twice = [*shifted(999.0), point(NIGHT + 1, 1e6)]
    assert word(judge_night(gate_night(twice, NIGHT + 1))) == "improvement"


def test_a_figure_that_disappears_is_missing() -> None:
    points = [*nights(NIGHT, joules_per_token=0.1), point(NIGHT, 1000.0)]
    outcome = judge_night(gate_night(points))
    assert word(outcome, "joules_per_token") == "missing" and exit_code(outcome.findings) == 3
    page = format_text(FindingPage("compared", outcome.night, outcome.findings))
    assert "is incomplete: 1 without a figure\n" in page and " missing," not in page
    assert "\nfigure missing  " in page and "J/token" in page
    assert not [f for f in judge_night(gate_night(nights(NIGHT + 1))).findings if f.figure == "joules_per_token"]


# -- runs and entries


@pytest.mark.parametrize(
    ("change", "expected", "code"),
    [
        ({"verdict": "different"}, "training differs", 4),
        ({"verdict": "diverged"}, "training differs", 4),
        ({"word": "failed"}, "invalid run", 3),
        ({"evidence": "unsealed"}, "invalid run", 3),
        ({"evidence": "tampered"}, "invalid run", 3),
    ],
)
def test_a_run_that_is_no_evidence_is_a_finding(change: dict[str, str], expected: str, code: int) -> None:
    outcome = judge_night(gate_night([*nights(NIGHT), point(NIGHT, 1000.0, **change)]))
    assert [f.word for f in outcome.findings] == [expected] and exit_code(outcome.findings) == code
    assert outcome.compared_count == 0 and outcome.expected_count == 1


def test_missing_is_not_green_and_the_first_line_counts() -> None:
    both = {"S": nights(NIGHT + 1), "T": nights(NIGHT)}
    expected = {"suite/s": "S", "suite/t": "T", "suite/new": None}
    outcome = judge_night(GateInput(day(NIGHT), both, {}, expected_entries=expected))
    assert sorted(f.label for f in outcome.findings if f.word == "missing") == ["suite/new", "suite/t"]
    assert exit_code(outcome.findings) == 3
    assert (outcome.compared_count, outcome.expected_count) == (1, 3) and outcome.first_line.endswith(
        f"since {day(10)}"
    )


def test_a_gain_of_one_night_waits_for_a_second_one() -> None:
    quiet, gains = nights(NIGHT), [point(NIGHT + i, 1100.0 + i) for i in range(2)]
    words = []
    for number in (1, 2):
        inputs = GateInput(day(NIGHT + number - 1), {"S": [*quiet, *gains[:number]]}, {})
        (finding,) = [f for f in judge_night(inputs).findings if f.figure == TOKENS]
        words.append((finding.word, finding.is_gain_to_confirm))
    assert words == [("inconclusive", True), ("improvement", False)]


def test_a_night_of_nothing_compares_nothing() -> None:
    outcome = judge_night(GateInput(day(NIGHT), {}, {}, expected_entries={"suite/s": None}))
    assert (outcome.compared_count, outcome.expected_count) == (0, 1) and outcome.first_line.endswith("no baseline")
    assert exit_code(outcome.findings) == 3


def test_without_a_list_what_ran_lately_is_expected() -> None:
    outcome = judge_night(GateInput(day(NIGHT), {"S": nights(NIGHT + 1), "T": nights(NIGHT)}, {}))
    assert [(f.series, f.word) for f in outcome.findings if f.word == "missing"] == [("T", "missing")]
    old = judge_night(GateInput(day(NIGHT), {"S": nights(NIGHT + 1), "T": nights(10)}, {}))
    assert not [f for f in old.findings if f.word == "missing"]


@pytest.mark.parametrize(("days", "is_expected"), [(14, True), (15, False)])
def test_a_series_of_the_last_two_weeks_is_expected(days: int, is_expected: bool) -> None:
    points = {"S": nights(NIGHT + 1), "T": nights(NIGHT - days + 1)}
    outcome = judge_night(GateInput(day(NIGHT), points, {}))
    assert [f.series for f in outcome.findings if f.word == "missing"] == (["T"] if is_expected else [])


def test_an_entry_whose_work_changed_is_incomparable_with_the_fields() -> None:
    points = {"S": nights(NIGHT), "T": [point(NIGHT, 1000.0, entry="suite/s")]}
    documents = {"S": series(), "T": series(micro_batch=4, work="w2")}
    outcome = judge_night(GateInput(day(NIGHT), points, documents, expected_entries={"suite/s": "S"}))
    (finding,) = [f for f in outcome.findings if f.word == "incomparable"]
    assert set(finding.fields) == set(differences(dict(documents["S"]), dict(documents["T"])))
    assert len(finding.fields) == 2 and exit_code(outcome.findings) == 3


@pytest.mark.parametrize(
    ("old", "new", "change", "fields"),
    [
        (
            {"global_batch": 8, "steps": 40},
            {"global_batch": 16, "steps": 40, "parameters": 3},
            {"work": "w2", "corpus": "c2", "accumulation": 2},
            ("global_batch 8 -> 16",),
        ),
        ({"steps": 40}, {"steps": 80}, {"work": "w2", "micro_batch": 4}, ("steps 40 -> 80", "micro_batch 8 -> 4")),
        ({"steps": 40}, {"steps": 40}, {"work": "w2"}, ("work w -> w2",)),
        ({}, {"steps": 40}, {"work": "w2"}, ("work w -> w2",)),
    ],
)
def test_a_changed_workload_is_named_by_its_numbers(
    old: dict[str, object], new: dict[str, object], change: dict[str, Any], fields: tuple[str, ...]
) -> None:
    points = {"S": nights(NIGHT), "T": [point(NIGHT, 1000.0, entry="suite/s")]}
    documents, numbers = {"S": series(), "T": series(**change)}, {f"run{NIGHT:03d}": new}
    expected: dict[str, str | None] = {"suite/s": "S"}
    inputs = GateInput(
        day(NIGHT), points, documents, expected_entries=expected, workload=lambda run_id: numbers.get(run_id, old)
    )
    outcome = judge_night(inputs)
    (finding,) = [f for f in outcome.findings if f.word == "incomparable"]
    assert finding.fields == fields
    page = FindingPage(outcome.first_line, day(NIGHT), outcome.findings)
    assert page.verdict.endswith(f"is incomplete: 1 incomparable: {', '.join(fields)}")


def test_a_new_entry_is_found_by_its_name() -> None:
    outcome = judge_night(gate_night([point(NIGHT, 1000.0, entry="suite/s")], expected_entries={"suite/s": None}))
    assert {f.word for f in outcome.findings} == {"new series"} and outcome.expected_count == 1


def slow_machine(night: int) -> Finding:
    """What a nightly stores when the control finds its machine slow."""
    return Finding(
        series="", label="node n1", figure=None, word="bad night", detail="the fan", night=day(night), node="n1"
    )


def test_a_machine_that_the_control_finds_slow_is_named_and_its_runs_are_judged() -> None:
    outcome = judge_night(gate_night(shifted(-0.10), past_findings=[slow_machine(NIGHT)]), pairs(-0.10))
    (machine,) = [f for f in outcome.findings if f.word == "bad night"]
    assert (machine.label, machine.detail, machine.runs) == ("node n1", "the fan", (f"run{NIGHT:03d}",))
    assert word(outcome) == "regression" and exit_code(outcome.findings) == 4 and exit_code([machine]) == 0
    assert not [
        f
        for f in judge_night(gate_night(shifted(0.0), past_findings=[slow_machine(NIGHT - 1)])).findings
        if not f.series
    ]


def test_no_level_rests_on_the_runs_of_a_slow_machine() -> None:
    findings = judge_night(gate_night(nights(NIGHT), NIGHT - 1, past_findings=[slow_machine(NIGHT - 1)])).findings
    assert f"run{NIGHT - 1:03d}" in histories(gate_night(shifted(0.0)))["S"]
    assert f"run{NIGHT - 1:03d}" not in histories(gate_night(shifted(0.0), past_findings=findings))["S"]


# -- many series


def histories(night: GateInput) -> dict[str, set[str]]:
    """The runs that the level of each series may rest on."""
    outcome = [pair for pair in examinations(night) if pair[1].figure == TOKENS]
    return {around.series: {night.run_id for night in examined.history} for around, examined in outcome}


def many(count: int, change: float, node: str = "n1", first: int = 0) -> dict[str, list[Point]]:
    return {
        f"X{i}": [*nights(NIGHT, seed=i, node=node), point(NIGHT, 1000 * (1 + change), node=node, run_id=f"tonight{i}")]
        for i in range(first, first + count)
    }


def test_many_series_that_move_alike_on_one_node_are_one_finding() -> None:
    points = {**many(6, -0.10), **many(6, 0.0, "n2", 6)}
    outcome = judge_night(GateInput(day(NIGHT), points, {}))
    assert [f.label for f in outcome.findings if f.word == "bad night"] == ["node n1"]
    assert exit_code(outcome.findings) == 0 and outcome.compared_count == 12


@pytest.mark.parametrize(
    ("still", "moved", "is_the_node"), [(3, 0, True), (2, 0, False), (4, 3, True), (3, 3, False), (3, 4, False)]
)
def test_a_node_is_slow_alone_where_most_others_and_three_at_least_did_not_move(
    still: int, moved: int, is_the_node: bool
) -> None:
    points = {**many(6, -0.10), **many(still, 0.0, "n2", 6), **many(moved, -0.10, "n2", 6 + still)}
    outcome = judge_night(GateInput(day(NIGHT), points, {}))
    assert ("node n1" in [f.label for f in outcome.findings if f.word == "bad night"]) is is_the_node


def test_a_bad_night_of_a_node_enters_no_level_of_its_series() -> None:
    points = {**many(6, -0.10), **many(6, 0.0, "n2", 6)}
    first = judge_night(GateInput(day(NIGHT), points, {}))
    (node,) = [f for f in first.findings if f.word == "bad night"]
    assert len(node.runs) == 6
    again = {s: [*of, point(NIGHT + 1, 1000.0, node=of[-1].node)] for s, of in points.items()}
    with_past = GateInput(day(NIGHT + 1), again, {}, past_findings=first.findings)
    without = GateInput(day(NIGHT + 1), again, {})
    assert histories(with_past)["X0"] == histories(without)["X0"] - {"tonight0"}
    assert histories(with_past)["X7"] == histories(without)["X7"]


def test_one_node_alone_does_not_say_whether_it_or_the_build_is_slow() -> None:
    outcome = judge_night(GateInput(day(NIGHT), many(6, -0.10), {}))
    assert {f.word for f in outcome.findings if f.figure == TOKENS} == {"inconclusive"}
    bad = judge_night(GateInput(day(NIGHT), many(6, -0.10), {}), pairs(0.0, night=0.9))
    assert [f.label for f in bad.findings if f.word == "bad night"] == ["node n1"]
    slow = judge_night(GateInput(day(NIGHT), many(6, -0.10), {}), pairs(-0.1))
    assert sum(f.word == "regression" for f in slow.findings) == 6


def test_beyond_a_hundred_series_a_small_excess_is_chance_and_a_large_one_is_not() -> None:
    quiet = {f"X{i}": [*nights(NIGHT, seed=i), point(NIGHT, 1000.0)] for i in range(120)}
    small = {**quiet, "S": shifted(-0.026)}
    assert word(judge_night(GateInput(day(NIGHT), {"S": small["S"]}, {}))) == "inconclusive"
    (finding,) = [
        f for f in judge_night(GateInput(day(NIGHT), small, {})).findings if (f.series, f.figure) == ("S", TOKENS)
    ]
    assert finding.word == "no change" and "chance" in finding.detail
    clear = judge_night(GateInput(day(NIGHT), {**quiet, "S": shifted(-0.10)}, {}), pairs(-0.1))
    assert word(clear) == "regression"


# -- exit codes


def bare(name: Any) -> Finding:
    return Finding(series="S", label="S", figure=None, word=name)


@pytest.mark.parametrize("name", FINDING_WORDS)
def test_every_word_has_its_exit_code(name: str) -> None:
    expected = 4 if name in FAILURE_WORDS else 3 if name in ("missing", "invalid run", "incomparable") else 0
    assert exit_code([bare(name)]) == expected and exit_code([bare(name)], advisory=True) == 0
    assert exit_code([bare(name)], strict=True) == (expected or (0 if name == "no change" else 4))
    assert exit_code([bare(name), bare("regression")]) == 4


def test_the_words_are_in_three_groups() -> None:
    assert (
        frozenset({"regression", "training differs", "environment step"}) == FAILURE_WORDS and len(FINDING_WORDS) == 13
    )
