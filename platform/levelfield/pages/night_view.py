"""The page of the last night: what changed, and what is missing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar
from xml.sax.saxutils import escape

from levelfield.pages.content import CHANGE_WORDS, NightFinding, PagesContent
from levelfield.pages.series_history import SeriesRuns
from levelfield.series.findings import ABSENCES, COMPARED, FAILURES, FIGURES, STATUS_TEXTS, WORDS
from levelfield.series.level import FEWEST_NIGHTS
from levelfield.series.ticket import Ticket, Tickets

ROWS = 60  # of the table of changes, so that the first page stays small
_LABEL = "nightly"  # of the badge: a picture for a README, and the JSON that a badge service such as shields.io reads
_COLOURS = {"failing": "#b3261e", "missing": "#8a6100", "passing": "#1a7f37", "open": "#57606a"}  # on white text
_CHARACTER, _MARGIN, _HEIGHT = 6.6, 6, 20  # of Verdana at 11 pixels
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{label}: {message}">
<title>{label}: {message}</title>
<rect width="{left}" height="{height}" fill="#24292f"/>
<rect x="{left}" width="{right}" height="{height}" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{label_x}" y="14">{label}</text>
<text x="{message_x}" y="14">{message}</text>
</g>
</svg>
"""


@dataclass(frozen=True)
class ChangedSeries:
    """A finding with its series, None for one that is not in the store, and what somebody needs to mend it."""

    finding: NightFinding
    runs: SeriesRuns | None
    ticket: Ticket | None = None

    @property
    def commits(self) -> str:
        """The commits, the newest first. Pages are published, so they have neither authors nor subjects."""
        return ", ".join(commit.commit[:12] for commit in self.ticket.commits) if self.ticket else ""


@dataclass(frozen=True)
class MissingEntry:
    """An expected entry without a run in the last night, with its series; None if it never ran."""

    name: str
    runs: SeriesRuns | None
    last: str | None  # when its series last began


@dataclass(frozen=True)
class NightView:
    """What the last night says."""

    night: str | None
    expected: int  # entries
    arrived: int
    compared: int
    counts: dict[str, int]  # series by word
    changes: tuple[ChangedSeries, ...]
    left_out: int  # changes beyond the table
    missing: tuple[MissingEntry, ...]
    runs: int
    series: int
    unreadable: tuple[str, ...]
    is_judged: bool  # whether a gate said anything about the night; a missing run alone is no judgement
    attention: int  # findings that need a person
    nights_of_a_level: ClassVar = FEWEST_NIGHTS  # that a series has before it is compared


def night_view(content: PagesContent, tickets: Tickets = MappingProxyType({})) -> NightView:
    """Return what the last night says. tickets: of its findings, as far as they are known."""
    missing, largest = _missing(content), dict[tuple[str, str, str], float]()
    for finding in content.tonight:
        group = (finding.word, finding.series, finding.label)
        largest[group] = max(largest.get(group, 0.0), abs(finding.change or 0.0))
    places = {figure: place for place, figure in enumerate((None, *FIGURES))}  # of a series the speed is first

    def order(finding: NightFinding) -> tuple[int, float, str, int]:
        size = largest[finding.word, finding.series, finding.label]
        return WORDS.index(finding.word), -size, finding.label, places.get(finding.figure, len(places))

    tonight = sorted(content.tonight, key=order)
    changed = {series for word, series, _ in largest if word != "no change"}
    counts = Counter(word for word, series, _ in largest if word != "no change" or series not in changed)
    counts["missing"] = len(missing)
    changes = [
        ChangedSeries(f, content.series.get(f.series), tickets.get((f.series, f.figure)))
        for f in tonight
        if f.word in CHANGE_WORDS
    ]
    return NightView(
        night=content.night,
        expected=len(content.expected),
        arrived=len(content.expected) - sum(entry.name in content.expected for entry in missing),
        compared=len({f.series for f in tonight if f.series and f.word in COMPARED}),
        counts={word: counts[word] for word in WORDS},
        changes=tuple(changes[:ROWS]),
        left_out=max(0, len(changes) - ROWS),
        missing=tuple(missing),
        runs=content.runs,
        series=len(content.series),
        unreadable=tuple(content.unreadable),
        is_judged=any(count for word, count in counts.items() if word != "missing"),
        attention=sum(
            counts[word] for word in (*CHANGE_WORDS, "missing") if word not in ("improvement", "inconclusive")
        ),
    )


def _missing(content: PagesContent) -> list[MissingEntry]:
    """Return expected entries without a run, by the gate's findings and by the runs of the night themselves."""
    findings = [finding for finding in content.tonight if finding.word == "missing"]
    labels = {finding.series: finding.label for finding in findings}
    never = [name for name, digest in content.expected.items() if digest is None and name in labels.values()]
    names = {digest: name for name, digest in content.expected.items() if digest}
    ran = {
        digest for digest, runs in content.series.items() if any(point.night == content.night for point in runs.points)
    }
    absent = dict.fromkeys([*(digest for digest in labels if digest), *(d for d in names if d not in ran)])
    entries = []
    for digest in absent:
        runs = content.series.get(digest)
        name = names.get(digest) or labels.get(digest, digest)
        entries.append(MissingEntry(name, runs, runs.points[-1].began if runs else None))
    return [*entries, *(MissingEntry(name, None, None) for name in never)]


def badge_files(night: NightView) -> dict[str, str]:
    """Return the files of the badge by their names in the site."""
    is_compared = any(night.counts[word] for word in COMPARED)
    message, state = ("passing", "passing") if is_compared else ("no baseline yet", "open")
    for words, worse in ((ABSENCES, "missing"), (FAILURES, "failing")):  # a failure says more than an absence
        numbers = [(night.counts[word], STATUS_TEXTS[word]) for word in WORDS if word in words]
        if counted := [f"{count} {texts[count > 1]}" for count, texts in numbers if count]:
            message, state = ", ".join(counted), worse
    if night.night is None:
        message, state = "no night", "open"
    else:
        message = f"{message}, {night.night[:10]}"  # a picture that stays green is of nights that no longer run
    colour = _COLOURS[state]
    shields = {"schemaVersion": 1, "label": _LABEL, "message": message, "color": colour}
    if state == "failing":
        shields["isError"] = True
    left, right = (round(len(text) * _CHARACTER) + 2 * _MARGIN for text in (_LABEL, message))
    picture = _SVG.format(
        width=left + right, height=_HEIGHT, left=left, right=right, colour=colour, label=escape(_LABEL),
        message=escape(message), label_x=left / 2, message_x=left + right / 2,
    )  # fmt: skip
    return {"data/badge.svg": picture, "data/badge.json": json.dumps(shields) + "\n"}
