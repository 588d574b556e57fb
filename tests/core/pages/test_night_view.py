"""The page of the last night: what changed, what is missing, who is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.pages.content import parse_finding, read_content
from levelfield.pages.night_view import MAX_CHANGES, NightView, night_view
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.series.findings import FINDING_WORDS
from levelfield.series.ticket import Ticket, TicketCommit, Tickets
from seeded_nights import SeededNights


def view(results: InMemoryStore) -> NightView:
    return night_view(read_content(results))


SEEDED = SeededNights(series=10, nights=20)


def test_the_last_night_in_figures() -> None:
    seen = view(SEEDED.results())
    assert (seen.night, seen.expected_count, seen.arrived_count) == ("2026-10-20", 10, 9)
    assert seen.word_counts["regression"] == seen.word_counts["missing"] == 1 and seen.word_counts["no change"] == 3
    assert seen.attention_count == 5 and seen.is_judged and seen.compared_count == 8


def test_changes_come_by_urgency_and_without_the_calm() -> None:
    words = [row.finding.word for row in view(SEEDED.results()).changes]
    assert words == sorted(words, key=FINDING_WORDS.index) and words[0] == "regression"
    assert not {"no change", "new series", "missing"} & set(words)


def test_what_was_expected_and_did_not_run_is_missing_also_without_a_gate() -> None:
    records = list(SEEDED.records())
    expected = {"2026-10-20": {entry.series.label: entry.digest for entry in InMemoryStore(records).series()}}
    seen = view(InMemoryStore(records, expected=expected))
    [missing] = seen.missing
    assert missing.name.split()[0] == "gpt3_6.7B:torch:MI300X:1:8"
    assert seen.missing[0].last_began and seen.missing[0].last_began.startswith("2026-10-19") and not seen.is_judged


def test_an_entry_that_never_ran_is_missing_where_the_gate_says_so() -> None:
    findings = [{"series": "", "label": f"nightly/{name}", "word": "missing"} for name in ("new", "newer")]
    expected: dict[str, Any] = {"2026-11-01": dict.fromkeys(("nightly/new", "nightly/newer", "nightly/other"))}
    seen = view(InMemoryStore([], findings={"2026-11-01": findings}, expected=expected))
    assert [(entry.name, entry.last_began) for entry in seen.missing] == [
        ("nightly/new", None),
        ("nightly/newer", None),
    ]
    assert seen.arrived_count == 1


def test_an_entry_that_ran_without_a_figure_is_not_missing() -> None:
    records = list(SEEDED.records())
    last = max(record.night or "" for record in records)
    ran = next(entry for entry in InMemoryStore(records).series() if entry.series.label)
    lacking = finding(ran.digest, "missing", figure="joules_per_token", detail="not measured tonight")
    seen = view(InMemoryStore(records, findings={last: [lacking]}, expected={last: {"suite/a": ran.digest}}))
    assert (seen.missing, seen.arrived_count, seen.word_counts["missing"], seen.attention_count) == ((), 1, 1, 1)
    [change] = seen.changes
    assert (change.finding.figure, change.finding.detail) == ("joules_per_token", "not measured tonight")


def test_the_table_of_changes_is_bounded_and_says_so() -> None:
    findings = {
        "2026-11-01": [{"series": f"s{i}", "label": f"s{i}", "word": "regression"} for i in range(MAX_CHANGES + 7)]
    }
    seen = view(InMemoryStore([], findings=findings))
    assert (len(seen.changes), seen.left_out_count, seen.word_counts["regression"]) == (MAX_CHANGES, 7, MAX_CHANGES + 7)


def finding(series: str, word: str, **more: Any) -> dict[str, Any]:
    return {"series": series, "label": series, "figure": "memory_bytes", "word": word, **more}


def test_a_later_finding_replaces_an_earlier_one() -> None:
    findings = {"2026-11-01": [finding("a", "inconclusive"), finding("b", "regression"), finding("a", "no change")]}
    seen = view(InMemoryStore([], findings=findings))
    assert (seen.word_counts["inconclusive"], seen.word_counts["no change"], seen.word_counts["regression"]) == (
        0,
        1,
        1,
    )


def test_the_gates_own_words_decide_and_what_it_does_not_store_comes_from_its_rule() -> None:
    findings = [finding("a", "no change", detectable=0.02), finding("b", "regression"), finding("c", "regression")]
    stored = {"2026-11-01": [finding("b", "bad night")]}
    words = {f.series: f.word for f in read_content(InMemoryStore([], findings=stored), findings).last_night_findings}
    assert words == {"a": "no change", "b": "bad night"}, "c belongs to a finding about its node, or was confirmed"
    empty = InMemoryStore([], expected={"2026-11-01": {}})
    assert {f.series: f.word for f in read_content(empty, findings).last_night_findings} == {
        "a": "no change",
        "b": "regression",
        "c": "regression",
    }
    assert read_content(InMemoryStore([]), findings).findings == (), "without a night nothing was judged"


def test_the_page_counts_series_and_shows_the_speed_first() -> None:
    figures = ("joules_per_token", "memory_bytes", "tokens_per_second_per_device")
    findings = [finding(name, "new series", figure=figure) for name in "abc" for figure in figures]
    findings += [finding("d", "regression", figure=figure, change=0.05) for figure in figures]
    findings.append(finding("d", "no change", figure="a figure of another version"))
    seen = view(InMemoryStore([], findings={"2026-11-01": findings}))
    assert (seen.word_counts["new series"], seen.word_counts["regression"], seen.word_counts["no change"]) == (3, 1, 0)
    assert [row.finding.figure for row in seen.changes] == ["tokens_per_second_per_device", "memory_bytes", figures[0]]


def test_the_page_has_the_commits_by_digests_and_no_author(tmp_path: Path) -> None:
    results = SeededNights(series=4, nights=8).results()
    named = next(f for f in read_content(results).last_night_findings if f.word == "regression")
    commit = TicketCommit(commit="c" * 40, author="Eve", subject="Wait longer")
    values: dict[str, Any] = {"since_night": "2026-10-07", "commits": (commit,), "all_commits": 1}
    tickets: Tickets = {(named.series, named.figure): Ticket(**values)}
    build_pages(results, tmp_path, Registry(), tickets=tickets)
    for name in ("nights.html", "zh/nights.html"):
        page = (tmp_path / name).read_text()
        assert page.count("cccccccccccc") == 2 and "2026-10-07" in page, "the commits, and the one to revert"
        assert "Eve" not in page and "Wait longer" not in page


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
    changes = view(InMemoryStore([], findings={"2026-10-19": findings})).changes
    assert [row.finding.change for row in changes] == [-0.3, -0.02, None]
