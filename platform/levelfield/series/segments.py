"""A series over time: its nights, the segments in which the conditions stayed the same, and what changed between them.

A segment ends for a node when the node's conditions change. Nodes with other conditions have segments side by side, so
that a series which alternates between two machines keeps both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import NamedTuple

from levelfield.series.findings import COST_SIGNS
from levelfield.specs.record import Conditions, GatedFigure, Point


class Observation(NamedTuple):
    """One figure in one night on one node: the median over the night's runs."""

    night: str
    began: str
    node: str
    run_id: str
    cost: float  # the figure's logarithm, with the sign that makes more worse


@dataclass(frozen=True)
class Segment:
    """Points under the same conditions, in order of time."""

    conditions: str
    previous_index: int | None  # index of the segment that the node was in before; None for its first
    points: tuple[Point, ...]


def night_of(point: Point) -> str:
    """Return the name of the point's night: its own, or the date for a run that no nightly started."""
    return point.night or point.began[:10]


def days_between(first: str, last: str) -> int | None:
    """Return the days from one ISO date or time to another; None where one is none."""
    try:
        return (date.fromisoformat(last[:10]) - date.fromisoformat(first[:10])).days
    except ValueError:
        return None


def level_points(points: Iterable[Point], excluded_runs: Collection[str] = ()) -> list[Point]:
    """Return the points that a level may rest on: each run once, in order of time.

    Runs of a confirmation never count, nor invalid, unsealed or tampered runs, other trainings, and `excluded_runs`.
    """
    points_by_run = {p.run_id: p for p in points if is_evidence(p) and p.run_id not in excluded_runs}
    return sorted(points_by_run.values(), key=lambda p: (p.began, p.run_id))


def is_evidence(point: Point) -> bool:
    """Whether the run is valid, sealed, of no confirmation, and its training is the one that was expected."""
    return point.is_comparable and point.is_trend_point


def segments_of(points: Sequence[Point]) -> list[Segment]:
    """Return the segments of points that are in order of time."""
    groups: list[tuple[str, int | None, list[Point]]] = []
    index_by_node: dict[str, int] = {}  # the segment that each node is in
    for point in points:
        index_by_conditions = {groups[index][0]: index for index in index_by_node.values()}
        index = index_by_conditions.get(point.conditions)
        if index is None:
            groups.append((point.conditions, index_by_node.get(point.node, len(groups) - 1 if groups else None), []))
            index = len(groups) - 1
        groups[index][2].append(point)
        index_by_node[point.node] = index
    return [Segment(conditions, previous_index, tuple(group)) for conditions, previous_index, group in groups]


def cost_of(value: float | None, figure: GatedFigure) -> float | None:
    """Return the figure's logarithm, with the sign that makes more worse; None unless it is positive and finite."""
    return COST_SIGNS[figure] * math.log(value) if value is not None and 0 < value < math.inf else None


def value_of(cost: float, figure: GatedFigure) -> float:
    """Return the figure of a cost."""
    return math.exp(COST_SIGNS[figure] * cost)


def change_of(excess: float, figure: GatedFigure) -> float:
    """Return the relative change of the figure, measured / level - 1, for a cost that is `excess` above the level."""
    return math.expm1(COST_SIGNS[figure] * excess)


def change_interval(excess: float, half_width: float, figure: GatedFigure) -> tuple[float, float, float]:
    """Return the relative change of the figure for a cost above the level, and the ends of its interval.

    half_width: half the width of the interval, as a cost.
    """
    low, high = sorted(change_of(excess + sign * half_width, figure) for sign in (-1, 1))
    return change_of(excess, figure), low, high


def excess_of(change: float, figure: GatedFigure) -> float:
    """Return the cost above the level for a relative change of the figure."""
    return COST_SIGNS[figure] * math.log1p(change)


def observations(points: Iterable[Point], figure: GatedFigure) -> list[Observation]:
    """Return the nights of one figure, in order of time. Several runs of a node in a night count once."""
    nights: dict[tuple[str, str], list[tuple[Point, float]]] = {}
    for point in points:
        cost = cost_of(getattr(point, figure), figure)
        if cost is not None:
            nights.setdefault((night_of(point), point.node), []).append((point, cost))
    costs = {key: runs[0][1] if len(runs) == 1 else median(cost for _, cost in runs) for key, runs in nights.items()}
    return [
        Observation(night, runs[0][0].began, node, runs[-1][0].run_id, costs[night, node])
        for (night, node), runs in nights.items()
    ]


def condition_changes(before: Conditions | None, after: Conditions | None) -> tuple[str, ...]:
    """Return each field that differs with its old and its new value; empty where one side is not known."""
    if before is None or after is None:
        return ()
    old, new = dict[str, str](), dict[str, str]()
    for flat, conditions in ((old, before), (new, after)):
        for name, value in conditions.model_dump().items():
            entries = value if isinstance(value, Mapping) else {name: value}
            flat |= {str(key): str(item) for key, item in entries.items()}
    return differences(old, new)


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """Return each name whose value differs, with both: `driver 550 -> 560`."""
    names = (name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name))
    return tuple(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names)
