"""The page of the last night: what changed, what is missing, who is left out."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.pages.content import parse_finding, read_content
from levelfield.pages.night_view import ROWS, NightView, night_view
from levelfield.pages.series_history import GivenRuns
from levelfield.series.findings import WORDS
from seeded_nights import SeededNights


def view(results: GivenRuns) -> NightView:
    return night_view(read_content(results))


SEEDED = SeededNights(series=10, nights=20)


def test_the_last_night_in_figures() -> None:
    seen = view(SEEDED.results())
    assert (seen.night, seen.expected, seen.arrived) == ("2026-10-20", 10, 9)
    assert seen.counts["regression"] == seen.counts["missing"] == 1 and seen.counts["no change"] == 3
    assert seen.attention == 5 and seen.is_judged and seen.compared == 8


def test_changes_come_by_urgency_and_without_the_calm() -> None:
    words = [row.finding.word for row in view(SEEDED.results()).changes]
    assert words == sorted(words, key=WORDS.index) and words[0] == "regression"
    assert not {"no change", "new series", "missing"} & set(words)


def test_what_was_expected_and_did_not_run_is_missing_also_without_a_gate() -> None:
    records = list(SEEDED.records())
    expected = {"2026-10-20": {entry.series.label: entry.digest for entry in GivenRuns(records).series()}}
    seen = view(GivenRuns(records, expected=expected))
    [missing] = seen.missing
    assert missing.name.split()[0] == "gpt3_6.7B:torch:MI300X:1:8"
    assert seen.missing[0].last and seen.missing[0].last.startswith("2026-10-19") and not seen.is_judged


def test_an_entry_that_never_ran_is_missing_where_the_gate_says_so() -> None:
    finding = {"series": "", "label": "nightly/new", "word": "missing"}
    expected: dict[str, Any] = {"2026-11-01": {"nightly/new": None, "nightly/other": None}}
    seen = view(GivenRuns([], findings={"2026-11-01": [finding]}, expected=expected))
    assert [(entry.name, entry.last) for entry in seen.missing] == [("nightly/new", None)] and seen.arrived == 1


def test_the_table_of_changes_is_bounded_and_says_so() -> None:
    findings = {"2026-11-01": [{"series": f"s{i}", "label": f"s{i}", "word": "regression"} for i in range(ROWS + 7)]}
    seen = view(GivenRuns([], findings=findings))
    assert (len(seen.changes), seen.left_out, seen.counts["regression"]) == (ROWS, 7, ROWS + 7)


def finding(series: str, word: str, **more: Any) -> dict[str, Any]:
    return {"series": series, "label": series, "figure": "memory_bytes", "word": word, **more}


def test_a_later_finding_replaces_an_earlier_one() -> None:
    findings = {"2026-11-01": [finding("a", "inconclusive"), finding("b", "regression"), finding("a", "no change")]}
    seen = view(GivenRuns([], findings=findings))
    assert (seen.counts["inconclusive"], seen.counts["no change"], seen.counts["regression"]) == (0, 1, 1)


def test_the_gates_own_words_decide_and_what_it_does_not_store_comes_from_its_rule() -> None:
    findings = [finding("a", "no change", detectable=0.02), finding("b", "regression"), finding("c", "regression")]
    stored = {"2026-11-01": [finding("b", "bad night")]}
    words = {f.series: f.word for f in read_content(GivenRuns([], findings=stored), findings).tonight}
    assert words == {"a": "no change", "b": "bad night"}, "c belongs to a finding about its node, or was confirmed"
    empty = GivenRuns([], expected={"2026-11-01": {}})
    assert {f.series: f.word for f in read_content(empty, findings).tonight} == {
        "a": "no change",
        "b": "regression",
        "c": "regression",
    }
    assert read_content(GivenRuns([]), findings).findings == (), "without a night nothing was judged"


# -- findings of any version


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        ({}, "word", "inconclusive"),
        ({"word": "a word of later"}, "word", "inconclusive"),
        ({"word": 7}, "word", "inconclusive"),
        ({"change": "5 %"}, "change", None),
        ({"change": float("nan")}, "change", None),
        ({"change": float("inf")}, "change", None),
        ({"change": True}, "change", None),
        ({"change": -0.05}, "change", -0.05),
        ({"label": ["x"]}, "label", ""),
        ({"detail": "x" * 9000}, "detail", "x" * 400),
        ({"fields": "abc"}, "fields", ()),
        ({"fields": [1, "b"]}, "fields", ("1", "b")),
    ],
)
def test_a_finding_of_another_form_is_read_as_far_as_it_goes(content: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(parse_finding("2026-11-01", content), field) == value


def test_the_larger_change_comes_first() -> None:
    findings = [{"word": "regression", "change": c, "label": str(c)} for c in (-0.02, -0.3, None)]
    changes = view(GivenRuns([], findings={"2026-10-19": findings})).changes
    assert [row.finding.change for row in changes] == [-0.3, -0.02, None]
