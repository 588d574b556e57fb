"""Findings as a reader gets them, word for word: tests/core/golden/findings.txt holds each form of one night."""

from __future__ import annotations

import os
from pathlib import Path

from levelfield.series.finding_forms import format_junit, format_markdown, format_text
from levelfield.series.findings import Finding, FindingPage, worst_first
from levelfield.series.ticket import Bisection, Ticket, TicketCommit, ticket_lines

GOLDEN = Path(__file__).parents[1] / "golden" / "findings.txt"
TOKENS = "tokens_per_second_per_device"
BAD = TicketCommit(commit="c" * 40, author="Eve", subject="Wait longer")
TICKET = Ticket(
    accepted="e" * 40,
    since="a" * 40,
    since_night="2026-11-21",
    tonight="b" * 40,
    all_commits=7,
    packages=("torch 2.12.0 -> 2.13.0",),
    commits=tuple(TicketCommit(commit="b" * 40, author="Ann", subject=f"Change {n}") for n in range(6)),
    command=("python", "run_benchmarks.py", "nightly", "bisect", "a" * 12, "b" * 12, "--case", "gpt3_6.7B:torch:cpu"),
    page="https://ci.example.org/case-x.html#s",
)


def finding(word: str, **changes: object) -> Finding:
    values = {
        **{
            "series": "sha256:25452b67ff06aa",
            "label": "gpt:torch:cpu:1:2 smoke",
            "figure": TOKENS,
            "word": word,
            "run_id": "r",
        },
        **{"change": -0.062, "low": -0.071, "high": -0.053, "level": 5165.2, "level_since": "2026-10-01"},
        **{"nights": 30, "detectable": 0.021, "detail": "against the baseline build, by 4 pairs", "pairs": 4},
    }
    return Finding.model_validate({**values, **changes})


def night(steps: int = 0, strict: bool = False, advisory: bool = False) -> FindingPage:
    """Return a night with a ticket of two findings, and with more steps of conditions than a terminal shows."""
    memory = finding("regression", figure="memory_bytes", level=2.0 * 2**30)
    regressions = finding("regression", explanation=("the kernel waits",)), memory
    findings = [
        *regressions,
        finding("missing", figure=None, change=None, low=None, high=None, level=None, detail="expected, not run"),
        finding("inconclusive", series="T", label="other", nights=1, detail="about 5 more pairs, after 7"),
        finding("no change", series="U", label="steady", change=0.001, detail=""),
        *(finding("environment step", series="", label=f"step {number:02}") for number in range(steps)),
    ]
    tickets = {(entry.series, entry.figure): TICKET for entry in regressions}
    first_line, notes = "compared 3 of 4 series of night 2026-11-22", ("no pairs: the machine is slow",)
    ordered = tuple(worst_first(findings))
    return FindingPage(first_line, "2026-11-22", ordered, strict, advisory, tickets, folder="site", notes=notes)


def searches() -> list[str]:
    """Return the ticket with each end that a search may have."""
    ends = [
        Bisection(first_bad="c" * 40, last_good="d" * 40),
        Bisection(first_bad="c" * 40, last_good="d" * 40, undecided=2),
        Bisection(why_not="the budget holds no search"),
    ]
    updates = [{"bisection": end, "first_bad": BAD if end.first_bad else None} for end in ends]
    unknown = Ticket(commits_unknown="no such commit", packages_unknown="no list")
    return [
        line for ticket in (*(TICKET.model_copy(update=u) for u in updates), unknown) for line in ticket_lines(ticket)
    ]


def test_findings_are_written_as_in_the_golden_file() -> None:
    forms = [
        format_text(night(13, advisory=True)),
        format_markdown(night(strict=True)),
        format_junit(night()),
        *searches(),
        "",
    ]
    text = "\n".join(forms)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
