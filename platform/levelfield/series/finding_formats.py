"""Findings as text for a terminal, as Markdown for a merge request, as JUnit XML for a CI system, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from levelfield.report.escapes import Markdown, markdown, one_line, table, xml_text
from levelfield.report.words import NONE, gib, number, wrapped
from levelfield.series.findings import ABSENCES, FAILURES, FIGURES, OPEN, WORDS, Finding, exit_code
from levelfield.specs.record import Gated

FORMATS = ("text", "markdown", "junit", "json")
_MOST_OF_A_WORD = 12  # in a terminal
_LONGEST = 200  # characters of a text that comes from a run
_HEADER = ("word", "series", "figure", "change", "95 % interval", "level", "since", "sees", "remark")


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
    if (steady := [f.detectable for f in page.findings if f.word == "no change" and f.detectable]) and page.findings:
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
            message = xml_text(_sentence(finding))
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


def _sentence(finding: Finding) -> str:
    return one_line(": ".join(text for text in (finding.word, _figure_line(finding), _short(finding.detail)) if text))


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
