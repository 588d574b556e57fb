"""What a gate knows on the morning after a night, and the examination of every series and figure of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from levelfield.compare.condition_changes import condition_changes
from levelfield.compare.eras import Era, era_of, holds
from levelfield.compare.examination import Examination, examined, nights_before
from levelfield.compare.findings import FIGURES, Finding, FindingWord, short
from levelfield.compare.judgement import Surroundings
from levelfield.compare.node_groups import Judged
from levelfield.compare.segments import in_history, is_evidence, night_of, observations, segments_of
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

    def tonight(self, series: str) -> list[Point]:
        """Return the series' points of the night, without the runs of confirmations."""
        points = self.points.get(series, ())
        return [p for p in points if night_of(p) == self.night and p.purpose in ("nightly", "manual")]

    def label(self, series: str) -> str:
        return self.series[series].label if series in self.series else short(series)


def examinations(given: GateInput) -> Iterator[Judged]:
    """Return every figure of every series that has valid runs tonight, on nodes that are not in quarantine."""
    past = _past_by_series(given)
    for series in given.points:
        points = [p for p in given.tonight(series) if is_evidence(p) and not quarantined(given, p)]
        events = [event for event in given.events if event.series == series]
        for figure in FIGURES if points else ():
            known = [finding for finding in past.get(series, ()) if finding.figure == figure]
            if found := _examination(given, series, figure, points, events, known):
                yield found


def quarantined(given: GateInput, point: Point) -> StoreEvent | None:
    """Return the event that put the point's node into quarantine before the run, if no release followed."""
    events = [e for e in given.events if e.node == point.node and e.kind in ("quarantine", "release")]
    last = max((e for e in events if holds(e, point.began)), key=lambda e: e.at, default=None)
    return last if last is not None and last.kind == "quarantine" else None


def _examination(
    given: GateInput,
    series: str,
    figure: Gated,
    tonight: Sequence[Point],
    events: Sequence[StoreEvent],
    past: Sequence[Finding],
) -> Judged | None:
    end = max(point.began for point in tonight)
    own = {point.run_id for point in tonight}
    bad = _judged(past, events, {"bad night"}) - own
    unaccepted = _judged([f for f in past if not f.fields], events, _CHANGED) - own
    points = in_history((p for p in given.points[series] if p.began <= end), bad)
    points = [p for p in points if not quarantined(given, p)] if given.events else points
    segments = segments_of(points)
    place = {p.run_id: index for index, segment in enumerate(segments) for p in segment.points}
    cleared = {f.run_id for f in past if f.pairs and f.word == "no change" and f.run_id}
    found: list[tuple[Era, Examination]] = []
    for night in observations(sorted(tonight, key=lambda p: p.began), figure):
        era = era_of(segments, place[night.run_id], events, night.began, night.run_id)
        found.append((era, examined(figure, night, nights_before(era, figure, night, cleared, unaccepted))))
    if not found:
        return None
    era, worst = max(found, key=lambda pair: _badness(pair[1]))
    return _surroundings(given, series, era, past), worst


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
    last = {(f.series, f.figure, f.run_id): f for f in given.past if f.night != given.night}
    found: dict[str, list[Finding]] = {}
    for finding in last.values():
        found.setdefault(finding.series, []).append(finding)
    return found


def _judged(past: Iterable[Finding], events: Sequence[StoreEvent], words: Collection[FindingWord]) -> set[str]:
    """Return the runs of these words that nobody accepted as evidence of a level."""
    accepted = {run for event in events if event.kind == "baseline" for run in event.runs}
    return {f.run_id for f in past if f.word in words and f.run_id} - accepted
