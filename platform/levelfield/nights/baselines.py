"""Accepts a level or a step: makes an event with its evidence, who and why, and refuses insufficient evidence."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from levelfield.errors import UsageError
from levelfield.series.examination import is_of_baseline
from levelfield.series.findings import FIGURE_NAMES, Finding, set_back_nights
from levelfield.series.level import MAX_LEVEL_NIGHTS, node_medians
from levelfield.series.segments import (
    Segment,
    condition_changes,
    is_evidence,
    level_points,
    night_of,
    observations,
    segments_of,
    value_of,
)
from levelfield.specs.record import Conditions, EventKind, GatedFigure, Point, StoreEvent

MIN_EVIDENCE_NIGHTS = 3


@dataclass(frozen=True)
class LevelEvidence:
    """What a level of a series is accepted on."""

    series: str
    points: tuple[Point, ...]  # all of the series
    past_findings: tuple[Finding, ...] = ()  # the gate's findings about the series
    named_runs: tuple[str, ...] = ()  # ids of the runs that the user named
    baseline: StoreEvent | None = None  # the one that holds now; nights before it have another level


def baseline_event(evidence: LevelEvidence, who: str, reason: str, time: str, until: str | None = None) -> StoreEvent:
    """Return the event that accepts the level of the named runs; without names, of the unchanged nights.

    One night is enough where a finished confirmation by pairs judged it. Raises UsageError where the evidence does not
    suffice.
    """
    runs = _sufficient_points(evidence)
    segments = segments_of(level_points(evidence.points))
    segment = next(s for s in reversed(segments) if any(p.run_id == runs[-1].run_id for p in s.points))
    level: dict[GatedFigure, float] = {}
    nodes: dict[str, dict[str, float]] = {}
    for figure in FIGURE_NAMES:
        if nights := observations(runs, figure):
            level[figure] = value_of(median(night.cost for night in nights), figure)
            # Every node that the series knows has the evidence's level with its own offset. The offset comes from the
            # nights of the segment, so a node without evidence keeps its place.
            offsets = node_medians(observations(segment.points, figure)[-MAX_LEVEL_NIGHTS:])
            distances = [night.cost - offsets[night.node] for night in nights if night.node in offsets]
            nodes[figure] = {}
            if distances:
                shift = median(distances)
                nodes[figure] = {node: value_of(offset + shift, figure) for node, offset in offsets.items()}
    return _make_event("baseline", evidence.series, who, reason, time, until, runs, level, {"nodes": nodes})


@dataclass(frozen=True)
class AcceptedLevels:
    """The events of the series whose evidence suffices, and the refusals of the others."""

    events: tuple[StoreEvent, ...]
    refusals: Mapping[str, str]  # by series, the reason


def baseline_events(
    evidence: Sequence[LevelEvidence],
    worse_words: Mapping[str, str],
    who: str,
    reason: str,
    time: str,
    until: str | None = None,
) -> AcceptedLevels:
    """Return the events that accept many series for one reason. worse_words: by series, why it is refused."""
    events, refusals = [], {}
    for entry in evidence:
        if entry.series in worse_words:
            refusals[entry.series] = f"{worse_words[entry.series]} in this night; accept it alone, or add --worse"
            continue
        try:
            events.append(baseline_event(entry, who, reason, time, until))
        except UsageError as error:
            refusals[entry.series] = str(error).removeprefix(f"series {entry.series}: ")
    return AcceptedLevels(tuple(events), refusals)


def step_event(
    series: str, points: Sequence[Point], who: str, reason: str, time: str, until: str | None = None
) -> StoreEvent:
    """Return the event that accepts the newest change of conditions of the series. Raises UsageError without one."""
    steps = _steps(points)
    if not steps:
        raise UsageError(
            f"series {series}: found no change of conditions, expected one to accept; see `nightly history`"
        )
    before, newest = steps[-1]
    data = {"before": before, "after": newest.conditions}
    return _make_event("environment-step", series, who, reason, time, until, newest.points, {}, data)


def same_step_events(
    step: StoreEvent, points: Mapping[str, Sequence[Point]], conditions: Callable[[str], Conditions | None]
) -> list[StoreEvent]:
    """Return the events that accept the same change of conditions in the other series that have it.

    Conditions of two series may differ in variables of their plans: the same fields changed alike is the same change.
    """
    steps = [(step.series, str(step.data["before"]), str(step.data["after"]), step.runs)]
    for series in sorted(set(points) - {step.series}):
        for before, after in _steps(points[series]):
            steps.append((series, before, after.conditions, tuple(p.run_id for p in after.points)))
    changes = [condition_changes(conditions(old), conditions(new)) or (old, new) for _, old, new, _ in steps]
    return [
        step.model_copy(
            update={
                "id": uuid.uuid4().hex,
                "series": series,
                "runs": runs,
                "data": {"before": old, "after": new},
            }
        )
        for (series, old, new, runs), change in zip(steps[1:], changes[1:], strict=True)
        if change == changes[0]
    ]


def _steps(points: Sequence[Point]) -> list[tuple[str, Segment]]:
    """Return every segment that began with a change of conditions, behind the conditions before it."""
    segments = segments_of(level_points(points))
    return [(segments[s.previous_index].conditions, s) for s in segments if s.previous_index is not None]


def note_event(series: str, who: str, text: str, time: str) -> StoreEvent:
    """Return a remark about a series; it changes no level."""
    return _make_event("note", series, who, text, time, None, (), {}, {})


def _sufficient_points(evidence: LevelEvidence) -> list[Point]:
    """Return the points of the evidence. Raises UsageError for too few, or for runs that show a fault."""
    points_by_run, bad_runs = {point.run_id: point for point in evidence.points}, _bad_nights(evidence)
    for run in evidence.named_runs:
        if run not in points_by_run:
            raise UsageError(f"--run {run}: found no such run in the series, expected one of it; see `nightly history`")
        if not is_evidence(points_by_run[run]) or run in bad_runs:
            raise UsageError(
                f"--run {run}: found no evidence: the run is not valid, not sealed, of a branch, or of a bad night"
            )
    points = (
        level_points(points_by_run[run] for run in evidence.named_runs)
        if evidence.named_runs
        else _present_level(evidence)
    )
    nights = {night_of(point) for point in points}
    decided_findings = [f for f in evidence.past_findings if f.pairs and not f.named]
    paired_runs = {f.run_id for f in decided_findings if f.word in ("regression", "improvement", "no change")}
    # one pair showed again what pairs of an earlier night decided
    reconfirmed_runs = {f.run_id for f in evidence.past_findings if f.word == "regression" and f.named and f.pairs == 1}
    newest = points[-1].run_id if points else ""
    is_reconfirmed = newest in reconfirmed_runs and any(point.run_id in paired_runs for point in points)
    is_judged = is_reconfirmed or newest in paired_runs
    if len(nights) < MIN_EVIDENCE_NIGHTS and not is_judged:
        raise UsageError(
            f"series {evidence.series}: found {len(nights)} valid nights, expected at least {MIN_EVIDENCE_NIGHTS}, or "
            "one that a finished comparison by pairs judged (newest ones that are inconclusive do not count); name "
            "others with --run"
        )
    if len({point.conditions for point in points}) > 1:
        raise UsageError(
            f"series {evidence.series}: the evidence has several conditions, expected one; accept the change first "
            "with `nightly accept-step`, or name runs after it"
        )
    return points


def _present_level(evidence: LevelEvidence) -> list[Point]:
    """Return the unchanged nights of the present level, at most as many as a level rests on.

    Where the newest night was found changed, these are the newest changed ones: a new level begins with them. Newest
    nights that are inconclusive are no evidence, unless they are named. Raises UsageError where a regression lies
    behind such nights: whoever accepts the newest night does not mean it.
    """
    points = level_points(evidence.points, _bad_nights(evidence))
    changed_runs, inconclusive_runs = (
        _runs_with(evidence, "regression", "improvement"),
        _runs_with(evidence, "inconclusive"),
    )
    newest_of_all = points[-1:]
    while points and points[-1].run_id in inconclusive_runs:
        points = points[:-1]
    if points and points[-1:] != newest_of_all and points[-1].run_id in _runs_with(evidence, "regression"):
        raise UsageError(
            f"series {evidence.series}: the newest night is inconclusive, and {night_of(points[-1])} before it is a "
            "regression, expected a night that was decided; wait for the next night, or name runs with --run"
        )
    if newest := list(takewhile(lambda point: point.run_id in changed_runs, reversed(points)))[::-1]:
        return _newest_nights(newest, MAX_LEVEL_NIGHTS)
    unchanged = [
        point for point in points if point.run_id not in changed_runs and is_of_baseline(evidence.baseline, point)
    ]
    segment_points = next((s.points for s in segments_of(points) if points[-1] in s.points), ())
    unchanged_in_segment = [point for point in unchanged if point in segment_points]
    # with fewer nights after a change of conditions, those before it are added, and the several conditions refused
    is_enough = len({night_of(point) for point in unchanged_in_segment}) >= MIN_EVIDENCE_NIGHTS
    return (
        _newest_nights(unchanged_in_segment, MAX_LEVEL_NIGHTS)
        if is_enough
        else _newest_nights(unchanged, MIN_EVIDENCE_NIGHTS)
    )


def _newest_nights(points: Sequence[Point], max_nights: int) -> list[Point]:
    nights = list(dict.fromkeys(night_of(point) for point in points))[-max_nights:]
    return [point for point in points if night_of(point) in nights]


def _runs_with(evidence: LevelEvidence, *words: str) -> set[str | None]:
    """Return the runs of which a figure was found one of these, by the last finding about it."""
    last = {(finding.run_id, finding.figure): finding.word for finding in evidence.past_findings}
    return {run for (run, _), word in last.items() if word in words}


def _bad_nights(evidence: LevelEvidence) -> set[str]:
    last = {
        (finding.series, finding.run_id, finding.figure, finding.night): finding for finding in evidence.past_findings
    }
    set_back = set_back_nights(evidence.past_findings)
    runs = {point.run_id for point in evidence.points if night_of(point) in set_back}
    return runs.union(*(finding.bad_runs for finding in last.values()))


def _make_event(
    kind: EventKind, series: str, who: str, reason: str, time: str, until: str | None, evidence: Sequence[Point],
    level: Mapping[GatedFigure, float], data: Mapping[str, object],
) -> StoreEvent:  # fmt: skip
    if not reason.strip():
        raise UsageError("--reason: found an empty text, expected the reason; the event stores it")
    runs = tuple(point.run_id for point in evidence)
    return StoreEvent.model_validate(
        {
            "id": uuid.uuid4().hex, "kind": kind, "series": series, "at": time, "who": who, "why": reason,
            "until": until, "level": dict(level), "runs": runs, "data": dict(data),
        }
    )  # fmt: skip
