"""Accepting: what suffices as evidence, what never does, and what the event says."""

from __future__ import annotations

import pytest
from gate_points import at, conditions, day, nights, point
from levelfield.errors import UsageError
from levelfield.nights.baselines import LevelEvidence, baseline_event, note_event, same_step_events, step_event
from levelfield.series.examination import era_of
from levelfield.series.findings import Finding
from levelfield.series.level import MAX_LEVEL_NIGHTS, level_of
from levelfield.series.segments import segments_of
from levelfield.specs.record import Conditions, Point

TOKENS = "tokens_per_second_per_device"
NOW = at(60)


def test_the_unchanged_nights_are_the_evidence_and_the_level_their_median() -> None:
    points = [*nights(4, deviation=0.0), point(4, 900.0), point(5, 910.0), point(6, 2000.0)]
    accepted = baseline_event(LevelEvidence("S", tuple(points)), "ann", "kernels", NOW, "2026-12-31")
    assert accepted.runs == tuple(f"run00{i}" for i in range(7)) and accepted.level[TOKENS] == pytest.approx(1000.0)
    assert (accepted.kind, accepted.series, accepted.who, accepted.why) == ("baseline", "S", "ann", "kernels")
    assert accepted.until == "2026-12-31" and accepted.at == NOW
    assert "joules_per_token" not in accepted.level, "what was not measured is not accepted"


def test_a_series_that_is_accepted_after_seven_nights_is_judged_in_the_eighth() -> None:
    event = baseline_event(LevelEvidence("S", tuple(nights(7))), "ann", "first level", at(6, 9))
    points = [*nights(7), point(7)]
    era = era_of(segments_of(points), 0, [event], points[-1].began)
    level = level_of(era.current_nights(TOKENS, points[-1].began), "n1")
    assert level is not None and level.night_count == 7, (
        "the nights of the evidence are the level; with three it was a new series"
    )


def test_a_newest_night_in_doubt_is_no_evidence_unless_it_is_named() -> None:
    """A build that made half of the speed, without pairs to prove it, must not become the build that pairs run."""
    points = (*nights(8, deviation=0.0), point(8, 500.0))
    doubt = (Finding(series="S", label="S", figure=TOKENS, word="inconclusive", run_id="run008"),)
    accepted = baseline_event(LevelEvidence("S", points, doubt), "ann", "why", NOW)
    assert accepted.runs[-1] == "run007" and accepted.level[TOKENS] == pytest.approx(1000.0)
    by_name = LevelEvidence("S", points, doubt, named_runs=("run006", "run007", "run008"))
    assert baseline_event(by_name, "ann", "why", NOW).runs[-1] == "run008"
    settled = (*doubt, doubt[0].model_copy(update={"word": "no change"}))
    assert baseline_event(LevelEvidence("S", points, settled), "ann", "why", NOW).runs[-1] == "run008"


def test_a_regression_behind_a_newest_night_in_doubt_is_not_accepted_in_its_place() -> None:
    """A night that was found slower by pairs, then a faster one that no pair decided: that one is meant."""
    points = (*nights(8, deviation=0.0), point(8, 900.0), point(9, 1100.0))
    worse = Finding(series="S", label="S", figure=TOKENS, word="regression", run_id="run008", pairs=5)
    doubt = Finding(series="S", label="S", figure=TOKENS, word="inconclusive", run_id="run009")
    with pytest.raises(UsageError, match=rf"{day(8)}.*regression.*--run"):
        baseline_event(LevelEvidence("S", points, (worse, doubt)), "ann", "why", NOW)
    by_name = LevelEvidence("S", points, (worse, doubt), named_runs=("run008",))
    assert baseline_event(by_name, "ann", "why", NOW).runs == ("run008",), "named, it is meant"
    better = worse.model_copy(update={"word": "improvement"})
    assert baseline_event(LevelEvidence("S", points, (better, doubt)), "ann", "why", NOW).runs == ("run008",)


def test_at_most_the_nights_of_a_level_are_accepted() -> None:
    accepted = baseline_event(LevelEvidence("S", tuple(nights(50))), "ann", "why", NOW)
    assert accepted.runs == tuple(f"run{i:03d}" for i in range(50 - MAX_LEVEL_NIGHTS, 50))


def test_nights_before_the_baseline_that_holds_are_no_evidence() -> None:
    points = (*nights(10), *(point(i, 900.0) for i in range(10, 16)))
    old = baseline_event(LevelEvidence("S", points, named_runs=("run010", "run011", "run012")), "ann", "why", at(12, 9))
    accepted = baseline_event(LevelEvidence("S", points, baseline=old), "ann", "why", NOW)
    assert accepted.runs == tuple(f"run{i:03d}" for i in range(10, 16)) and accepted.level[TOKENS] == pytest.approx(
        900.0
    )


