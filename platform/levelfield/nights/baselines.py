"""Accepting a level or a step: an event with its evidence, who and why. Evidence that only fails accepts nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from levelfield.errors import UsageError
from levelfield.series.examination import is_since
from levelfield.series.findings import FIGURES, Finding, set_back_nights
from levelfield.series.level import MAX_NIGHTS, node_medians
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

MIN_NIGHTS = 3


@dataclass(frozen=True)
class LevelEvidence:
    """What a level is accepted on."""

    series: str
    points: tuple[Point, ...]  # of the series
    past: tuple[Finding, ...] = ()  # the gate's findings about it
    runs: tuple[str, ...] = ()  # that were named
    baseline: StoreEvent | None = None  # that holds now; nights before it have another level


def accepted_baseline(evidence: LevelEvidence, who: str, reason: str, at: str, until: str | None = None) -> StoreEvent:
    """Return the event that accepts the level of the named runs; without names, of the unchanged nights.

    One night is enough where a finished confirmation by pairs judged it. Raises UsageError where the evidence does not
    suffice.
    """
    runs = _sufficient(evidence)
    segments = segments_of(level_points(evidence.points))
    home = next(s for s in reversed(segments) if any(p.run_id == runs[-1].run_id for p in s.points))
    level: dict[GatedFigure, float] = {}
    nodes: dict[str, dict[str, float]] = {}
    for figure in FIGURES:
        if nights := observations(runs, figure):
            level[figure] = value_of(median(night.cost for night in nights), figure)
            # Every node that the series knows has the evidence's level with its own offset. The offset comes from the
            # nights of the segment, so a node without evidence keeps its place.
            offsets = node_medians(observations(home.points, figure)[-MAX_NIGHTS:])
            distances = [night.cost - offsets[night.node] for night in nights if night.node in offsets]
            nodes[figure] = {}
            if distances:
                moved = median(distances)
                nodes[figure] = {node: value_of(offset + moved, figure) for node, offset in offsets.items()}
    return _event("baseline", evidence.series, who, reason, at, until, runs, level, {"nodes": nodes})


@dataclass(frozen=True)
class AcceptedLevels:
    """The events of the series whose evidence suffices, and by series why another one's does not."""

    events: tuple[StoreEvent, ...]
    refused: Mapping[str, str]


def accepted_baselines(
    evidence: Sequence[LevelEvidence],
    worse: Mapping[str, str],
    who: str,
    reason: str,
    at: str,
    until: str | None = None,
) -> AcceptedLevels:
    """Return the events that accept many series for one reason. worse: by series what the night found, so not taken."""
    events, refused = [], {}
    for entry in evidence:
        if entry.series in worse:
            refused[entry.series] = f"{worse[entry.series]} in this night; accept it alone, or add --worse"
            continue
        try:
            events.append(accepted_baseline(entry, who, reason, at, until))
        except UsageError as error:
            refused[entry.series] = str(error).removeprefix(f"series {entry.series}: ")
    return AcceptedLevels(tuple(events), refused)


def accepted_step(
    series: str, points: Sequence[Point], who: str, reason: str, at: str, until: str | None = None
) -> StoreEvent:
    """Return the event that accepts the newest change of conditions of the series. Raises UsageError without one."""
    steps = _steps(points)
    if not steps:
        raise UsageError(
            f"series {series}: found no change of conditions, expected one to accept; see `nightly history`"
        )
    before, newest = steps[-1]
    data = {"before": before, "after": newest.conditions}
    return _event("environment-step", series, who, reason, at, until, newest.points, {}, data)


