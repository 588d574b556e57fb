"""Which entries a night runs first, and what its budget holds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from gate_points import point as gate_point
from levelfield.nights import night_session
from levelfield.nights.nightly import (
    UNKNOWN_SECONDS,
    Candidate,
    expected_seconds,
    is_other_build,
    most_informative_first,
    nights_unseen,
    split_by_budget,
)
from levelfield.specs.record import Point, Subject


def candidate(
    name: str, seconds: float = 60.0, new: bool = False, wide: float | None = 0.01, unseen: int | None = 0
) -> Candidate:
    return Candidate(name, seconds, new, wide, unseen)


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (candidate("x", new=True), candidate("y")),
        (candidate("x", wide=0.04), candidate("y", wide=0.01)),
        (candidate("x", wide=None), candidate("y", wide=0.02)),
        (candidate("x", unseen=3), candidate("y", unseen=0)),
        (candidate("x", unseen=None), candidate("y", unseen=2)),
        (candidate("x", seconds=30.0), candidate("y", seconds=60.0)),
    ],
)
def test_what_tells_more_in_a_second_comes_first(more: Candidate, less: Candidate) -> None:
    assert [c.name for c in most_informative_first([less, more])] == ["x", "y"]


def test_equal_entries_keep_the_order_of_the_suite() -> None:
    assert [c.name for c in most_informative_first([candidate("b"), candidate("a")])] == ["b", "a"]


def test_a_budget_keeps_a_part_for_confirmations_and_a_short_entry_still_fits_behind_a_long_one() -> None:
    chosen, out = split_by_budget([candidate("a", 40), candidate("b", 50), candidate("c", 25)], 100)
    assert ([c.name for c in chosen], [c.name for c in out]) == (["a", "c"], ["b"])


def test_the_first_entry_runs_even_when_the_budget_is_too_small() -> None:
    chosen, out = split_by_budget([candidate("a", 40), candidate("b", 40)], 1)
    assert ([c.name for c in chosen], [c.name for c in out]) == (["a"], ["b"])
    assert split_by_budget([candidate("a")], None) == ([candidate("a")], [])


def test_an_entry_is_expected_to_last_as_before_else_as_the_others() -> None:
    lasted = {"a": [10.0, 12.0, 90.0], "b": [30.0]}
    assert expected_seconds(lasted, "a") == 12.0
    assert expected_seconds(lasted, "c") == 21.0
    assert expected_seconds({}, "c") == UNKNOWN_SECONDS


def point(night: str | None) -> Point:
    return gate_point(0, night=night)


def test_nights_since_an_entry_ran() -> None:
    nights = ["1", "2", "3", "4"]
    assert nights_unseen([point("1"), point("2")], nights) == 2
    assert nights_unseen([point("4")], nights) == 0
    assert nights_unseen([point(None), point("other")], nights) is None


@pytest.mark.parametrize(("purpose", "held_against"), [("nightly", "b"), ("confirm-a", "a")])
def test_tonights_build_is_held_against_the_last_night_and_not_against_a_pairs_older_build(
    purpose: str, held_against: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(night_session, "is_other_build", lambda before, now: seen.append(before))
    monkeypatch.setattr(night_session, "Subject", SimpleNamespace)
    points = [gate_point(0, purpose=p, subject=s) for p, s in (("nightly", "a"), (purpose, "b"))]
    plan = SimpleNamespace(
        implementation=SimpleNamespace(version="1", digest="d"),
        environment=SimpleNamespace(digest=""),
        platform_version="1",
    )
    night_session._is_new_build(SimpleNamespace(subject=str), points, plan)  # type: ignore[arg-type]
    assert seen == [held_against]


def subject(**change: object) -> Subject:
    unseen = {
        "framework_version": "1",
        "environment": "e",
        "packages": None,
        "image": None,
        "implementation": "i",
        "commit": "c",
        "is_dirty": False,
        "platform_version": "0",
        "formulas": (),
    }
    return Subject.model_validate({**unseen, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"environment": "f"},
        {"image": "g"},
        {"implementation": "j"},
        {"commit": "d"},
        {"is_dirty": True},
        {"is_dirty": None},
    ],
)
def test_another_build_is_seen_by_code_software_commit_and_a_dirty_tree(change: dict[str, object]) -> None:
    assert is_other_build(subject(), subject(**change))


def test_the_same_build_is_none_and_an_unknown_one_is_another() -> None:
    assert not is_other_build(subject(), subject(packages="p"))
    assert is_other_build(None, subject())