def test_nights_that_were_found_changed_are_no_evidence_for_the_level_after_them() -> None:
    slow = tuple(point(i, 900.0) for i in (7, 8))
    points = (*nights(7, deviation=0.0), *slow, *nights(3, deviation=0.0, first=9))
    past = tuple(Finding(series="S", label="S", figure=TOKENS, word="regression", run_id=p.run_id) for p in slow)
    accepted = baseline_event(LevelEvidence("S", points, past), "ann", "why", NOW)
    assert len(accepted.runs) == 10 and not {p.run_id for p in slow} & set(accepted.runs)
    quiet = tuple(finding.model_copy(update={"word": "no change"}) for finding in past)
    taken_back = baseline_event(LevelEvidence("S", points, (*past, *quiet)), "ann", "why", NOW)
    assert len(taken_back.runs) == 12, "the last finding counts"


def test_after_a_change_of_conditions_its_own_nights_suffice() -> None:
    points = (*nights(6), *nights(3, first=6, conditions="c2"))
    accepted = baseline_event(LevelEvidence("S", points), "ann", "why", NOW)
    assert accepted.runs == ("run006", "run007", "run008")


def test_named_runs_are_the_evidence() -> None:
    evidence = LevelEvidence("S", tuple(nights(10)), named_runs=("run002", "run003", "run005"))
    assert baseline_event(evidence, "ann", "why", NOW).runs == ("run002", "run003", "run005")


def test_two_nights_are_too_few_and_three_runs_of_a_night_are_one() -> None:
    with pytest.raises(UsageError, match="found 2"):
        baseline_event(LevelEvidence("S", tuple(nights(2))), "ann", "why", NOW)
    same = tuple(point(1, 1000.0, run_id=f"r{i}", began=at(1, i)) for i in range(3))
    with pytest.raises(UsageError, match="found 1"):
        baseline_event(LevelEvidence("S", same), "ann", "why", NOW)


@pytest.mark.parametrize("word", ["regression", "improvement", "no change"])
def test_one_night_suffices_where_pairs_decided(word: str) -> None:
    decided = Finding(series="S", label="S", figure=TOKENS, word=word, run_id="run000", pairs=5)
    accepted = baseline_event(LevelEvidence("S", (point(0, 900.0),), (decided,)), "ann", "why", NOW)
    assert accepted.level[TOKENS] == pytest.approx(900.0)
    open_one = decided.model_copy(update={"word": "inconclusive"})
    with pytest.raises(UsageError, match="found 0"):
        baseline_event(LevelEvidence("S", (point(0, 900.0),), (open_one,)), "ann", "why", NOW)


def test_a_regression_that_one_pair_holds_is_accepted_on_the_night_that_pairs_decided() -> None:
    points = (*nights(10), point(10, 900.0), point(11, 902.0))
    decided = Finding(series="S", label="S", figure=TOKENS, word="regression", run_id="run010", pairs=5)
    held = decided.model_copy(update={"run_id": "run011", "pairs": 1, "named": day(10)})
    accepted = baseline_event(LevelEvidence("S", points, (decided, held)), "ann", "why", NOW)
    assert accepted.runs == ("run010", "run011") and accepted.level[TOKENS] == pytest.approx(901.0)
    with pytest.raises(UsageError, match="found 2"):
        baseline_event(LevelEvidence("S", points, (decided.model_copy(update={"pairs": 0}), held)), "a", "b", NOW)


def test_a_level_that_pairs_judged_is_not_mixed_with_the_nights_before_it() -> None:
    points = (*nights(10), point(10, 900.0))
    decided = Finding(series="S", label="S", figure=TOKENS, word="regression", run_id="run010", pairs=5)
    accepted = baseline_event(LevelEvidence("S", points, (decided,)), "ann", "why", NOW)
    assert accepted.runs == ("run010",) and accepted.level[TOKENS] == pytest.approx(900.0)
    later = baseline_event(LevelEvidence("S", (*points, point(11, 1000.0)), (decided,)), "ann", "why", NOW)
    assert "run010" not in later.runs and len(later.runs) == 11, "the newest night is not changed"