def same_steps(
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
    """Return every segment that began by a change, with the conditions before it."""
    segments = segments_of(level_points(points))
    return [(segments[s.before].conditions, s) for s in segments if s.before is not None]


def note(series: str, who: str, text: str, at: str) -> StoreEvent:
    """Return a remark about a series; it changes no level."""
    return _event("note", series, who, text, at, None, (), {}, {})


def _sufficient(evidence: LevelEvidence) -> list[Point]:
    """Return the points of the evidence. Raises UsageError for too few, or for runs that show a fault."""
    stored, bad = {point.run_id: point for point in evidence.points}, _bad_nights(evidence)
    for run in evidence.runs:
        if run not in stored:
            raise UsageError(f"--run {run}: found no such run in the series, expected one of it; see `nightly history`")
        if not is_evidence(stored[run]) or run in bad:
            raise UsageError(
                f"--run {run}: found no evidence: the run is not valid, not sealed, of a branch, or of a bad night"
            )
    points = level_points(stored[run] for run in evidence.runs) if evidence.runs else _present_level(evidence)
    nights = {night_of(point) for point in points}
    decided = [f for f in evidence.past if f.pairs and not f.named]
    by_pairs = {f.run_id for f in decided if f.word in ("regression", "improvement", "no change")}
    # one pair showed again what pairs of an earlier night decided
    reconfirmed = {f.run_id for f in evidence.past if f.word == "regression" and f.named and f.pairs == 1}
    newest = points[-1].run_id if points else ""
    is_reconfirmed = newest in reconfirmed and any(point.run_id in by_pairs for point in points)
    is_judged = is_reconfirmed or newest in by_pairs
    if len(nights) < MIN_NIGHTS and not is_judged:
        raise UsageError(
            f"series {evidence.series}: found {len(nights)} valid nights, expected at least {MIN_NIGHTS}, or one "
            "that a finished comparison by pairs judged (newest ones that are inconclusive do not count); name others "
            "with --run"
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
    changed, suspect = _runs_with(evidence, "regression", "improvement"), _runs_with(evidence, "inconclusive")
    newest_of_all = points[-1:]
    while points and points[-1].run_id in suspect:
        points = points[:-1]
    if points and points[-1:] != newest_of_all and points[-1].run_id in _runs_with(evidence, "regression"):
        raise UsageError(
            f"series {evidence.series}: the newest night is inconclusive, and {night_of(points[-1])} before it is a "
            "regression, expected a night that was decided; wait for the next night, or name runs with --run"
        )
    if newest := list(takewhile(lambda point: point.run_id in changed, reversed(points)))[::-1]:
        return _newest_nights(newest, MAX_NIGHTS)
    unchanged = [point for point in points if point.run_id not in changed and is_since(evidence.baseline, point)]
    home = next((s.points for s in segments_of(points) if points[-1] in s.points), ())
    at_home = [point for point in unchanged if point in home]
    # so few nights after a change of conditions are refused with the nights before it, in words
    is_enough = len({night_of(point) for point in at_home}) >= MIN_NIGHTS
    return _newest_nights(at_home, MAX_NIGHTS) if is_enough else _newest_nights(unchanged, MIN_NIGHTS)


def _newest_nights(points: Sequence[Point], most: int) -> list[Point]:
    nights = list(dict.fromkeys(night_of(point) for point in points))[-most:]
    return [point for point in points if night_of(point) in nights]


def _runs_with(evidence: LevelEvidence, *words: str) -> set[str | None]:
    """Return the runs of which a figure was found one of these, by the last finding about it."""
    last = {(finding.run_id, finding.figure): finding.word for finding in evidence.past}
    return {run for (run, _), word in last.items() if word in words}


def _bad_nights(evidence: LevelEvidence) -> set[str]:
    last = {(finding.series, finding.run_id, finding.figure, finding.night): finding for finding in evidence.past}
    set_back = set_back_nights(evidence.past)
    runs = {point.run_id for point in evidence.points if night_of(point) in set_back}
    return runs.union(*(finding.bad_runs for finding in last.values()))


def _event(
    kind: EventKind, series: str, who: str, reason: str, at: str, until: str | None, evidence: Sequence[Point],
    level: Mapping[GatedFigure, float], data: Mapping[str, object],
) -> StoreEvent:  # fmt: skip
    if not reason.strip():
        raise UsageError("--reason: found an empty text, expected the reason; the event stores it")
    runs = tuple(point.run_id for point in evidence)
    return StoreEvent.model_validate(
        {
            "id": uuid.uuid4().hex, "kind": kind, "series": series, "at": at, "who": who, "why": reason, "until": until,
            "level": dict(level), "runs": runs, "data": dict(data),
        }
    )  # fmt: skip
