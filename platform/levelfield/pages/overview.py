"""The first page: the last night in a sentence, what changed, what is missing, and which machines are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.pages.gathering import PagesContent
from levelfield.pages.latest_matrix import LatestMatrix, latest_matrix
from levelfield.pages.night_findings import CHANGES, NightFinding, in_order
from levelfield.pages.series_summary import SeriesSummary
from levelfield.series.findings import COMPARED, WORDS
from levelfield.series.level import FEWEST
from levelfield.specs.record import StoreEvent

ROWS = 60  # of the table of changes, so that the first page stays small


@dataclass(frozen=True)
class ChangedSeries:
    """A finding with the place of its series; `slug` is None for a series that is not in the store."""

    finding: NightFinding
    slug: str | None
    case_slug: str | None


@dataclass(frozen=True)
class MissingEntry:
    """An expected entry without a run in the last night. last: when its series last began; None if never."""

    name: str
    slug: str | None
    case_slug: str | None
    last: str | None


@dataclass(frozen=True)
class Overview:
    """expected, arrived: entries of the last night. counts: findings by word. left_out: changes beyond the table."""

    night: str | None
    expected: int
    arrived: int
    compared: int
    counts: dict[str, int]
    changes: tuple[ChangedSeries, ...]
    left_out: int
    missing: tuple[MissingEntry, ...]
    quarantined: tuple[StoreEvent, ...]
    matrix: LatestMatrix
    runs: int
    series: int
    unreadable: tuple[str, ...]

    @property
    def is_judged(self) -> bool:
        """Whether a gate said anything about the night; a missing run alone is no judgement."""
        return any(count for word, count in self.counts.items() if word != "missing")

    @property
    def nights_of_a_level(self) -> int:
        """How many nights a series has before it is compared."""
        return FEWEST

    @property
    def attention(self) -> int:
        """How many findings need a person."""
        return sum(self.counts[word] for word in (*CHANGES, "missing") if word not in ("improvement", "inconclusive"))


def overview(content: PagesContent, summaries: Mapping[str, SeriesSummary]) -> Overview:
    """Return the overview. summaries: by series digest."""
    tonight, missing = in_order(content.tonight), _missing(content)
    counts = Counter(finding.word for finding in tonight)
    counts["missing"] = len(missing)
    changes = [_placed(finding, content) for finding in tonight if finding.word in CHANGES]
    return Overview(
        night=content.night,
        expected=len(content.expected),
        arrived=len(content.expected) - sum(entry.name in content.expected for entry in missing),
        compared=len({f.series for f in tonight if f.series and f.word in COMPARED}),
        counts={word: counts[word] for word in WORDS},
        changes=tuple(changes[:ROWS]),
        left_out=max(0, len(changes) - ROWS),
        missing=tuple(missing),
        quarantined=tuple(_quarantined(content)),
        matrix=latest_matrix([(runs, summaries[digest]) for digest, runs in content.series.items()]),
        runs=content.runs,
        series=len(content.series),
        unreadable=tuple(content.unreadable),
    )


def _placed(finding: NightFinding, content: PagesContent) -> ChangedSeries:
    runs = content.series.get(finding.series)
    return ChangedSeries(finding, runs.slug if runs else None, runs.case_slug if runs else None)


def _missing(content: PagesContent) -> list[MissingEntry]:
    """Return expected entries without a run, by the gate's findings and by the runs of the night themselves."""
    of_gate = [finding for finding in content.tonight if finding.word == "missing"]
    said, labels = {f.series: f.label for f in of_gate}, {f.label for f in of_gate}
    names = {digest: name for name, digest in content.expected.items() if digest}
    absent = [d for d in names if not _ran(d, content)]
    never = [name for name, digest in content.expected.items() if digest is None and name in labels]
    known = dict.fromkeys([*(digest for digest in said if digest), *absent])
    found = [_missing_entry(names.get(digest) or said.get(digest, digest), digest, content) for digest in known]
    return [*found, *(MissingEntry(name, None, None, None) for name in never)]


def _ran(digest: str, content: PagesContent) -> bool:
    runs = content.series.get(digest)
    return runs is not None and any(point.night == content.night for point in runs.points)


def _missing_entry(name: str, digest: str, content: PagesContent) -> MissingEntry:
    runs = content.series.get(digest)
    if runs is None:
        return MissingEntry(name, None, None, None)
    return MissingEntry(name, runs.slug, runs.case_slug, runs.points[-1].began)


def _quarantined(content: PagesContent) -> list[StoreEvent]:
    """Return for each node that is left out the event that said so."""
    latest: dict[str, StoreEvent] = {}
    for event in sorted(content.events, key=lambda event: event.at):
        if event.node and event.kind in ("quarantine", "release"):
            latest[event.node] = event
    return [event for event in latest.values() if event.kind == "quarantine"]
