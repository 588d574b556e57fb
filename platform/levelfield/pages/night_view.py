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
from levelfield.series.findings import (
    ABSENCE_WORDS,
    COMPARED_WORDS,
    FAILURE_WORDS,
    FIGURE_NAMES,
    FINDING_WORDS,
    STATUS_TEXTS,
)
from levelfield.series.level import MIN_LEVEL_NIGHTS
from levelfield.series.ticket import Ticket, Tickets

MAX_CHANGES = 60  # rows of the table of changes, so that the first page stays small
# The badge is a picture for a README, and the JSON that a badge service such as shields.io reads.
_BADGE_LABEL = "nightly"
_BADGE_COLOURS = {
    "failing": "#b3261e",
    "missing": "#8a6100",
    "passing": "#1a7f37",
    "unknown": "#57606a",
}  # on white text
_CHARACTER_WIDTH, _MARGIN, _HEIGHT = 6.6, 6, 20  # of Verdana at 11 pixels
_BADGE_SVG = """\
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
    last_began: str | None  # when its series last began


@dataclass(frozen=True)
class NightView:
    """The counts, changes and missing entries of the last night."""

    night: str | None
    expected_count: int  # entries
    arrived_count: int  # entries with a run
    compared_count: int  # series
    word_counts: dict[str, int]  # series by word
    changes: tuple[ChangedSeries, ...]
    left_out_count: int  # changes beyond the table
    missing: tuple[MissingEntry, ...]
    run_count: int
    series_count: int
    unreadable_ids: tuple[str, ...]
    is_judged: bool  # whether a gate said anything about the night; a missing run alone is no judgement
    attention_count: int  # series and entries that need a person
    fewest_nights: ClassVar = MIN_LEVEL_NIGHTS  # that a series needs before it is compared


def night_view(content: PagesContent, tickets: Tickets = MappingProxyType({})) -> NightView:
    """Return the view of the last night. tickets: those of its findings, where there are any."""
    missing, largest_changes = _missing_entries(content), dict[tuple[str, str, str], float]()
    without_figure = {f.series for f in content.last_night_findings if f.word == "missing" and f.figure}
    for finding in content.last_night_findings:
        group = (finding.word, finding.series, finding.label)
        largest_changes[group] = max(largest_changes.get(group, 0.0), abs(finding.change or 0.0))
    figure_order = {
        figure: place for place, figure in enumerate((None, *FIGURE_NAMES))
    }  # of a series the speed is first

    def sort_key(finding: NightFinding) -> tuple[int, float, str, int]:
        size = largest_changes[finding.word, finding.series, finding.label]
        return (
            FINDING_WORDS.index(finding.word),
            -size,
            finding.label,
            figure_order.get(finding.figure, len(figure_order)),
        )

    findings = sorted(content.last_night_findings, key=sort_key)
    changed = {series for word, series, _ in largest_changes if word != "no change"}
    counts = Counter(word for word, series, _ in largest_changes if word != "no change" or series not in changed)
    counts["missing"] = len(missing) + len(without_figure)
    changes = [
        ChangedSeries(f, content.series.get(f.series), tickets.get((f.series, f.figure)))
        for f in findings
        if f.word in CHANGE_WORDS or (f.word == "missing" and f.figure)
    ]
    return NightView(
        night=content.last_night,
        expected_count=len(content.expected_entries),
        arrived_count=len(content.expected_entries) - sum(entry.name in content.expected_entries for entry in missing),
        compared_count=len({f.series for f in findings if f.series and f.word in COMPARED_WORDS}),
        word_counts={word: counts[word] for word in FINDING_WORDS},
        changes=tuple(changes[:MAX_CHANGES]),
        left_out_count=max(0, len(changes) - MAX_CHANGES),
        missing=tuple(missing),
        run_count=content.run_count,
        series_count=len(content.series),
        unreadable_ids=tuple(content.unreadable_ids),
        is_judged=any(count for word, count in counts.items() if word != "missing"),
        attention_count=sum(
            counts[word] for word in (*CHANGE_WORDS, "missing") if word not in ("improvement", "inconclusive")
        ),
    )


def _missing_entries(content: PagesContent) -> list[MissingEntry]:
    """Return expected entries without a run, by the gate's findings and by the runs of the night themselves."""
    findings = [f for f in content.last_night_findings if f.word == "missing" and not f.figure]
    labels = {finding.series: finding.label for finding in findings}
    missing_names = {finding.label for finding in findings}  # entries that never ran have no series
    never_ran = [name for name, digest in content.expected_entries.items() if digest is None and name in missing_names]
    names = {digest: name for name, digest in content.expected_entries.items() if digest}
    ran_digests = {
        digest
        for digest, runs in content.series.items()
        if any(point.night == content.last_night for point in runs.points)
    }
    absent_digests = dict.fromkeys(
        [*(digest for digest in labels if digest), *(d for d in names if d not in ran_digests)]
    )
    entries = []
    for digest in absent_digests:
        runs = content.series.get(digest)
        name = names.get(digest) or labels.get(digest, digest)
        entries.append(MissingEntry(name, runs, runs.points[-1].began if runs else None))
    return [*entries, *(MissingEntry(name, None, None) for name in never_ran)]


def badge_files(night: NightView) -> dict[str, str]:
    """Return the files of the badge by their names in the site."""
    is_compared = any(night.word_counts[word] for word in COMPARED_WORDS)
    message, state = ("passing", "passing") if is_compared else ("no baseline yet", "unknown")
    for words, worse_state in (
        (ABSENCE_WORDS, "missing"),
        (FAILURE_WORDS, "failing"),
    ):  # a failure says more than an absence
        counts = [(night.word_counts[word], STATUS_TEXTS[word]) for word in FINDING_WORDS if word in words]
        if phrases := [f"{count} {texts[count > 1]}" for count, texts in counts if count]:
            message, state = ", ".join(phrases), worse_state
    if night.night is None:
        message, state = "no night", "unknown"
    else:
        message = f"{message}, {night.night[:10]}"  # a picture that stays green may be of nights that no longer run
    colour = _BADGE_COLOURS[state]
    shields = {"schemaVersion": 1, "label": _BADGE_LABEL, "message": message, "color": colour}
    if state == "failing":
        shields["isError"] = True
    label_width, message_width = (round(len(text) * _CHARACTER_WIDTH) + 2 * _MARGIN for text in (_BADGE_LABEL, message))
    picture = _BADGE_SVG.format(
        width=label_width + message_width, height=_HEIGHT, left=label_width, right=message_width, colour=colour,
        label=escape(_BADGE_LABEL), message=escape(message), label_x=label_width / 2,
        message_x=label_width + message_width / 2,
    )  # fmt: skip
    return {"data/badge.svg": picture, "data/badge.json": json.dumps(shields) + "\n"}
