"""The first page: the last night, what changed, what is missing, which machines are left out, and the matrix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.pages.content import CHANGES, NightFinding, PagesContent, in_order
from levelfield.pages.series_history import SeriesRuns, SeriesSummary
from levelfield.series.findings import COMPARED, WORDS
from levelfield.series.level import FEWEST
from levelfield.specs.record import StoreEvent

ROWS = 60  # of the table of changes, so that the first page stays small

Summarized = tuple[SeriesRuns, SeriesSummary]


@dataclass(frozen=True)
class LatestCell:
    """The fastest series of a work on a chip by a framework. more: other series of the same cell.

    tokens: tokens/s/device of its latest valid run, and verdict: on the loss of that; None without one, and `word` says
    how the last run ended.
    """

    case_slug: str
    slug: str
    tokens: float | None
    verdict: str | None
    date: str
    devices: str
    layout: str
    word: str
    more: int


@dataclass(frozen=True)
class LatestRow:
    """One work: two rows differ in what the case fixes. digest: tells rows of one name apart, else empty."""

    case: str
    case_slug: str
    scale: str
    precision: str
    digest: str
    cells: tuple[LatestCell | None, ...]


@dataclass(frozen=True)
class LatestMatrix:
    """columns: (vendor, chip, framework)."""

    columns: tuple[tuple[str, str, str], ...]
    rows: tuple[LatestRow, ...]

    @property
    def empty(self) -> int:
        """The number of cells in which nothing has run."""
        return sum(cell is None for row in self.rows for cell in row.cells)


def latest_matrix(series: Sequence[Summarized]) -> LatestMatrix:
    """Return the matrix. Series with another corpus or work are never in one row."""
    places: dict[tuple[str, ...], dict[tuple[str, str, str], list[Summarized]]] = defaultdict(lambda: defaultdict(list))
    for runs, summary in series:
        s = runs.series
        places[(s.case, s.scale, s.precision, s.work, s.corpus)][(s.vendor, s.chip, s.framework_label)].append(
            (runs, summary)
        )
    columns = tuple(sorted({column for row in places.values() for column in row}))
    names = [key[:3] for key in places]
    rows = [_row(key, names.count(key[:3]) > 1, columns, places[key]) for key in sorted(places)]
    return LatestMatrix(columns, tuple(rows))


def _row(
    key: tuple[str, ...],
    is_ambiguous: bool,
    columns: Sequence[tuple[str, str, str]],
    cells: Mapping[tuple[str, str, str], Sequence[Summarized]],
) -> LatestRow:
    case, scale, precision, work, corpus = key
    case_slug = next(runs.case_slug for each in cells.values() for runs, _ in each)
    digest = f"{_short(work)}/{_short(corpus)}" if is_ambiguous else ""
    found = tuple(_cell(cells[column]) if column in cells else None for column in columns)
    return LatestRow(case, case_slug, scale, precision, digest, found)


def _cell(series: Sequence[Summarized]) -> LatestCell:
    runs, summary = max(series, key=lambda each: (_speed(each[1]), each[1].last))
    s, latest = runs.series, summary.latest
    return LatestCell(
        case_slug=runs.case_slug,
        slug=runs.slug,
        tokens=summary.tokens,
        verdict=latest.verdict if latest else None,
        date=(latest.began if latest else summary.last)[:10],
        devices=f"{s.nodes}x{s.devices // s.nodes}",
        layout=str(s.layout),
        word=summary.why_not or summary.last_word,
        more=len(series) - 1,
    )


def _speed(summary: SeriesSummary) -> float:
    return -1.0 if summary.tokens is None else summary.tokens


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:6]


@dataclass(frozen=True)
class ChangedSeries:
    """A finding with its series; None for a series that is not in the store."""

    finding: NightFinding
    runs: SeriesRuns | None


@dataclass(frozen=True)
class MissingEntry:
    """An expected entry without a run in the last night, with its series; None if it never ran."""

    name: str
    runs: SeriesRuns | None

    @property
    def last(self) -> str | None:
        """When its series last began."""
        return self.runs.points[-1].began if self.runs else None


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
    changes = [ChangedSeries(f, content.series.get(f.series)) for f in tonight if f.word in CHANGES]
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


def _missing(content: PagesContent) -> list[MissingEntry]:
    """Return expected entries without a run, by the gate's findings and by the runs of the night themselves."""
    of_gate = [finding for finding in content.tonight if finding.word == "missing"]
    said, labels = {f.series: f.label for f in of_gate}, {f.label for f in of_gate}
    names = {digest: name for name, digest in content.expected.items() if digest}
    absent = [d for d in names if not _ran(d, content)]
    never = [name for name, digest in content.expected.items() if digest is None and name in labels]
    known = dict.fromkeys([*(digest for digest in said if digest), *absent])
    found = [MissingEntry(names.get(d) or said.get(d, d), content.series.get(d)) for d in known]
    return [*found, *(MissingEntry(name, None) for name in never)]


def _ran(digest: str, content: PagesContent) -> bool:
    runs = content.series.get(digest)
    return runs is not None and any(point.night == content.night for point in runs.points)


def _quarantined(content: PagesContent) -> list[StoreEvent]:
    """Return for each node that is left out the event that said so."""
    latest: dict[str, StoreEvent] = {}
    for event in sorted(content.events, key=lambda event: event.at):
        if event.node and event.kind in ("quarantine", "release"):
            latest[event.node] = event
    return [event for event in latest.values() if event.kind == "quarantine"]
