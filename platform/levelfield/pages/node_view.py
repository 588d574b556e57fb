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
    """A node under one set of conditions, over all series. since, last: when its first and its last run began.

    changed: [field, before, after] against the conditions that a series had on it before; empty for the first ones.
    frameworks: of its series. own: [field, value] of first conditions that tells them from the node's other first ones;
    without others, the main fields. is_now: whether the last run of a series on the node had these conditions.
    """

    node: str
    since: str
    last: str
    runs: int
    series: int
    changed: tuple[tuple[str, str, str], ...]
    is_now: bool
    frameworks: tuple[str, ...]
    own: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NodeRow:
    node: str
    chips: str
    runs: int
    series: int
    since: str
    last: str


@dataclass(frozen=True)
class NodesView:
    """left: stays that are not shown because there are more."""

    nodes: tuple[NodeRow, ...]
    stays: tuple[NodeStay, ...]
    left: int


@dataclass(frozen=True)
class _Visit:
    """The runs of one series on one node under one set of conditions. before: the conditions that it left."""

    runs: SeriesRuns
    points: Sequence[Point]
    before: str | None
    is_now: bool

    @property
    def since(self) -> str:
        return self.points[0].began


def nodes_view(content: PagesContent, documents: SurroundingDocuments) -> NodesView:
    """Return the nodes by their last run, and their conditions by when they began; the newest first."""
    visits = [visit for runs in content.series.values() for visit in _visits(runs)]
    visits.sort(key=lambda visit: seconds_of(visit.since))
    nodes = [_node(those) for those in grouped(visits, lambda visit: visit.points[0].node).values()]
    by_stay = grouped(visits, lambda visit: (visit.points[0].node, visit.points[0].conditions))
    made = [(_stay(those, documents), those[0].points[0].conditions) for those in by_stay.values()]
    told = _with_own_fields(made, documents)
    stays = sorted(told, key=lambda stay: seconds_of(stay.since), reverse=True)
    newest = sorted(nodes, key=lambda row: (seconds_of(row.last), row.node), reverse=True)
    return NodesView(tuple(newest), tuple(stays[:MOST_STAYS]), max(0, len(stays) - MOST_STAYS))


def _visits(runs: SeriesRuns) -> Iterator[_Visit]:
    segments = segments_of(runs.points)
    newest = {point.node: point for point in runs.points}
    for segment in segments:
        before = None if segment.before is None else segments[segment.before].conditions
        for points in grouped(segment.points, lambda point: point.node).values():
            yield _Visit(runs, points, before, newest[points[0].node] is points[-1])


def _together(visits: Sequence[_Visit]) -> dict[str, Any]:
    """Return the node of visits, when the first began and the last run of all, and their runs and series."""
    return {
        "node": visits[0].points[0].node,
        "since": visits[0].since,
        "last": max((visit.points[-1].began for visit in visits), key=seconds_of),
        "runs": sum(len(visit.points) for visit in visits),
        "series": len({visit.runs.digest for visit in visits}),
    }


def _node(visits: Sequence[_Visit]) -> NodeRow:
    return NodeRow(**_together(visits), chips=", ".join(sorted({visit.runs.series.chip for visit in visits})))


def _stay(visits: Sequence[_Visit], documents: SurroundingDocuments) -> NodeStay:
    left = next((visit for visit in visits if visit.before is not None), None)
    here = visits[0].points[0].conditions
    changed = differences(documents.conditions(left.before), documents.conditions(here)) if left and left.before else []
    return NodeStay(
        **_together(visits),
        changed=tuple((name, old, new) for name, old, new in changed),
        is_now=any(visit.is_now for visit in visits),
        frameworks=tuple(dict.fromkeys(visit.runs.series.framework_label for visit in visits)),
    )


def _with_own_fields(made: Sequence[tuple[NodeStay, str]], documents: SurroundingDocuments) -> Iterator[NodeStay]:
    """Yield the stays with the fields of first conditions. made: with the digest of their conditions."""
    fields = {digest: flat(documents.conditions(digest)) for stay, digest in made if not stay.changed}
    first = grouped((pair for pair in made if not pair[0].changed), lambda pair: pair[0].node)
    for stay, digest in made:
        if stay.changed:
            yield stay
            continue
        others = [fields[other] for _, other in first[stay.node] if other != digest]
        names = dict.fromkeys(name for each in (fields[digest], *others) for name in each)
        varied = [name for name in names if any(each.get(name) != fields[digest].get(name) for each in others)]
        shown = varied if others else [name for name in MAIN_FIELDS if name in fields[digest]]
        yield replace(stay, own=tuple((name, fields[digest].get(name, "")) for name in shown))
