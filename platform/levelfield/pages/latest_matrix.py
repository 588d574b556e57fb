"""The matrix of the latest valid results: a row for each work, a column for each chip and framework."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.pages.history_columns import SeriesRuns
from levelfield.pages.series_summary import SeriesSummary

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
        tokens=latest.tokens if latest else None,
        verdict=latest.verdict if latest else None,
        date=(latest.began if latest else summary.last)[:10],
        devices=f"{s.nodes}x{s.devices // s.nodes}",
        layout=str(s.layout),
        word=summary.why_not or summary.last_word,
        more=len(series) - 1,
    )


def _speed(summary: SeriesSummary) -> float:
    return -1.0 if summary.latest is None or summary.latest.tokens is None else summary.latest.tokens


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:6]
