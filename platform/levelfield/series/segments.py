"""A series in time: its nights, the segments in which the conditions stayed the same, and what changed between them.

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

from levelfield.series.findings import WORSE
from levelfield.specs.record import Conditions, GatedFigure, Point


class Observation(NamedTuple):
    """One figure in one night on one node: the median over the night's runs. cost: its logarithm; more is worse."""

    night: str
    began: str
    node: str
    run_id: str
    cost: float


@dataclass(frozen=True)
class Segment:
    """Points under the same conditions, in order of time."""

    conditions: str
    before: int | None  # index of the segment that the node left; or None
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


def level_points(points: Iterable[Point], left_out: Collection[str] = ()) -> list[Point]:
    """Return the points that a level may rest on: each run once, in order of time.

    Runs of a confirmation never count, nor invalid, unsealed or tampered runs, other trainings, and `left_out`.
    """
    once = {p.run_id: p for p in points if is_evidence(p) and p.run_id not in left_out}
    return sorted(once.values(), key=lambda p: (p.began, p.run_id))


def is_evidence(point: Point) -> bool:
    """Whether the run is valid, sealed, of no confirmation, and its training is the one that was expected."""
    return point.is_comparable and point.is_of_trend


def segments_of(points: Sequence[Point]) -> list[Segment]:
    """Return the segments of points that are in order of time."""
    groups: list[tuple[str, int | None, list[Point]]] = []
    now: dict[str, int] = {}  # the segment that each node is in
    for point in points:
        open_ones = {groups[index][0]: index for index in now.values()}
        index = open_ones.get(point.conditions)
        if index is None:
            groups.append((point.conditions, now.get(point.node, len(groups) - 1 if groups else None), []))
            index = len(groups) - 1
        groups[index][2].append(point)
        now[point.node] = index
    return [Segment(conditions, before, tuple(group)) for conditions, before, group in groups]


def cost_of(value: float | None, figure: GatedFigure) -> float | None:
    """Return the figure's logarithm, turned so that more is worse; None unless it is a positive, finite number."""
    return WORSE[figure] * math.log(value) if value is not None and 0 < value < math.inf else None


def value_of(cost: float, figure: GatedFigure) -> float:
    """Return the figure of a cost."""
    return math.exp(WORSE[figure] * cost)


def change_of(excess: float, figure: GatedFigure) -> float:
    """Return the relative change of the figure, measured / level - 1, for a cost that is `excess` above the level."""
    return math.expm1(WORSE[figure] * excess)


def shown_change(excess: float, half: float, figure: GatedFigure) -> tuple[float, float, float]:
    """Return the relative change of the figure for a cost above the level, and the ends of its interval.

    half: of the interval, as a cost.
    """
    low, high = sorted(change_of(excess + side * half, figure) for side in (-1, 1))
    return change_of(excess, figure), low, high


def excess_of(change: float, figure: GatedFigure) -> float:
    """Return the cost above the level for a relative change of the figure."""
    return WORSE[figure] * math.log1p(change)


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
