"""Formats findings as text, Markdown, JUnit and JSON: bounded, and harmless whatever a run is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from levelfield.report.escapes import Markdown, escape_markdown, markdown_table, one_line, xml_text
from levelfield.report.words import NONE, wrapped
from levelfield.series.findings import (
    ABSENCE_WORDS,
    FAILURE_WORDS,
    FIGURE_NAMES,
    FINDING_WORDS,
    OPEN_WORDS,
    Finding,
    FindingPage,
    change_text,
    count_text,
    exit_code,
    figure_value,
    group_by_series,
    percent_change,
)
from levelfield.series.next_steps import next_lines, next_markdown, next_step
from levelfield.series.ticket import Ticket, commit_text, ticket_lines, ticket_markdown
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import clipped

MAX_WEBHOOK_FINDINGS = 20  # in the document of a webhook; its text has the first lines of five
_MAX_SERIES_PER_WORD = 12  # series of one word in a terminal
MAX_CHARACTERS = 60_000  # of Markdown: a comment on GitHub has at most 65,536
_MAX_TEXT_CHARACTERS = 200  # of a text that comes from a run
_TABLE_HEADER = ("status", "series", "figure", "change", "95 % interval", "baseline", "since", "detectable", "remark")


def format_text(page: FindingPage) -> str:
    """Return lines of at most 80 columns: the verdict, the counts, and findings that are not `no change`."""
    lines = [
        wrapped(line, 2) for line in (page.verdict, page.first_line, f"in all: {count_text(page.findings) or 'none'}")
    ]
    groups = group_by_series(page.findings)
    printed_builds: set[tuple[str | None, str | None]] = set()
    for word in FINDING_WORDS[:-1]:
        word_groups = groups.get(word, [])
        for findings in word_groups[:_MAX_SERIES_PER_WORD]:
            lines += ["", wrapped(f"{findings[0].status}  {_short_line(findings[0].label)}", 2)]
            lines += _figure_lines(findings)
            lines += [wrapped(f"  {text}", 5) for finding in findings for text in _explanation(finding)]
            for ticket in _distinct_tickets(page, findings):
                builds = (ticket.since, ticket.tonight)
                lines += ticket_lines(ticket, builds in printed_builds)
                printed_builds.add(builds)
            lines += _next_lines(page, findings[0])
        if more := len(word_groups[_MAX_SERIES_PER_WORD:]):
            lines += ["", f"{word_groups[0][0].status}: {more} more; the other formats of --format list all"]
    if steady := [f.detectable for f in page.findings if f.word == "no change" and f.detectable]:
        ends = dict.fromkeys(f"{100 * change:.1f}" for change in (min(steady), max(steady)))
        lines += ["", wrapped(f"smallest change that one night can show: {' to '.join(ends)} %", 2)]
    lines += ["", f"pages: {page.link or page.folder}"] if page.link or page.folder else []
    lines += ["", "notes", *(wrapped(f"  {note}", 4) for note in page.notes)] if page.notes else []
    if page.advisory and (code := exit_code(page.findings, page.strict)):
        lines += ["", f"advisory: the exit code would be {code}"]
    return "\n".join(lines) + "\n"


def _figure_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the figures of a series, below each its own detail, and last the details that several figures share."""
    details = Counter(finding.detail for finding in findings)
    for finding in findings:
        if text := _figure_line(finding):
            yield wrapped(f"  {text}", 4)
            if finding.detail and details[finding.detail] == 1:
                yield wrapped(f"    {_short_line(finding.detail)}", 6)
                del details[finding.detail]
    yield from (wrapped(f"  {_short_line(detail)}", 4) for detail in details if detail)


def _distinct_tickets(page: FindingPage, findings: Iterable[Finding]) -> list[Ticket]:
    """Return the tickets of a series' findings, one for each two builds."""
    tickets: dict[tuple[str | None, str | None], Ticket] = {}
    for ticket in filter(None, map(page.ticket, findings)):
        tickets.setdefault((ticket.since, ticket.tonight), ticket)
    return [*tickets.values()]


def _next_lines(page: FindingPage, finding: Finding) -> list[str]:
    step = next_step(finding, page.ticket(finding), page.store)
    return [*next_lines(step)] if step else []


def finding_line(finding: Finding) -> str:
    """Return a finding in one sentence, for those who watch the night."""
    texts = (_figure_line(finding), _short_line(finding.detail))
    return f"{finding.status}: {_short_line(finding.label)}: {'; '.join(filter(None, texts))}"


