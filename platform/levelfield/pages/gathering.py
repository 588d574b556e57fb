"""Everything that the pages show, read from a store once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelfield.pages.escaped_data import slug
from levelfield.pages.history_columns import SeriesRuns, seconds_of
from levelfield.pages.night_findings import CALM, NightFinding, finding_of, latest_of_each
from levelfield.pages.results import SeriesEntry, StoredResults
from levelfield.specs.record import Point, StoreEvent

NIGHTS_SHOWN = 30  # of which the case pages repeat what the gate said


@dataclass(frozen=True)
class PagesContent:
    """series: by digest. findings, expected: of the last nights; `night` is the last. unreadable: runs left out.

    expected: of the last night, entry name to the digest of its series, None where it never ran.
    """

    series: Mapping[str, SeriesRuns]
    events: Sequence[StoreEvent]
    night: str | None
    expected: Mapping[str, str | None]
    findings: Sequence[NightFinding]
    unreadable: Sequence[str] = field(default_factory=tuple)

    @property
    def tonight(self) -> list[NightFinding]:
        """The findings of the last night."""
        return [finding for finding in self.findings if finding.night == self.night]

    @property
    def runs(self) -> int:
        return sum(len(each.points) for each in self.series.values())

    def cases(self) -> dict[str, list[SeriesRuns]]:
        """Return the series of each case, in order of their labels."""
        found: dict[str, list[SeriesRuns]] = defaultdict(list)
        for each in sorted(self.series.values(), key=lambda each: each.series.label):
            found[each.series.case].append(each)
        return dict(sorted(found.items()))


def gathered(results: StoredResults, judged: Sequence[Mapping[str, Any]] = ()) -> PagesContent:
    """Read a store. A run whose time cannot be read is left out and named in `unreadable`.

    judged: findings of the last night by the gate without pairs. A gate does not store a plain `no change`. So they
    give the levels of quiet series; where the night has stored findings, these alone say what changed.
    """
    points, nights = results.points(), sorted(results.nights())
    unreadable: list[str] = []
    series = [_runs(entry, points.get(entry.digest, ()), unreadable) for entry in results.series()]
    return PagesContent(
        series={each.digest: each for each in series if each.points},
        events=tuple(event for event in results.events() if _is_time(event.at)),
        night=nights[-1] if nights else None,
        expected=results.expected(nights[-1]) if nights else {},
        findings=tuple(_findings(results, nights[-NIGHTS_SHOWN:], judged)),
        unreadable=tuple(unreadable),
    )


def _findings(results: StoredResults, nights: Sequence[str], judged: Sequence[Mapping[str, Any]]) -> list[NightFinding]:
    stored = [finding_of(night, finding) for night in nights for finding in results.findings(night)]
    tonight = [finding_of(nights[-1], finding) for finding in judged] if nights else []
    if any(finding.night == nights[-1] for finding in stored):
        tonight = [finding for finding in tonight if finding.word in CALM]
    return latest_of_each([*tonight, *stored])


def _runs(entry: SeriesEntry, points: Sequence[Point], unreadable: list[str]) -> SeriesRuns:
    unreadable += [point.run_id for point in points if not _is_time(point.began)]
    kept = sorted((p for p in points if _is_time(p.began)), key=lambda point: seconds_of(point.began))
    case, own = entry.series.case, f"{entry.series.label} {entry.digest}"
    return SeriesRuns(entry.digest, slug(own), slug(case), entry.series, kept)


def _is_time(text: str) -> bool:
    try:
        seconds_of(text)
    except (ValueError, OverflowError):
        return False
    return True
