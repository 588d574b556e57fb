"""Everything that the pages show, read from a store once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelfield.compare.sides import disturbance
from levelfield.pages.series_history import SeriesRuns, StoredResults, epoch_seconds, group_by
from levelfield.series.findings import FINDING_WORDS, FindingWord
from levelfield.specs.record import StoreEvent, nights_in_order
from levelfield.specs.short_names import slug

MAX_NIGHTS = 30  # the newest nights, whose findings the case pages show

_NO_CHANGES = ("missing", "new series", "no change")  # the page shows these apart from the changes
CHANGE_WORDS = tuple(word for word in FINDING_WORDS if word not in _NO_CHANGES)
CALM_WORDS = ("no change", "new series")  # findings that need no action
FALLBACK_WORD: FindingWord = "inconclusive"  # in place of a word that only a later version has
MAX_TEXT_LENGTH = 400  # characters of a finding's text
MAX_DISTURBED_RUNS = 30  # newest runs of a series among which a quiet one is looked for


@dataclass(frozen=True)
class NightFinding:
    """One finding of a night."""

    night: str
    series: str  # its digest; empty of a node, and of an entry that never ran
    label: str
    figure: str | None
    word: FindingWord
    change: float | None  # relative, as are low and high, the ends of its interval
    low: float | None
    high: float | None
    level: float | None
    level_since: str | None
    nights: int | None
    detectable: float | None  # the smallest change that could be seen
    run_id: str | None
    detail: str
    fields: tuple[str, ...]
    pairs: int | None = None  # how many pairs of builds it rests on; None where it rests on nights alone
    explanation: tuple[str, ...] = ()  # why a step takes longer, in sentences


def parse_finding(night: str, content: Mapping[str, Any]) -> NightFinding:
    """Return a finding from its JSON. What is absent or of a wrong type is None or an empty text."""

    def text(name: str) -> str | None:
        value = content.get(name)
        return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else None

    def texts(name: str) -> tuple[str, ...]:
        values = content.get(name)
        return tuple(str(value)[:MAX_TEXT_LENGTH] for value in values) if isinstance(values, (list, tuple)) else ()

    numbers = {name: finite_number(content.get(name)) for name in ("change", "low", "high", "level", "detectable")}
    nights, pairs = finite_number(content.get("nights")), finite_number(content.get("pairs"))
    return NightFinding(
        night=night,
        series=text("series") or "",
        label=text("label") or "",
        figure=text("figure"),
        word=next((word for word in FINDING_WORDS if word == content.get("word")), FALLBACK_WORD),
        **numbers,
        level_since=text("level_since"),
        nights=None if nights is None else int(nights),
        run_id=text("run_id"),
        detail=text("detail") or "",
        fields=texts("fields"),
        pairs=int(pairs) if pairs else None,
        explanation=texts("explanation"),
    )


def finite_number(value: Any) -> float | None:
    """Return a number of JSON; None for another value, NaN and infinity."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


@dataclass(frozen=True)
class PagesContent:
    """The contents of a store that the pages show."""

    series: Mapping[str, SeriesRuns]  # by digest
    events: Sequence[StoreEvent]
    last_night: str | None
    # the last night's entries, each with the digest of its series; None where the entry never ran
    expected_entries: Mapping[str, str | None]
    findings: Sequence[NightFinding]  # of the last nights
    unreadable_ids: Sequence[str] = ()  # runs that are left out

    @property
    def last_night_findings(self) -> list[NightFinding]:
        """The findings of the last night."""
        return [finding for finding in self.findings if finding.night == self.last_night]

    @property
    def run_count(self) -> int:
        return sum(len(runs.points) for runs in self.series.values())

    def series_by_case(self) -> dict[str, list[SeriesRuns]]:
        """Return the series of each case, in order of their labels."""
        ordered = sorted(self.series.values(), key=lambda runs: runs.series.label)
        return dict(sorted(group_by(ordered, lambda runs: runs.series.case).items()))


def read_content(results: StoredResults, unpaired_findings: Sequence[Mapping[str, Any]] = ()) -> PagesContent:
    """Read a store. A run whose time cannot be read is left out and named in `unreadable_ids`.

    unpaired_findings: findings of the last night, made again without pairs. The gate stores no finding of a quiet
    series, so that these give its level. Where the night has stored findings, only the calm ones of these are taken.
    """
    points, nights = results.points(), nights_in_order(results.nights())
    unreadable: list[str] = []
    series = []
    for entry in results.series():
        timed = []
        for point in points.get(entry.digest, ()):
            if _is_readable_time(point.began):
                timed.append(point)
            else:
                unreadable.append(point.run_id)
        timed.sort(key=lambda point: epoch_seconds(point.began))
        slugs = slug(f"{entry.series.label} {entry.digest}"), slug(entry.series.case)
        series.append(SeriesRuns(entry.digest, *slugs, entry.series, timed))
    stored = [parse_finding(night, finding) for night in nights[-MAX_NIGHTS:] for finding in results.findings(night)]
    tonight = [parse_finding(nights[-1], finding) for finding in unpaired_findings] if nights else []
    if any(finding.night == nights[-1] for finding in stored):
        tonight = [finding for finding in tonight if finding.word in CALM_WORDS]
    # Findings are only added: the last one of a series and figure replaces those before.
    latest = {(f.night, f.series, f.figure, f.label): f for f in (*tonight, *stored)}
    return PagesContent(
        series={runs.digest: runs for runs in _mark_disturbed(series, results) if runs.points},
        events=tuple(event for event in results.events() if _is_readable_time(event.at)),
        last_night=nights[-1] if nights else None,
        expected_entries=results.expected_entries(nights[-1]) if nights else {},
        findings=tuple(latest.values()),
        unreadable_ids=tuple(unreadable),
    )


def _mark_disturbed(series: Sequence[SeriesRuns], results: StoredResults) -> list[SeriesRuns]:
    """Return the series with the runs after their newest quiet one marked as disturbed.

    Only these runs are read in full, one of each series at a time.
    """
    counted = {
        runs.digest: [point.run_id for point in reversed(runs.counted_points)][:MAX_DISTURBED_RUNS] for runs in series
    }
    disturbed: dict[str, list[str]] = {digest: [] for digest in counted}
    unsettled = [digest for digest, ids in counted.items() if ids]
    while unsettled:
        next_ids = {counted[digest][len(disturbed[digest])]: digest for digest in unsettled}
        ids = [record.run_id for record in results.records([*next_ids]) if disturbance(record)]
        for run_id in ids:
            disturbed[next_ids[run_id]].append(run_id)
        unsettled = [next_ids[run_id] for run_id in ids]
        unsettled = [digest for digest in unsettled if len(disturbed[digest]) < len(counted[digest])]
    return [
        replace(
            runs,
            disturbed_ids=tuple(reversed(disturbed[runs.digest])),
            is_disturbed=0 < len(counted[runs.digest]) == len(disturbed[runs.digest]),
        )
        for runs in series
    ]


def _is_readable_time(text: str) -> bool:
    try:
        epoch_seconds(text)
    except (ValueError, OverflowError):
        return False
    return True
