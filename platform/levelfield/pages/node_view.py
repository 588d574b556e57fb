"""The page of nodes: which machines ran, under which conditions, since when, and what changed there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelfield.pages.content import PagesContent
from levelfield.pages.series_history import (
    CachedDocuments,
    SeriesRuns,
    epoch_seconds,
    field_differences,
    flatten,
    group_by,
)
from levelfield.series.segments import segments_of
from levelfield.specs.record import Point

MAX_PERIODS = 500  # rows of the page, the newest
MAIN_FIELDS = ("software.driver", "os", "kernel", "processor")  # of conditions that stand alone


@dataclass(frozen=True)
class NodePeriod:
    """A node under one set of conditions, over all series."""

    node: str
    first_began: str  # when its first run began
    last_began: str  # when its last run began
    run_count: int
    series_count: int
    conditions_digest: str
    # Field, before, after: against the conditions that a series had on the node before.
    changed_fields: tuple[tuple[str, str, str], ...]
    is_current: bool  # whether the last run of a series on the node had these conditions
    frameworks: tuple[str, ...]  # of its series
    # Field and value of first conditions that differ from the node's other first ones; without others, the main fields.
    first_fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NodeRow:
    """A node over all its runs."""

    node: str
    chips: str
    run_count: int
    series_count: int
    first_began: str
    last_began: str


@dataclass(frozen=True)
class NodesView:
    """The rows of the page, the newest first."""

    nodes: tuple[NodeRow, ...]
    periods: tuple[NodePeriod, ...]
    left_out_count: int  # older periods, which the page leaves out


@dataclass(frozen=True)
class _SeriesPeriod:
    """The runs of one series on one node under one set of conditions."""

    runs: SeriesRuns
    points: Sequence[Point]
    previous_conditions: str | None  # the conditions that it left
    is_current: bool


def nodes_view(content: PagesContent, documents: CachedDocuments) -> NodesView:
    """Return the nodes by their last run, and their conditions by when they began; the newest first."""
    series_periods = []
    for runs in content.series.values():
        segments, last_points = segments_of(runs.points), {point.node: point for point in runs.points}
        for segment in segments:
            before = None if segment.previous_index is None else segments[segment.previous_index].conditions
            for node, points in group_by(segment.points, lambda point: point.node).items():
                series_periods.append(_SeriesPeriod(runs, points, before, last_points[node] is points[-1]))
    series_periods.sort(key=lambda period: epoch_seconds(period.points[0].began))
    nodes = [
        NodeRow(**_period_counts(group), chips=", ".join(sorted({period.runs.series.chip for period in group})))
        for group in group_by(series_periods, lambda period: period.points[0].node).values()
    ]
    nodes.sort(key=lambda row: (epoch_seconds(row.last_began), row.node), reverse=True)
    groups = group_by(series_periods, lambda period: (period.points[0].node, period.points[0].conditions))
    node_periods = _add_first_fields([_node_period(group, documents) for group in groups.values()], documents)
    sorted_periods = sorted(node_periods, key=lambda period: epoch_seconds(period.first_began), reverse=True)
    return NodesView(tuple(nodes), tuple(sorted_periods[:MAX_PERIODS]), max(0, len(sorted_periods) - MAX_PERIODS))


def _period_counts(periods: Sequence[_SeriesPeriod]) -> dict[str, Any]:
    """Return the node of visits, when the first began and the last run of all, and their runs and series."""
    return {
        "node": periods[0].points[0].node,
        "first_began": periods[0].points[0].began,
        "last_began": max((period.points[-1].began for period in periods), key=epoch_seconds),
        "run_count": sum(len(period.points) for period in periods),
        "series_count": len({period.runs.digest for period in periods}),
    }


def _node_period(periods: Sequence[_SeriesPeriod], documents: CachedDocuments) -> NodePeriod:
    conditions = periods[0].points[0].conditions
    before = next((period.previous_conditions for period in periods if period.previous_conditions), None)
    changed = field_differences(documents.conditions(before), documents.conditions(conditions)) if before else []
    return NodePeriod(
        **_period_counts(periods),
        conditions_digest=conditions,
        changed_fields=tuple((name, old, new) for name, old, new in changed),
        is_current=any(period.is_current for period in periods),
        frameworks=tuple(dict.fromkeys(period.runs.series.framework_label for period in periods)),
    )


def _add_first_fields(periods: Sequence[NodePeriod], documents: CachedDocuments) -> Iterator[NodePeriod]:
    """Yield the periods; those under the first conditions of a series on the node get their first fields."""
    first = group_by((period for period in periods if not period.changed_fields), lambda period: period.node)
    for period in periods:
        if period.changed_fields:
            yield period
            continue
        fields = flatten(documents.conditions(period.conditions_digest))
        others = [
            flatten(documents.conditions(other.conditions_digest))
            for other in first[period.node]
            if other is not period
        ]
        names = [name for name in MAIN_FIELDS if name in fields]
        if others:
            all_names = dict.fromkeys(name for values in (fields, *others) for name in values)
            names = [name for name in all_names if any(values.get(name) != fields.get(name) for values in others)]
        yield replace(period, first_fields=tuple((name, fields.get(name, "")) for name in names))
