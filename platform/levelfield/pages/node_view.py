"""The page of nodes: which machines ran, under which conditions, since when, and what changed there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelfield.pages.content import PagesContent
from levelfield.pages.series_history import SeriesRuns, SurroundingDocuments, differences, flat, grouped, seconds_of
from levelfield.series.segments import segments_of
from levelfield.specs.record import Point

MOST_STAYS = 500  # rows of the page, the newest
MAIN_FIELDS = ("software.driver", "os", "kernel", "processor")  # of conditions that stand alone


@dataclass(frozen=True)
class NodeStay:
    """A node under one set of conditions, over all series."""

    node: str
    since: str  # when its first run began
    last: str  # when its last run began
    runs: int
    series: int
    conditions: str  # their digest
    changed: tuple[tuple[str, str, str], ...]  # field, before, after, against those that a series had on it before
    is_now: bool  # whether the last run of a series on the node had these conditions
    frameworks: tuple[str, ...]  # of its series
    # Field and value of first conditions that differ from the node's other first ones; without others, the main fields.
    first_fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NodeRow:
    """A node over all its runs."""

    node: str
    chips: str
    runs: int
    series: int
    since: str
    last: str


@dataclass(frozen=True)
class NodesView:
    """The rows of the page, the newest first."""

    nodes: tuple[NodeRow, ...]
    stays: tuple[NodeStay, ...]
    left: int  # stays that are not shown because there are more


@dataclass(frozen=True)
class _Visit:
    """The runs of one series on one node under one set of conditions."""

    runs: SeriesRuns
    points: Sequence[Point]
    before: str | None  # the conditions that it left
    is_now: bool


def nodes_view(content: PagesContent, documents: SurroundingDocuments) -> NodesView:
    """Return the nodes by their last run, and their conditions by when they began; the newest first."""
    visits = []
    for runs in content.series.values():
        segments, newest = segments_of(runs.points), {point.node: point for point in runs.points}
        for segment in segments:
            before = None if segment.before is None else segments[segment.before].conditions
            for node, points in grouped(segment.points, lambda point: point.node).items():
                visits.append(_Visit(runs, points, before, newest[node] is points[-1]))
    visits.sort(key=lambda visit: seconds_of(visit.points[0].began))
    nodes = [
        NodeRow(**_summary(group), chips=", ".join(sorted({visit.runs.series.chip for visit in group})))
        for group in grouped(visits, lambda visit: visit.points[0].node).values()
    ]
    nodes.sort(key=lambda row: (seconds_of(row.last), row.node), reverse=True)
    groups = grouped(visits, lambda visit: (visit.points[0].node, visit.points[0].conditions))
    complete = _with_first_fields([_stay(group, documents) for group in groups.values()], documents)
    stays = sorted(complete, key=lambda stay: seconds_of(stay.since), reverse=True)
    return NodesView(tuple(nodes), tuple(stays[:MOST_STAYS]), max(0, len(stays) - MOST_STAYS))


def _summary(visits: Sequence[_Visit]) -> dict[str, Any]:
    """Return the node of visits, when the first began and the last run of all, and their runs and series."""
    return {
        "node": visits[0].points[0].node,
        "since": visits[0].points[0].began,
        "last": max((visit.points[-1].began for visit in visits), key=seconds_of),
        "runs": sum(len(visit.points) for visit in visits),
        "series": len({visit.runs.digest for visit in visits}),
    }


def _stay(visits: Sequence[_Visit], documents: SurroundingDocuments) -> NodeStay:
    before, now = next((visit.before for visit in visits if visit.before), None), visits[0].points[0].conditions
    changed = differences(documents.conditions(before), documents.conditions(now)) if before else []
    return NodeStay(
        **_summary(visits),
        conditions=now,
        changed=tuple((name, old, new) for name, old, new in changed),
        is_now=any(visit.is_now for visit in visits),
        frameworks=tuple(dict.fromkeys(visit.runs.series.framework_label for visit in visits)),
    )


def _with_first_fields(stays: Sequence[NodeStay], documents: SurroundingDocuments) -> Iterator[NodeStay]:
    """Yield the stays, those under the first conditions of a series on the node with their fields."""
    first = grouped((stay for stay in stays if not stay.changed), lambda stay: stay.node)
    for stay in stays:
        if stay.changed:
            yield stay
            continue
        fields = flat(documents.conditions(stay.conditions))
        others = [flat(documents.conditions(other.conditions)) for other in first[stay.node] if other is not stay]
        names = [name for name in MAIN_FIELDS if name in fields]
        if others:
            every = dict.fromkeys(name for values in (fields, *others) for name in values)
            names = [name for name in every if any(values.get(name) != fields.get(name) for values in others)]
        yield replace(stay, first_fields=tuple((name, fields.get(name, "")) for name in names))
