"""Findings as text, Markdown, JUnit and JSON: readable, valid, and harmless whatever a run is called."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any
from xml.etree import ElementTree

import pytest
from levelfield.cli.command_line import parse_command_line
from levelfield.report.escapes import escape_markdown
from levelfield.series.finding_forms import FORMATTERS, format_junit, format_markdown, format_text
from levelfield.series.findings import Finding, FindingPage, worst_first
from levelfield.series.next_steps import command_text, next_step
from levelfield.series.ticket import Bisection, Ticket, TicketCommit, TicketKey, ticket_lines
from levelfield.specs.short_names import short_digest
from plans import ROOT

HOSTILE = 'x\x1b[31m\x00\ufffe|`<img onerror=alert(1)>"@everyone\n# heading ]]> &'
TOKENS = "tokens_per_second_per_device"


def finding(word: str, **more: Any) -> Finding:
    fields: dict[str, Any] = {
        "series": "S", "label": "gpt3_6.7B:torch:cpu:1:2 smoke fp32 DP1TP2PP1 mb8", "figure": TOKENS, "word": word,
        "change": -0.062, "low": -0.071, "high": -0.053, "level": 5165.2, "level_since": "2026-10-01", "nights": 30,
        "detectable": 0.021, "run_id": "r", "detail": "against the baseline build, by 4 pairs", "pairs": 4,
    }  # fmt: skip
    return Finding.model_validate({**fields, **more})


def page(*findings: Finding, strict: bool = False, advisory: bool = False) -> FindingPage:
    first_line = "compared 38 of 40 series of night 2026-11-22"
    return FindingPage(first_line, "2026-11-22", tuple(worst_first(findings)), strict, advisory)


def counts(line: str) -> list[str]:
    """Return what a line counts behind its colon."""
    return line.split(": ")[1].split(", ")


TICKET = Ticket(
    accepted="e" * 40, since="a" * 40, since_night="2026-11-21", tonight="b" * 40, all_commits=7,
    packages=("torch 2.12.0 -> 2.13.0",),
    commits=tuple(
        TicketCommit(commit="b" * 40, author="Ann", subject=subject)
        for subject in ("Faster kernels", "Merge #12 by @bob", "x " * 150, "Two", "Three", "Four")
    ),
    command=("python", "run_benchmarks.py", "nightly", "bisect", "a" * 12, "b" * 12, "--case", "gpt3_6.7B:torch:cpu"),
    page="https://ci.example.org/case-x.html#s",
)  # fmt: skip
BAD = TicketCommit(commit="c" * 40, author="Eve", subject="Wait longer")
MIXED = (
    finding("no change", change=0.001, detail=""),
    finding("missing", figure=None, change=None, low=None, high=None, level=None, detail="expected, not run"),
    finding("regression"),
    finding("inconclusive", figure="memory_bytes", level=2.0 * 2**30, detail="about 5 more pairs, after 7"),
    finding("invalid run", figure=None, detail="failed"),
)


def test_the_verdict_comes_first_then_the_counts_then_the_worst_word() -> None:
    lines = format_text(page(*MIXED)).splitlines()
    assert lines[:2] == [page(*MIXED).verdict, page(*MIXED).first_line]
    words = [part.split(" ", 1)[1] for part in counts(lines[2])]
    assert words == ["regression", "missing", "invalid run", "inconclusive"]
    text = "\n".join(lines)
    assert text.index("\nregression") < text.index("\nmissing") < text.index("\ninconclusive")
    for part in ("tokens/s/device -6.2 %", "[-7.1, -5.3]", "baseline 5,165.2, 30 nights", "can show: 2.1 %"):
        assert part in " ".join(text.split()), part
    assert max(map(len, lines)) <= 80


def test_a_terminal_shows_some_findings_of_a_word_and_counts_the_others() -> None:
    text = format_text(page(*(finding("environment step", label=f"series {i}") for i in range(20)), finding("stale")))
    assert text.count("environment step  ") == 12 and "step: 8" in text and "stale" in text
    assert format_markdown(page(*(finding("stale", label=f"series {i}") for i in range(20)))).count("| stale") == 20


ENERGY: dict[str, Any] = {"figure": "joules_per_token", "change": 0.05, "low": 0.04, "high": 0.06}
MEMORY: dict[str, Any] = {"figure": "memory_bytes", "change": 0.05, "low": 0.04, "high": 0.06}
GAIN: dict[str, Any] = {"change": 0.08, "low": 0.07, "high": 0.09}
DRIVER: dict[str, Any] = {"series": "", "label": "driver 550 -> 560", "fields": ("driver 550 -> 560",)}
THREE = (TOKENS, "memory_bytes", "joules_per_token")
SLOWER = "1 series slower: tokens/s -6.2 % [-7.1, -5.3]"


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        ([finding("regression"), finding("no change", **MEMORY)], f"fails: {SLOWER}"),
        ([finding("regression", **ENERGY), finding("regression")], f"fails: {SLOWER}"),
        ([finding("regression", **MEMORY)], "fails: 1 series with more memory: memory +5.0 % [+4.0, +6.0]"),
        (
            [finding("regression"), finding("regression", series="T", change=-0.12, low=-0.13, high=-0.11)],
            "fails: 2 series slower, the most: tokens/s -12.0 % [-13.0, -11.0]",
        ),
        (
            [*map(finding, ("training differs", "regression")), finding("regression", series="T", **MEMORY)],
            f"fails: {SLOWER}, 1 series with more memory: memory +5.0 % [+4.0, +6.0], 1 training differs",
        ),
        ([finding("environment step", **DRIVER)], "fails: 1 environment step: driver 550 -> 560"),
        ([finding("missing", figure=None), finding("stale")], "is incomplete: 1 missing"),
        (
            [finding("incomparable", figure=None, fields=("global_batch 8 -> 16",))],
            "is incomplete: 1 incomparable: global_batch 8 -> 16",
        ),
        (
            [finding("inconclusive", is_gain_to_confirm=True, **GAIN)],
            "passes: 1 series faster: tokens/s +8.0 % [+7.0, +9.0] (to be confirmed by a second night)",
        ),
        ([finding("improvement", **GAIN)], "passes: 1 series faster: tokens/s +8.0 % [+7.0, +9.0]"),
        (
            [finding("improvement", **{**MEMORY, "change": -0.05, "low": -0.06, "high": -0.04})],
            "passes: 1 series with less memory: memory -5.0 % [-6.0, -4.0]",
        ),
        ([finding("biased arms", series=""), finding("stale")], "passes: 1 A/A mismatch, 1 stale baseline"),
        (
            [finding("new series", series=f"S{n}", figure=f, change=None) for n in range(9) for f in THREE],
            "passes: 9 new series",
        ),
        ([finding("bad night", series=name, label=name, node="n") for name in ("", "S", "T")], "passes: 1 bad night"),
        ([finding("no change", figure=f) for f in THREE], "passes: no change"),
        ([], "passes: no run"),
    ],
)  # fmt: skip
def test_the_first_line_counts_series_and_names_the_speed_first(findings: list[Finding], outcome: str) -> None:
    assert page(*findings).verdict == f"night 2026-11-22 {outcome}"


def test_all_are_counted_in_series_and_a_series_without_a_change_has_none_in_any_figure() -> None:
    quiet = [finding("no change", series=name, figure=figure) for name in "TU" for figure in THREE]
    night = page(finding("regression"), finding("no change", **MEMORY), *quiet)
    assert format_text(night).splitlines()[2] == "in all: 1 regression, 2 unchanged"
    assert "\nsmallest change" in format_text(night)


def test_the_figures_of_a_series_stand_together_the_speed_first() -> None:
    lines = format_text(page(finding("regression", **ENERGY), finding("regression", **MEMORY), finding("regression")))
    (block,) = [block for block in lines.split("\n\n") if block.startswith("regression")]
    starts = [line.split()[0] for line in block.splitlines() if "[" in line]
    assert starts == ["tokens/s/device", "memory", "J/token"] and block.count("by 4 pairs") == 1


def test_a_strict_verdict_counts_what_is_open_and_advice_changes_no_verdict() -> None:
    night = (finding("stale"), finding("regression"))
    assert page(*night, strict=True).verdict.endswith(", 1 stale baseline")
    assert page(*night, advisory=True).verdict == page(*night).verdict


def test_markdown_has_its_verdict_and_table_first_and_folds_what_did_not_change() -> None:
    lines = format_markdown(page(*MIXED)).splitlines()
    assert lines[0] == f"**{escape_markdown(page(*MIXED).verdict)}**" and page(*MIXED).first_line in lines[2]
    assert [lines[place].split(" | ")[0] for place in (4, 6)] == ["| status", "| regression"]
    (folded,) = (place for place, line in enumerate(lines) if "<summary>Without a" in line)
    assert folded > 8 and "Without a" not in format_markdown(page(*MIXED[1:]))


@pytest.mark.parametrize("word", ["regression", "no change"])
def test_a_comment_is_bounded_however_many_findings_there_are(word: str) -> None:
    many = [finding(word, label=f"{HOSTILE} {number}", series=f"S{number}", detail="@" * 300) for number in range(2000)]
    tickets = {(f.series, f.figure): TICKET for f in many}
    text = format_markdown(FindingPage("compared", "n", tuple(many), tickets=tickets, link="https://x/index.html"))
    assert 10_000 < len(text) < 65_536
    assert re.search(r"^\d{3,4} more;", text, re.M)
    assert text.count("<details>") == text.count("</details>") and "@" not in text


@pytest.mark.parametrize("word", ["regression", "missing", "no change"])
def test_hostile_names_break_no_format(word: str) -> None:
    hostile = page(finding(word, label=HOSTILE, detail=HOSTILE))
    table = format_markdown(hostile)
    row = next(line for line in table.splitlines() if line.startswith(f"| {finding(word).status}"))
    assert "<img" not in row and "\x1b" not in row and "@everyone" not in row
    assert row.count("|") - row.count("\\|") == 10
    root = ElementTree.fromstring(format_junit(hostile))
    (case,) = root.iter("testcase")
    assert case.get("classname", "").startswith("x[31m|`<img onerror")
    assert json.loads(FORMATTERS["json"](hostile))["findings"][0]["label"] == HOSTILE


def test_junit_maps_the_words_to_its_three() -> None:
    suite = ElementTree.fromstring(format_junit(page(*MIXED))).find("testsuite")
    assert suite is not None
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "2", "skipped": "1"}
    assert [child.tag for case in suite.iter("testcase") for child in case] == ["failure", "error", "error", "skipped"]
    assert suite.findtext("system-out", "") == page(*MIXED).first_line


def test_strict_and_advisory_change_the_outcome_and_not_the_words() -> None:
    def tags(night: FindingPage) -> list[str]:
        return [child.tag for case in ElementTree.fromstring(format_junit(night)).iter("testcase") for child in case]

    assert tags(page(*MIXED, strict=True)).count("failure") == 2
    assert set(tags(page(*MIXED, advisory=True))) == {"skipped"}
    assert page(*MIXED).exit_code == 4 and page(*MIXED, advisory=True).exit_code == 0
    assert "be 4" in format_text(page(*MIXED, advisory=True))


def test_a_ticket_is_in_every_format() -> None:
    night = FindingPage("c", "n", (finding("regression"),), tickets={("S", TOKENS): TICKET})
    text = format_text(night)
    assert max(len(line) for line in text.splitlines() if "http" not in line) <= 80
    text = " ".join(text.replace("\\\n", "").split())
    for part in ("7 commits since night 2026-11-21, the last without the change", "bbbbbbbbbbbb Ann: Faster kernels",
                 "2 more", "packages: torch 2.12.0 -> 2.13.0", "page: https://ci.example.org/case-x.html#s",
                 "next: find the commit and revert it, or accept the change: python run"):  # fmt: skip
        assert part in text, part
    comment = format_markdown(night)
    assert "[gpt3_6.7B:torch:cpu:1:2 smoke" in comment and "](https://ci.example.org/case-x.html#s)" in comment
    assert "&#35;12 by" in comment and "&#64;bob" in comment and "- torch" not in comment
    failure = ElementTree.fromstring(format_junit(night)).find(".//failure")
    assert failure is not None and "bbbbbbbbbbbb Ann:" in (failure.text or "")
    (row,) = json.loads(FORMATTERS["json"](night))["findings"]
    assert row["ticket"]["commits"][0]["author"] == "Ann" and row["ticket"]["all_commits"] == 7


def test_findings_of_the_same_builds_share_their_commits() -> None:
    both = (finding("regression"), finding("regression", figure="memory_bytes", level=2.0**30))
    same, other = (finding("regression", series=name, label=f"other {name}") for name in "TU")
    tickets: dict[TicketKey, Ticket] = {(f.series, f.figure): TICKET for f in (*both, same)} | {
        ("U", TOKENS): TICKET.model_copy(update={"since": "e" * 40})
    }
    night = FindingPage("c", "n", (*both, same, other), tickets=tickets)
    assert format_text(night).count("Faster kernels") == 2 and format_text(night).count("as above") == 1
    assert format_text(night).count("page: ") == 3, "once for both figures of a series"
    comment = format_markdown(night)
    assert comment.count("Faster kernels") == 2 and "2 more</summary>" in comment


def test_a_shell_takes_the_command_of_a_ticket_as_one() -> None:
    words = ("a b", "$(touch x)", "l" * 70, "c")
    hostile = command_text(("echo", *words, "\n;ls"))
    done = subprocess.run(["sh", "-c", hostile], capture_output=True, text=True, check=True)
    assert done.stdout == " ".join((*words, ";ls\n"))


ONLY = TICKET.model_copy(update={"all_commits": 1, "packages": ()})


@pytest.mark.parametrize(
    ("word", "more", "ticket", "says", "commands"),
    [
        ("regression", {}, ONLY, "revert bbbbbbbbbbbb,", ["accept"]),
        ("regression", {}, TICKET, "find the commit", ["bisect", "accept"]),
        ("regression", {}, None, "undo the change,", ["accept"]),
        ("regression", {"pairs": 0}, ONLY, "revert bbbbbbbbbbbb, or accept the change with `nightly accept` after", []),
        ("improvement", {"pairs": 0}, None, "accept the gain with `nightly accept` after three", []),
        ("training differs", {"figure": None}, ONLY, "revert bbbbbbbbbbbb", []),
        ("environment step", {}, None, "undo the change of conditions", ["accept-step"]),
        ("improvement", {}, None, "accept the gain", ["accept"]),
        ("improvement", {"fields": ("driver 550 -> 560",)}, None, "accept the gain", ["accept-step"]),
    ],
)
def test_what_to_do_next_has_commands_that_the_command_line_reads(
    word: str, more: dict[str, Any], ticket: Ticket | None, says: str, commands: list[str]
) -> None:
    series = "sha256:25452b67ff06aaaa"
    tickets = {(series, TOKENS if word != "training differs" else None): ticket} if ticket else {}
    text = format_text(FindingPage("c", "n", (finding(word, series=series, **more),), tickets=tickets))
    _, _, after = text.partition("  next: ")
    assert " ".join(after.split()).startswith(says)
    printed = [shlex.split(line) for line in after.replace("\\\n", "").splitlines() if "run_benchmarks" in line]
    assert [words[3] for words in printed] == commands
    assert all(words[4] == short_digest(series) for words in printed if words[3] != "bisect")
    for words in printed:
        parse_command_line(words[2:])


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_commands_name_a_store_that_was_named(form: str) -> None:
    regression = finding("regression", series="sha256:25452b67ff06aaaa")
    tickets: dict[TicketKey, Ticket] = {("sha256:25452b67ff06aaaa", TOKENS): ONLY}
    named = FindingPage("c", "n", (regression,), tickets=tickets, store="/data/our results.sqlite")
    assert "--store '/data/our results.sqlite'" in " ".join(FORMATTERS[form](named).replace("\\\n", "").split())
    assert "--store" not in FORMATTERS[form](FindingPage("c", "n", (regression,), tickets=tickets))


@pytest.mark.parametrize("word", ["missing", "invalid run", "inconclusive", "no change", "new series", "bad night"])
def test_a_status_without_a_command_has_no_next_line(word: str) -> None:
    assert "next: " not in format_text(page(finding(word)))


def test_what_a_search_found_replaces_the_command() -> None:
    for search, text, has_command in (
        (
            Bisection(first_bad="c" * 40, last_good="d" * 40),
            "first bad cccccccccccc Eve: Wait longer; last good dddd",
            False,
        ),
        (Bisection(first_bad="c" * 40, last_good="d" * 40, undecided=2), "; 2 undecided between them", True),
        (Bisection(why_not="the budget holds no search"), "bisection: the budget holds no search", True),
    ):
        more = {"bisection": search, "first_bad": BAD if search.first_bad else None}
        ticket = TICKET.model_copy(update=more)
        step = next_step(finding("regression"), ticket)
        assert text in " ".join("\n".join(ticket_lines(ticket)).split())
        assert step is not None and (TICKET.command in step.commands) == has_command, text


def test_a_webhook_has_what_docs_nightly_names_and_nothing_else() -> None:
    tickets: dict[TicketKey, Ticket] = {
        ("S", TOKENS): TICKET.model_copy(
            update={"bisection": Bisection(first_bad="c" * 40, last_good="d" * 40), "first_bad": BAD}
        )
    }
    night = FindingPage("compared 1", "n", MIXED, tickets=tickets, link="https://x/index.html", suite="s")
    sent = json.loads(FORMATTERS["webhook"](night))
    table = (ROOT / "docs/nightly.md").read_text().split("| field | |")[1].split("\n\n")[0]
    described = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    assert described == {*sent} and (sent["schema"], sent["id"]) == ("levelfield.webhook/1", "s/n")
    fields = next(row for row in table.splitlines() if row.startswith("| `findings`"))
    assert {*sent["findings"][0]} <= set(re.findall(r"`([a-z_]+)`", fields))
    assert [row["word"] for row in sent["findings"]] == [f.word for f in MIXED if f.word != "no change"]
    (regression,) = (row for row in sent["findings"] if row["word"] == "regression")
    assert (regression["commits"], regression["first_bad"]["author"], regression["low"]) == (7, "Eve", -0.071)
    assert sent["text"].splitlines()[0] == sent["verdict"] and sent["text"].endswith(
        "accept the change\nhttps://x/index.html"
    )
    assert "cccccccccccc Eve:" in sent["text"] and sent["counts"]["no change"] == 1


def test_a_webhook_is_bounded_and_counts_what_it_leaves_out() -> None:
    many = (finding("missing", label=f"{HOSTILE}{i}" * 30, detail="x" * 9999) for i in range(99))
    sent = FORMATTERS["webhook"](page(*many))
    night = json.loads(sent)
    assert len(sent) < 40_000 and (len(night["findings"]), night["more"]) == (20, 79)
    assert len(night["text"].splitlines()) == 7 and night["text"].endswith("94 more")


def test_notes_of_the_night_come_last() -> None:
    night = FindingPage("c", "n", MIXED, folder="site/index.html", notes=("slow",))
    assert format_text(night).endswith("site/index.html\n\nnotes\n  slow\n")
    assert json.loads(FORMATTERS["json"](night))["notes"] == ["slow"]


@pytest.mark.parametrize("form", FORMATTERS)
def test_a_night_without_findings_is_written_too(form: str) -> None:
    assert page().first_line in FORMATTERS[form](page())


def test_json_has_full_precision_and_the_exit_code() -> None:
    night = json.loads(FORMATTERS["json"](page(*MIXED)))
    assert (night["schema"], night["exit_code"]) == ("levelfield.gate/1", 4)
    assert night["findings"][0]["low"] == -0.071