@pytest.mark.parametrize(
    "change",
    [
        {"word": "failed"},
        {"evidence": "unsealed"},
        {"evidence": "tampered"},
        {"verdict": "different"},
        {"purpose": "confirm-b"},
    ],
)
def test_evidence_that_fails_is_refused(change: dict[str, str]) -> None:
    bad = tuple(point(i, 1000.0, **change) for i in range(5))
    with pytest.raises(UsageError, match="found 0"):
        baseline_event(LevelEvidence("S", bad), "ann", "why", NOW)
    with pytest.raises(UsageError, match=r"run001:.*evidence"):
        baseline_event(LevelEvidence("S", bad, named_runs=("run001",)), "ann", "why", NOW)


def test_bad_nights_are_no_evidence() -> None:
    points = tuple(nights(6))
    past = tuple(Finding(series="S", label="S", figure=TOKENS, word="bad night", run_id=f"run00{i}") for i in (4, 5))
    assert baseline_event(LevelEvidence("S", points, past), "ann", "why", NOW).runs == (
        "run000",
        "run001",
        "run002",
        "run003",
    )
    with pytest.raises(UsageError, match="--run run005"):
        baseline_event(LevelEvidence("S", points, past, ("run005",)), "ann", "why", NOW)


def test_a_run_of_another_series_is_refused() -> None:
    with pytest.raises(UsageError, match="--run other"):
        baseline_event(LevelEvidence("S", tuple(nights(6)), named_runs=("other",)), "ann", "why", NOW)


def test_evidence_across_a_change_of_conditions_is_refused() -> None:
    points = (*nights(6), point(6, conditions="c2"))
    with pytest.raises(UsageError, match="several conditions"):
        baseline_event(LevelEvidence("S", points), "ann", "why", NOW)


def test_a_reason_is_needed() -> None:
    with pytest.raises(UsageError, match="--reason: "):
        baseline_event(LevelEvidence("S", tuple(nights(6))), "ann", "  ", NOW)


def test_every_known_node_gets_the_accepted_level_with_its_offset() -> None:
    points = [point(i, 1000.0 if i % 2 else 900.0, node=f"n{i % 2}") for i in range(20)]
    evidence = [point(20 + i, 800.0, node="n1") for i in range(3)]
    by_name = tuple(entry.run_id for entry in evidence)
    accepted = baseline_event(LevelEvidence("S", (*points, *evidence), named_runs=by_name), "ann", "why", NOW)
    nodes = accepted.data["nodes"][TOKENS]  # type: ignore[index,call-overload]
    assert nodes["n1"] == pytest.approx(800.0) and nodes["n0"] == pytest.approx(720.0)  # type: ignore[index,call-overload]


def test_a_step_names_the_conditions_on_both_sides() -> None:
    points = [*nights(5), *(point(i, conditions="c2") for i in (5, 6)), *(point(i, conditions="c3") for i in (7, 8))]
    accepted = step_event("S", points, "ann", "driver", NOW)
    assert accepted.kind == "environment-step" and accepted.data == {"before": "c2", "after": "c3"}
    assert accepted.runs == ("run007", "run008")
    with pytest.raises(UsageError, match="series S: "):
        step_event("S", nights(5), "ann", "driver", NOW)


def test_the_same_step_is_accepted_in_every_series_that_has_it_and_in_no_other() -> None:
    def stepped(after: str) -> list[Point]:
        return [*nights(5), *(point(i, conditions=after) for i in (5, 6))]

    points = {"S": stepped("c2"), "T": stepped("c2"), "U": stepped("c3"), "V": nights(7)}
    step = step_event("S", points["S"], "ann", "driver", NOW, "2026-12-31")
    (other,) = same_step_events(step, points, lambda digest: None)
    assert (other.series, other.data, other.until) == ("T", step.data, "2026-12-31") and other.id != step.id


def test_the_same_step_of_a_series_with_other_variables_is_accepted_by_its_own_digests() -> None:
    def on_nodes(digest: str) -> Conditions:
        drivers = {"c1": "550", "c2": "560", "d1": "550", "d2": "560", "e2": "570"}
        return conditions(software={"driver": drivers[digest]}, variables={"OMP_X": digest[0]})

    def stepped(before: str, after: str) -> list[Point]:
        return [*nights(5, conditions=before), *(point(i, conditions=after) for i in (5, 6))]

    points = {"S": stepped("c1", "c2"), "T": stepped("d1", "d2"), "U": stepped("c1", "e2")}
    (other,) = same_step_events(step_event("S", points["S"], "ann", "driver", NOW), points, on_nodes)
    assert (other.series, other.data) == ("T", {"before": "d1", "after": "d2"})


def test_a_note_accepts_nothing() -> None:
    accepted = note_event("S", "ann", "moved the rack", NOW)
    assert (accepted.kind, accepted.level, accepted.runs, accepted.at[:10]) == ("note", {}, (), day(60))
