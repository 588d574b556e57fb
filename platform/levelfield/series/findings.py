"""What a gate finds about a series and a figure: one word, the change with its interval, and the exit code of all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args
from xml.etree import ElementTree

from levelfield.errors import GateFailed, RunFailed
from levelfield.report.escapes import Markdown, markdown, one_line, table, xml_text
from levelfield.report.words import NONE, gib, number, wrapped
from levelfield.specs.base import Document
from levelfield.specs.record import Gated

FindingWord = Literal[
    "regression",
    "training differs",
    "environment step",
    "missing",
    "invalid run",
    "incomparable",
    "bad night",
    "biased arms",
    "inconclusive",
    "stale",
    "improvement",
    "new series",
    "no change",
]
WORDS: tuple[FindingWord, ...] = get_args(FindingWord)  # the worst first: the order of every table
FAILURES = frozenset({"regression", "training differs", "environment step"})
ABSENCES = frozenset({"missing", "invalid run", "incomparable"})  # what was expected is not compared
OPEN = frozenset({"bad night", "biased arms", "inconclusive", "stale", "improvement", "new series"})
COMPARED = frozenset(WORDS) - ABSENCES - {"training differs", "new series"}
FIGURES: dict[Gated, str] = {
    "tokens_per_second_per_device": "tokens/s/device",
    "memory_bytes": "memory",
    "joules_per_token": "J/token",
}
# A figure's logarithm times this is its cost: more is worse, for every figure.
WORSE: dict[Gated, int] = {"tokens_per_second_per_device": -1, "memory_bytes": 1, "joules_per_token": 1}

FORMATS = ("text", "markdown", "junit", "json")
_MOST_OF_A_WORD = 12  # in a terminal
_LONGEST = 200  # characters of a text that comes from a run
_HEADER = ("word", "series", "figure", "change", "95 % interval", "level", "since", "sees", "remark")


class Finding(Document):
    """One word about one series and figure in one night. figure: None where the word is about the whole run.

    change, low, high: measured / level - 1 and its 95 % interval. level: in the figure's unit; level_since: the date of
    its first night; nights: how many it rests on. detectable: the least change that one night shows with 90 %
    probability. fields: of the conditions or of the series that differ. pairs: how many were compared. runs: of a
    finding about a node or a change of conditions, which has no series: all runs that it stands for. build_change: of
    tonight's build against the accepted one, by pairs; conditions_change: of the accepted build against its level, by
    pairs under new conditions.
    """

    KIND: ClassVar[str] = "finding"

    series: str
    label: str
    figure: Gated | None
    word: FindingWord
    change: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    level_since: str | None = None
    nights: int = 0
    detectable: float | None = None
    run_id: str | None = None
    detail: str = ""
    fields: tuple[str, ...] = ()
    night: str | None = None
    node: str | None = None
    pairs: int = 0
    runs: tuple[str, ...] = ()
    build_change: float | None = None
    conditions_change: float | None = None

    @property
    def bad_runs(self) -> tuple[str, ...]:
        """The runs of a night that was found bad: no level and no evidence rests on them."""
        own = (self.run_id,) if self.run_id else ()
        return (*own, *self.runs) if self.word == "bad night" else ()


def exit_code(findings: Iterable[Finding], strict: bool = False, advisory: bool = False) -> int:
    """Return 4 for a failure, else 3 for what is missing, else 0. strict: open words are 4 too. advisory: always 0."""
    words = {finding.word for finding in findings}
    if advisory:
        return 0
    if words & FAILURES or (strict and words & OPEN):
        return GateFailed.exit_code
    return RunFailed.exit_code if words & ABSENCES else 0


def short(digest: str) -> str:
    """Return enough of a digest to tell one from another."""
    return digest.removeprefix("sha256:")[:10]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings with the worst word first, then by label and figure."""
    return sorted(findings, key=lambda f: (WORDS.index(f.word), f.label, f.figure or ""))


@dataclass(frozen=True)
class FindingPage:
    """What is written of a night: its first line, and its findings with the worst first."""

    first_line: str
    night: str
    findings: tuple[Finding, ...]
    strict: bool = False
    advisory: bool = False

    @property
    def exit_code(self) -> int:
        return exit_code(self.findings, self.strict, self.advisory)


def written(page: FindingPage, form: str) -> str:
    """Return the page in one of FORMATS."""
    return {"text": as_text, "markdown": as_markdown, "junit": as_junit, "json": as_json}[form](page)


