"""Findings as text, Markdown, JUnit and JSON: readable, valid, and harmless whatever a run is called."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from levelfield.series.finding_forms import FORMATS, as_junit, as_markdown, as_text, written
from levelfield.series.findings import Finding, FindingPage, in_order

HOSTILE = 'x\x1b[31m\x00\ufffe|`<img onerror=alert(1)>"@everyone\n# heading ]]> &'
TOKENS = "tokens_per_second_per_device"


def finding(word: str, **more: Any) -> Finding:
    given: dict[str, Any] = {
        "series": "S", "label": "gpt3_6.7B:torch:cpu:1:2 smoke fp32 DP1TP2PP1 mb8", "figure": TOKENS, "word": word,
        "change": -0.062, "low": -0.071, "high": -0.053, "level": 5165.2, "level_since": "2026-10-01", "nights": 30,
        "detectable": 0.021, "run_id": "r", "detail": "against the last accepted build, by 4 pairs", "pairs": 4,
    }  # fmt: skip
    return Finding.model_validate({**given, **more})


def page(*findings: Finding, **more: bool) -> FindingPage:
    return FindingPage("compared 38 of 40 series of night 2026-11-22", "2026-11-22", tuple(in_order(findings)), **more)


MIXED = (
    finding("no change", change=0.001, detail=""),
    finding("missing", figure=None, change=None, low=None, high=None, level=None, detail="expected, not run"),
    finding("regression"),
    finding("inconclusive", figure="memory_bytes", level=2.0 * 2**30, detail="about 5 more pairs, after 7"),
    finding("invalid run", figure=None, detail="failed"),
)


def test_the_worst_word_comes_first_and_the_first_line_before_all() -> None:
    lines = as_text(page(*MIXED)).splitlines()
    assert lines[0].startswith("compared 38 of 40")
    assert lines[1].startswith("findings: 1 regression, 1 missing, 1 invalid run")
    text = "\n".join(lines)
    assert text.index("\nregression") < text.index("\nmissing") < text.index("\ninconclusive")
    assert "tokens/s/device -6.2 % [-7.1 %, -5.3 %] of 5,165.2, the level of 30" in " ".join(text.split())
    assert "no change: 1 figures; one night shows changes from 2.1%" in text
    assert max(map(len, lines)) <= 80


def test_a_terminal_shows_some_findings_of_a_word_and_counts_the_others() -> None:
    text = as_text(page(*(finding("environment step", label=f"series {i}") for i in range(20)), finding("stale")))
    assert text.count("environment step  series") == 12 and "environment step: 8 more" in text and "stale" in text
    assert as_markdown(page(*(finding("stale", label=f"series {i}") for i in range(20)))).count("| stale") == 20


def test_markdown_has_its_table_first() -> None:
    lines = as_markdown(page(*MIXED)).splitlines()
    assert lines[0].startswith("| word | series |") and lines[2].startswith("| regression |")
    assert "compared 38 of 40 series of night 2026-11-22" in lines
    assert as_markdown(page(MIXED[0])).startswith("No change.\n")


@pytest.mark.parametrize("word", ["regression", "missing", "no change"])
def test_hostile_names_break_no_format(word: str) -> None:
    hostile = page(finding(word, label=HOSTILE, detail=HOSTILE))
    table = as_markdown(hostile)
    row = next(line for line in table.splitlines() if line.startswith(f"| {word}"))
    assert "<img" not in row and "\x1b" not in row and "@everyone" not in row
    assert row.count("|") - row.count("\\|") == 10
    root = ElementTree.fromstring(as_junit(hostile))
    (case,) = root.iter("testcase")
    assert case.get("classname", "").startswith("x[31m|`<img onerror")
    assert json.loads(written(hostile, "json"))["findings"][0]["label"] == HOSTILE


def test_junit_maps_the_words_to_its_three() -> None:
    suite = ElementTree.fromstring(as_junit(page(*MIXED))).find("testsuite")
    assert suite is not None
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "2", "skipped": "1"}
    assert [child.tag for case in suite.iter("testcase") for child in case] == ["failure", "error", "error", "skipped"]
    assert suite.findtext("system-out", "").startswith("compared 38 of 40")


def test_strict_and_advisory_change_the_outcome_and_not_the_words() -> None:
    def tags(found: FindingPage) -> list[str]:
        return [child.tag for case in ElementTree.fromstring(as_junit(found)).iter("testcase") for child in case]

    assert tags(page(*MIXED, strict=True)).count("failure") == 2
    assert set(tags(page(*MIXED, advisory=True))) == {"skipped"}
    assert page(*MIXED).exit_code == 4 and page(*MIXED, advisory=True).exit_code == 0
    assert "the exit code would be 4" in as_text(page(*MIXED, advisory=True))


@pytest.mark.parametrize("form", FORMATS)
def test_a_night_without_findings_is_written_too(form: str) -> None:
    assert "compared 38 of 40" in written(page(), form)


def test_json_has_full_precision_and_the_exit_code() -> None:
    found = json.loads(written(page(*MIXED), "json"))
    assert (found["schema"], found["exit_code"]) == ("levelfield.gate/1", 4)
    assert found["findings"][0]["low"] == -0.071
