"""What a gate knows on the morning after a night, and the examination of every series and figure of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from levelfield.series.condition_changes import condition_changes
from levelfield.series.eras import Era, era_of, holds
from levelfield.series.examination import Examination, examined, nights_before
from levelfield.series.findings import FIGURES, Finding, FindingWord, short
from levelfield.series.judgement import Surroundings
from levelfield.series.node_groups import Judged
from levelfield.series.segments import Segment, in_history, is_evidence, night_of, observations, segments_of
from levelfield.specs.record import Conditions, Gated, Point, Series, StoreEvent

_CHANGED: frozenset[FindingWord] = frozenset({"regression", "improvement"})
_OF_A_STEP: frozenset[FindingWord] = frozenset({"environment step", "improvement"})


def _unknown(digest: str) -> Conditions | None:
    return None


@dataclass(frozen=True)
class GateInput:
    """The plain values that a gate works on.

    points: of every series by its digest, all nights, in any order. expected: of the night, entry -> series if it is
    known. past: findings of earlier nights. conditions: a document by its digest, for the names of what changed.
    """

    night: str
    points: Mapping[str, Sequence[Point]]
    series: Mapping[str, Series]
    events: Sequence[StoreEvent] = ()
    expected: Mapping[str, str | None] = field(default_factory=dict)
    past: Sequence[Finding] = ()
    conditions: Callable[[str], Conditions | None] = _unknown

    @cached_property
    def tonights(self) -> dict[str, list[Point]]:
        """The points of the night by series, without the runs of confirmations."""
        counted = ("nightly", "manual")
        every = (
            (s, [p for p in of if night_of(p) == self.night and p.purpose in counted]) for s, of in self.points.items()
        )
        return {series: points for series, points in every if points}

    @cached_property
    def series_by_entry(self) -> dict[str, str]:
        """The series that ran tonight for an entry, where the runs name it."""
        return {p.entry: series for series, points in self.tonights.items() for p in points if p.entry}

    @cached_property
    def quarantines(self) -> dict[str, list[StoreEvent]]:
        """The quarantines and releases of each node that has any."""
        found: dict[str, list[StoreEvent]] = {}
        for event in self.events:
            if event.node and event.kind in ("quarantine", "release"):
                found.setdefault(event.node, []).append(event)
        return found

    @cached_property
    def events_by_series(self) -> dict[str, list[StoreEvent]]:
        found: dict[str, list[StoreEvent]] = {}
        for event in self.events:
            found.setdefault(event.series or "", []).append(event)
        return found

    def tonight(self, series: str) -> list[Point]:
        return self.tonights.get(series, [])

    def label(self, series: str) -> str:
        return self.series[series].label if series in self.series else short(series)


def examinations(given: GateInput) -> Iterator[Judged]:
    """Return every figure of every series that has valid runs tonight, on nodes that are not in quarantine."""
    past = _past_by_series(given)
    of_nodes = past.get("", [])
    for series in given.points:
        tonight = [p for p in given.tonight(series) if is_evidence(p) and not quarantined(given, p)]
        if not tonight:
            continue
        known = _SeriesNights(series, tuple(sorted(tonight, key=lambda p: p.began)), _history(given, series, tonight))
        for figure in FIGURES:
            findings = [finding for finding in (*past.get(series, ()), *of_nodes) if finding.figure == figure]
            if found := _examination(given, known, figure, findings):
                yield found


def quarantined(given: GateInput, point: Point) -> StoreEvent | None:
    """Return the event that put the point's node into quarantine before the run, if no release followed."""
    events = given.quarantines.get(point.node, ())
    last = max((e for e in events if holds(e, point.began)), key=lambda e: e.at, default=None)
    return last if last is not None and last.kind == "quarantine" else None


@dataclass(frozen=True)
class _SeriesNights:
    """tonight: its runs, in order of time. history: those and all before them that may be evidence."""

    series: str
    tonight: tuple[Point, ...]
    history: tuple[Point, ...]

    @cached_property
    def segments(self) -> list[Segment]:
        return segments_of(self.history)

    def without(self, runs: Collection[str]) -> list[Segment]:
        """Return the segments without these runs, tonight's apart."""
        left = set(runs) - {point.run_id for point in self.tonight}
        return segments_of([p for p in self.history if p.run_id not in left]) if left else self.segments


def _history(given: GateInput, series: str, tonight: Sequence[Point]) -> tuple[Point, ...]:
    end = max(point.began for point in tonight)
    points = in_history(p for p in given.points[series] if p.began <= end)
    return tuple(p for p in points if not quarantined(given, p)) if given.quarantines else tuple(points)


def _examination(given: GateInput, nights: _SeriesNights, figure: Gated, past: Sequence[Finding]) -> Judged | None:
    events = given.events_by_series.get(nights.series, [])
    evidence = {run for event in events if event.kind == "baseline" for run in event.runs}
    segments = nights.without({run for finding in past for run in finding.bad_runs} - evidence)
    changed = {f.run_id for f in past if f.word in _CHANGED and not f.fields and f.run_id} - evidence
    cleared = {f.run_id for f in past if f.pairs and f.word == "no change" and f.run_id}
    found: list[tuple[Era, Examination]] = []
    for night in observations(nights.tonight, figure):
        era = era_of(segments, _place(segments, night.run_id), events, night.began, night.run_id)
        found.append((era, examined(figure, night, nights_before(era, figure, night, cleared, changed))))
    if not found:
        return None
    era, worst = max(found, key=lambda pair: _badness(pair[1]))
    return _surroundings(given, nights.series, era, past), worst


def _place(segments: Sequence[Segment], run_id: str) -> int:
    return next(i for i in reversed(range(len(segments))) if any(p.run_id == run_id for p in segments[i].points))


def _badness(found: Examination) -> float:
    """Return how far above its level the night is: of several nodes in a night the worst one is judged."""
    return found.tonight.cost - found.level.cost if found.level else float("-inf")


def _surroundings(given: GateInput, series: str, era: Era, past: Sequence[Finding]) -> Surroundings:
    fields: tuple[str, ...] = ()
    if len(era.segments) > 1:
        before, after = (given.conditions(segment.conditions) for segment in era.segments[-2:])
        fields = condition_changes(before, after)
    here = {point.run_id for point in era.tonight.points}
    is_known = any(f.word in _OF_A_STEP and f.run_id in here and _is_step(f) for f in past)
    return Surroundings(series, given.label(series), fields, is_known)


def _is_step(finding: Finding) -> bool:
    return finding.word == "environment step" or bool(finding.fields)


def _past_by_series(given: GateInput) -> dict[str, list[Finding]]:
    """Return the last finding about each run of each figure, from nights before this one."""
    last = {(f.series, f.figure, f.run_id or f.night, f.node): f for f in given.past if f.night != given.night}
    found: dict[str, list[Finding]] = {}
    for finding in last.values():
        found.setdefault(finding.series, []).append(finding)
    return found