def as_text(page: FindingPage) -> str:
    """Return lines of at most 80 columns: the first line, the counts, and findings that are not `no change`."""
    lines = [wrapped(page.first_line, 2), wrapped(_counts(page.findings), 2)]
    for word in WORDS[:-1]:
        of_word = [finding for finding in page.findings if finding.word == word]
        for finding in of_word[:_MOST_OF_A_WORD]:
            lines += ["", wrapped(f"{finding.word}  {_short(finding.label)}", 2)]
            lines += [wrapped(f"  {text}", 4) for text in (_figure_line(finding), _short(finding.detail)) if text]
        if more := len(of_word[_MOST_OF_A_WORD:]):
            lines += ["", f"{word}: {more} more; the other formats of --format list all"]
    if steady := [f.detectable for f in page.findings if f.word == "no change" and f.detectable]:
        seen = f"{min(steady):.1%} to {max(steady):.1%}"
        lines += ["", wrapped(f"no change: {len(steady)} figures; one night shows changes from {seen} on", 2)]
    if page.advisory and (code := exit_code(page.findings, page.strict)):
        lines += ["", f"advisory: the exit code would be {code}"]
    return "\n".join(lines) + "\n"


def as_markdown(page: FindingPage) -> str:
    """Return the table of what changed or is missing, then the first line, then the table of what did not change."""
    changed = [f for f in page.findings if f.word != "no change"]
    steady = [f for f in page.findings if f.word == "no change"]
    lines = table(_HEADER, map(_row, changed)) if changed else ["No change."]
    lines += ["", markdown(page.first_line), "", markdown(_counts(page.findings))]
    if steady:
        lines += ["", "Without a change:", "", *table(_HEADER, map(_row, steady))]
    return "\n".join(lines) + "\n"


def as_junit(page: FindingPage) -> str:
    """Return JUnit XML: failure for what failed, error for what is missing, skipped for what is open."""
    suite = ElementTree.Element("testsuite", name=xml_text(f"gate {page.night}"), tests=str(len(page.findings)))
    counts = Counter(_outcome(finding, page) for finding in page.findings)
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(counts[kind]))
    for finding in page.findings:
        name = FIGURES[finding.figure] if finding.figure else "run"
        case = ElementTree.SubElement(suite, "testcase", classname=xml_text(_short(finding.label)), name=name)
        if outcome := _outcome(finding, page):
            texts = (finding.word, _figure_line(finding), _short(finding.detail))
            message = xml_text(one_line(": ".join(filter(None, texts))))
            ElementTree.SubElement(case, outcome, message=message).text = message if outcome != "skipped" else None
    ElementTree.SubElement(suite, "system-out").text = xml_text(page.first_line)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def as_json(page: FindingPage) -> str:
    """Return schema `levelfield.gate/1`: the first line, the exit code, and every finding in full precision."""
    rows = [finding.model_dump(mode="json") for finding in page.findings]
    head = {"schema": "levelfield.gate/1", "night": page.night, "first_line": page.first_line}
    return json.dumps({**head, "exit_code": page.exit_code, "findings": rows}, indent=2, ensure_ascii=False) + "\n"


def figure_value(value: float | None, figure: Gated) -> str:
    """Return a figure with its unit."""
    return gib(value) if figure == "memory_bytes" else number(value, 4 if figure == "joules_per_token" else 1)


def percent_change(change: float | None) -> str:
    return NONE if change is None else f"{change:+.1%}".replace("%", " %")


def _counts(findings: Sequence[Finding]) -> str:
    """Return how many findings have each word. A series has several: one for each figure."""
    counts = Counter(finding.word for finding in findings)
    return "findings: " + (", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word]) or "none")


def _figure_line(finding: Finding) -> str:
    """Return figure, change, interval and level; empty where the finding is about the whole run."""
    if finding.figure is None or finding.change is None:
        return FIGURES[finding.figure] if finding.figure else ""
    text = f"{FIGURES[finding.figure]} {percent_change(finding.change)}"
    text += f" [{_interval(finding)}]" if finding.low is not None else ""
    if finding.level is not None:
        level = figure_value(finding.level, finding.figure)
        text += f" of {level}, the level of {finding.nights} nights since {finding.level_since}"
    return text


def _interval(finding: Finding) -> str:
    return NONE if finding.low is None else f"{percent_change(finding.low)}, {percent_change(finding.high)}"


def _row(finding: Finding) -> list[str]:
    level = figure_value(finding.level, finding.figure) if finding.figure else NONE
    sees = NONE if finding.detectable is None else f"{finding.detectable:.1%}".replace("%", " %")
    name = FIGURES[finding.figure] if finding.figure else NONE
    change = [Markdown(percent_change(finding.change)), Markdown(_interval(finding))]
    since = finding.level_since or NONE
    return [finding.word, _cell(finding.label), name, *change, level, since, sees, _cell(finding.detail)]


def _cell(text: str) -> Markdown:
    """Return foreign text for a merge request, where `@name` would notify somebody."""
    return Markdown(markdown(_short(text)).replace("@", "&#64;"))


def _outcome(finding: Finding, page: FindingPage) -> str:
    """Return JUnit's word; empty for a test that passes."""
    if finding.word in FAILURES or (page.strict and finding.word in OPEN):
        return "skipped" if page.advisory else "failure"
    if finding.word in ABSENCES:
        return "skipped" if page.advisory else "error"
    return "skipped" if finding.word in OPEN else ""


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