def format_markdown(page: FindingPage) -> str:
    """Return the verdict, tables of what changed, or is missing, and of what did not, and the tickets.

    A comment of a merge request holds it, however many findings there are: GitHub's takes 65,536 characters.
    """
    changed = [f for f in page.findings if f.word != "no change"]
    steady = [f for f in page.findings if f.word == "no change"]
    counts = escape_markdown(f"in all: {count_text(page.findings) or 'none'}")
    lines = [f"**{escape_markdown(page.verdict)}**", "", f"{escape_markdown(page.first_line)}; {counts}", ""]
    lines += [f"[The pages of the night]({page.link})", ""] if page.link else []
    room = MAX_CHARACTERS - sum(len(line) + 1 for line in lines)
    tickets = [page.ticket(finding) for finding in changed]
    lines += [*_table("", zip(changed, tickets, strict=True), room // 2), *_folded_blocks(page, changed, room // 4)]
    lines += _table("Without a change", ((finding, None) for finding in steady), room // 5)
    return "\n".join(lines) + "\n"


def _table(folded_title: str, findings: Iterable[tuple[Finding, Ticket | None]], room: int) -> Iterator[str]:
    """Yield a table of as many rows as there is room for. folded_title: the title of a folded table; empty: it is open.

    room: characters.
    """
    rows: list[Sequence[str]] = []
    for finding, ticket in findings:
        name = FIGURE_NAMES[finding.figure] if finding.figure else NONE
        interval = NONE if finding.low is None else f"{percent_change(finding.low)}, {percent_change(finding.high)}"
        change = [Markdown(percent_change(finding.change)), Markdown(interval)]
        level = figure_value(finding.level, finding.figure) if finding.figure else NONE
        detectable = NONE if finding.detectable is None else f"{finding.detectable:.1%}".replace("%", " %")
        label = _markdown_text(finding.label)
        label = Markdown(f"[{label}]({ticket.page})") if ticket and ticket.page else label
        since, remark = finding.level_since or NONE, _markdown_text(finding.detail)
        rows.append([finding.status, label, name, *change, level, since, detectable, remark])
    visible = list(_fitting_blocks(markdown_table(_TABLE_HEADER, rows)[2:], room))
    if folded_title and rows:
        yield from (f"<details><summary>{folded_title}: {len(rows)} figures</summary>", "")
    if rows:
        yield from (*markdown_table(_TABLE_HEADER, [])[:2], *visible, "")
    if more := len(rows) - len(visible):
        yield from (f"{more} more; `nightly gate --format json` has all.", "")
    if folded_title and rows:
        yield from ("</details>", "")


def _folded_blocks(page: FindingPage, changed: Sequence[Finding], room: int) -> Iterator[str]:
    """Yield folded blocks: why steps take longer, and a ticket for each two builds, with its findings."""
    tickets: dict[tuple[str | None, str | None], list[tuple[str, Finding, Ticket]]] = {}
    for finding in changed:
        if ticket := page.ticket(finding):
            name = FIGURE_NAMES[finding.figure] if finding.figure else "training"
            tickets.setdefault((ticket.since, ticket.tonight), []).append(
                (f"{finding.status}: {finding.label}, {name}", finding, ticket)
            )
    blocks = []
    for finding in (finding for finding in changed if finding.explanation):
        summary = f"<details><summary>why a step of {_markdown_text(finding.label)} takes longer</summary>"
        blocks.append("\n".join((summary, "", *map(_markdown_text, _explanation(finding)), "", "</details>", "")))
    for group in tickets.values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        title, finding, ticket = group[0]
        summary, step = (
            f"<details><summary>{_markdown_text(title)}{more}</summary>",
            next_step(finding, ticket, page.store),
        )
        lines = (*ticket_markdown(ticket), *(next_markdown(step) if step else ()))
        blocks.append("\n".join((summary, "", *lines, "", "</details>", "")))
    yield from _fitting_blocks(blocks, room)


def _explanation(finding: Finding) -> list[str]:
    """Return why a step takes longer, as numbered sentences."""
    return [f"{number}. {_short_line(sentence)}" for number, sentence in enumerate(finding.explanation, start=1)]


def _fitting_blocks(blocks: Iterable[str], room: int) -> Iterator[str]:
    for block in blocks:
        room -= len(block) + 1
        if room < 0:
            return
        yield block


def format_junit(page: FindingPage) -> str:
    """Return JUnit XML: failure for what failed, error for what is missing, skipped for what is open."""
    suite = ElementTree.Element("testsuite", name=xml_text(f"gate {page.night}"), tests=str(len(page.findings)))
    outcomes = []  # JUnit's words; empty for a test that passes
    for word in (finding.word for finding in page.findings):
        fails = word in FAILURE_WORDS or (page.strict and word in OPEN_WORDS)
        outcome = "failure" if fails else "error" if word in ABSENCE_WORDS else "skipped" if word in OPEN_WORDS else ""
        outcomes.append("skipped" if outcome and page.advisory else outcome)
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(outcomes.count(kind)))
    for finding, outcome in zip(page.findings, outcomes, strict=True):
        name = FIGURE_NAMES[finding.figure] if finding.figure else "run"
        case = ElementTree.SubElement(suite, "testcase", classname=xml_text(_short_line(finding.label)), name=name)
        if outcome:
            texts = (finding.status, _figure_line(finding), _short_line(finding.detail))
            message = xml_text(one_line(": ".join(filter(None, texts))))
            ticket = page.ticket(finding)
            body = "\n".join(
                map(
                    xml_text,
                    (
                        message,
                        *_explanation(finding),
                        *(ticket_lines(ticket) if ticket else ()),
                        *_next_lines(page, finding),
                    ),
                )
            )
            ElementTree.SubElement(case, outcome, message=message).text = body if outcome != "skipped" else None
    ElementTree.SubElement(suite, "system-out").text = xml_text(page.first_line)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def format_json(page: FindingPage) -> str:
    """Return schema `levelfield.gate/1`: the first line, the exit code, and every finding in full precision."""
    rows = [{**f.model_dump(mode="json"), "ticket": None} for f in page.findings]
    for row, finding in zip(rows, page.findings, strict=True):
        if ticket := page.ticket(finding):
            row["ticket"] = ticket.model_dump(mode="json")
    head = {"schema": "levelfield.gate/1", "night": page.night, "verdict": page.verdict, "first_line": page.first_line}
    document = {**head, "exit_code": page.exit_code, "notes": list(page.notes), "findings": rows}
    return json_text(document) + "\n"


def format_webhook(page: FindingPage) -> str:
    """Return schema `levelfield.webhook/1`, which docs/nightly.md describes: all but what did not change."""
    changed = [finding for finding in page.findings if finding.word != "no change"]
    counts = Counter(finding.word for finding in page.findings)
    lines = [page.verdict]  # for a chat: the verdict, the worst series, the link
    groups = [group for groups in group_by_series(changed).values() for group in groups]
    for finding, *_ in groups[:5]:
        ticket = page.ticket(finding)
        blamed_text = f"first bad: {commit_text(ticket.blamed)}" if ticket and ticket.blamed else ""
        texts = (finding.status, _short_line(finding.label), _figure_line(finding), blamed_text)
        lines.append(one_line(": ".join(filter(None, texts))))
    lines += [f"{len(groups) - 5} more"] if len(groups) > 5 else []
    step = next_step(groups[0][0], page.ticket(groups[0][0]), page.store) if groups else None
    lines += [f"next: {step.text}"] if step else []
    findings: list[dict[str, Any]] = []
    for finding in changed[:MAX_WEBHOOK_FINDINGS]:
        ticket = page.ticket(finding)
        first_bad = ticket.blamed.model_dump(mode="json") if ticket and ticket.blamed else None
        names = ("word", "series", "figure", "change", "low", "high", "level", "run_id")
        findings.append(
            {
                **{name: getattr(finding, name) for name in names},
                "label": _short_line(finding.label),
                "detail": _short_line(finding.detail),
                "explanation": [_short_line(sentence) for sentence in finding.explanation],
                "link": ticket.page if ticket else None,
                "commits": ticket.all_commits if ticket else None,
                "first_bad": first_bad,
            }
        )
    document = {
        "schema": "levelfield.webhook/1", "id": f"{page.suite or 'all'}/{page.night}", "night": page.night,
        "suite": page.suite, "exit_code": page.exit_code, "verdict": page.verdict, "compared": page.first_line,
        "link": page.link, "text": "\n".join([*lines, page.link] if page.link else lines),
        "counts": {word: counts[word] for word in FINDING_WORDS if counts[word]},
        "findings": findings,
        "more": max(0, len(changed) - MAX_WEBHOOK_FINDINGS),
    }  # fmt: skip
    return json_text(document) + "\n"


def _figure_line(finding: Finding) -> str:
    """Return figure, change, interval and level; a missing figure alone; empty where nothing is said of a figure."""
    if finding.figure is None or finding.change is None:
        return FIGURE_NAMES[finding.figure] if finding.figure and finding.word == "missing" else ""
    text = f"{FIGURE_NAMES[finding.figure]} {change_text(finding)}"
    if finding.level is not None:
        level = figure_value(finding.level, finding.figure)
        nights = "1 night" if finding.nights == 1 else f"{finding.nights} nights"
        text += f"; baseline {level}, {nights} since {finding.level_since}"
    return text


def _markdown_text(text: str) -> Markdown:
    """Return foreign text for a merge request, where `@name` would notify somebody."""
    return Markdown(escape_markdown(_short_line(text)).replace("@", "&#64;"))


def _short_line(text: str) -> str:
    return clipped(one_line(text), _MAX_TEXT_CHARACTERS)


FORMATTERS: Mapping[str, Callable[[FindingPage], str]] = {
    "text": format_text,
    "markdown": format_markdown,
    "junit": format_junit,
    "json": format_json,
    "webhook": format_webhook,
}
