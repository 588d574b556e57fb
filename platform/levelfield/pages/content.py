"""Everything that the pages show, read from a store once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levelfield.compare.sides import disturbance
from levelfield.pages.results import StoredResults
from levelfield.pages.series_history import SeriesRuns, grouped, seconds_of
from levelfield.pages.site_files import slug
from levelfield.series.findings import WORDS, FindingWord
from levelfield.specs.record import Point, StoreEvent, nights_in_order
from levelfield.store.database import StoredSeries

NIGHTS_SHOWN = 30  # of which the case pages repeat what the gate said

_NO_CHANGES = ("missing", "new series", "no change")  # each has its place elsewhere on the page
CHANGES = tuple(word for word in WORDS if word not in _NO_CHANGES)
CALM = ("no change", "new series")
UNKNOWN: FindingWord = "inconclusive"  # a word of a later version
LONGEST = 400  # characters of a text
MOST_DISTURBED = 30  # newest runs of a series among which a quiet one is looked for


@dataclass(frozen=True)
class NightFinding:
    """One finding of a night. change, low, high: relative. detectable: the smallest change that could be seen.

    pairs: how many pairs of builds it rests on; None for a finding of nights alone. explanation: why a step takes
    longer, in sentences.
    """

    night: str
    series: str
    label: str
    figure: str | None
    word: FindingWord
    change: float | None
    low: float | None
    high: float | None
    level: float | None
    level_since: str | None
    nights: int | None
    detectable: float | None
    run_id: str | None
    detail: str
    fields: tuple[str, ...]
    pairs: int | None = None
    explanation: tuple[str, ...] = ()


def finding_of(night: str, content: Mapping[str, Any]) -> NightFinding:
    """Return a finding from its JSON. What is absent or of a wrong type is None or an empty text."""
    word = next((word for word in WORDS if word == content.get("word")), UNKNOWN)
    nights, pairs = finite(content.get("nights")), finite(content.get("pairs"))
    return NightFinding(
        night=night,
        series=_text(content.get("series")) or "",
        label=_text(content.get("label")) or "",
        figure=_text(content.get("figure")),
        word=word,
        change=finite(content.get("change")),
        low=finite(content.get("low")),
        high=finite(content.get("high")),
        level=finite(content.get("level")),
        level_since=_text(content.get("level_since")),
        nights=None if nights is None else int(nights),
        detectable=finite(content.get("detectable")),
        run_id=_text(content.get("run_id")),
        detail=_text(content.get("detail")) or "",
        fields=_texts(content.get("fields")),
        pairs=int(pairs) if pairs else None,
        explanation=_texts(content.get("explanation")),
    )


def in_order(findings: Sequence[NightFinding]) -> list[NightFinding]:
    """Return the findings in order of urgency, the larger change first."""
    return sorted(findings, key=lambda f: (WORDS.index(f.word), -abs(f.change or 0.0), f.label))


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(each)[:LONGEST] for each in value) if isinstance(value, (list, tuple)) else ()


def finite(value: Any) -> float | None:
    """Return a number of JSON; None for another value, NaN and infinity."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


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
        ordered = sorted(self.series.values(), key=lambda each: each.series.label)
        return dict(sorted(grouped(ordered, lambda each: each.series.case).items()))


def gathered(results: StoredResults, judged: Sequence[Mapping[str, Any]] = ()) -> PagesContent:
    """Read a store. A run whose time cannot be read is left out and named in `unreadable`.

    judged: findings of the last night by the gate without pairs. A gate does not store a plain `no change`. So they
    give the levels of quiet series; where the night has stored findings, these alone say what changed.
    """
    points, nights = results.points(), nights_in_order(results.nights())
    unreadable: list[str] = []
    series = [_runs(entry, points.get(entry.digest, ()), unreadable) for entry in results.series()]
    series = _with_disturbed(series, results)
    return PagesContent(
        series={each.digest: each for each in series if each.points},
        events=tuple(event for event in results.events() if _is_time(event.at)),
        night=nights[-1] if nights else None,
        expected=results.expected(nights[-1]) if nights else {},
        findings=tuple(_findings(results, nights[-NIGHTS_SHOWN:], judged)),
        unreadable=tuple(unreadable),
    )


def _with_disturbed(series: Sequence[SeriesRuns], results: StoredResults) -> list[SeriesRuns]:
    """Return the series with their newest disturbed runs: each series is read until its newest quiet run."""
    counted = {runs.digest: [point.run_id for point in reversed(runs.counted)][:MOST_DISTURBED] for runs in series}
    disturbed: dict[str, list[str]] = {digest: [] for digest in counted}
    unknown = [digest for digest, ids in counted.items() if ids]
    while unknown:
        asked = {counted[digest][len(disturbed[digest])]: digest for digest in unknown}
        found = [(each.run_id, asked[each.run_id]) for each in results.records([*asked]) if disturbance(each)]
        for run_id, digest in found:
            disturbed[digest].append(run_id)
        unknown = [digest for _, digest in found if len(disturbed[digest]) < len(counted[digest])]
    return [
        replace(
            runs,
            disturbed=tuple(reversed(disturbed[runs.digest])),
            is_disturbed=0 < len(counted[runs.digest]) == len(disturbed[runs.digest]),
        )
        for runs in series
    ]


def _findings(results: StoredResults, nights: Sequence[str], judged: Sequence[Mapping[str, Any]]) -> list[NightFinding]:
    stored = [finding_of(night, finding) for night in nights for finding in results.findings(night)]
    tonight = [finding_of(nights[-1], finding) for finding in judged] if nights else []
    if any(finding.night == nights[-1] for finding in stored):
        tonight = [finding for finding in tonight if finding.word in CALM]
    # Findings are only added: the last one of a series and figure replaces those before.
    latest = {(f.night, f.series, f.figure, f.label): f for f in (*tonight, *stored)}
    return list(latest.values())


def _runs(entry: StoredSeries, points: Sequence[Point], unreadable: list[str]) -> SeriesRuns:
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
