"""The level of a series: where it was, how far its nights scatter, and what somebody accepted.

The level is the median of at most 30 accepted nights, on tonight's node where three of them are. The scale is 1.4826
times the median absolute deviation of the nights from their nodes' medians (Rousseeuw and Croux, 1993), at least 0.2 %.
One more night lies above the level by more than

    t(z, n - 1) x scale x sqrt(1 + 1.57 / n)

with the probability that a normal variable exceeds z: 1.57 = pi / 2 is the variance of a median over that of a mean.
No change below the floor of 1 % counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.measure.student import normal_tail, t_quantile
from levelfield.series.segments import Observation, cost_of
from levelfield.specs.record import Gated, StoreEvent

LONGEST = 30  # nights of a level
FEWEST = 7  # below it the word is `new series`
FEWEST_ON_NODE = 3
LEAST_SCALE = 0.002
FLOOR = 0.01
MEDIAN_VARIANCE = math.pi / 2


@dataclass(frozen=True)
class Level:
    """cost: the level on one node. n: nights that it rests on. freedom: degrees of freedom of the scale.

    is_own: whether the node has its own level; without one, an offset of the node cannot be told from a bad night.
    """

    cost: float
    scale: float
    n: int
    freedom: int
    is_own: bool
    since: str
    last: str

    def threshold(self, z: float) -> float:
        """Return how far above the level one night may lie."""
        spread = math.sqrt(1 + MEDIAN_VARIANCE / self.n)
        return max(FLOOR, t_quantile(normal_tail(z), self.freedom) * self.scale * spread)


@dataclass(frozen=True)
class AcceptedLevel:
    """The level that drift is measured against. It stays until somebody accepts another one.

    by_node: of the nodes that are known. build: the last run of it, whose build is the A of a confirmation. scale: of
    its own nights, which a ramp after them does not widen; None below FEWEST.
    """

    cost: float
    by_node: Mapping[str, float]
    n: int
    since: str
    build: str
    scale: float | None = None

    def at(self, node: str) -> float:
        return self.by_node.get(node, self.cost)


def level_of(nights: Sequence[Observation], node: str) -> Level | None:
    """Return the level of at most LONGEST nights on this node; None below FEWEST."""
    if len(nights) < FEWEST:
        return None
    used = nights[-LONGEST:]
    medians = node_medians(used)
    overall = median(night.cost for night in used)
    residuals = _residuals(used)
    own = [night for night in used if night.node == node] if node in medians else used
    freedom = max(2, len(used) - max(1, len(medians)))
    cost = medians.get(node, overall)
    return Level(cost, _scale(residuals), len(own), freedom, node in medians, used[0].began[:10], used[-1].began[:10])


def node_medians(nights: Sequence[Observation]) -> dict[str, float]:
    """Return the median of every node with at least FEWEST_ON_NODE nights."""
    costs: dict[str, list[float]] = {}
    for night in nights:
        costs.setdefault(night.node, []).append(night.cost)
    return {node: median(values) for node, values in costs.items() if len(values) >= FEWEST_ON_NODE}


def accepted_level(nights: Sequence[Observation], figure: Gated, event: StoreEvent | None) -> AcceptedLevel | None:
    """Return what an event accepted, or without one the level of the first LONGEST nights; None without any night.

    A node that the accepted nights do not know has the level of its own first nights.
    """
    stated = cost_of(event.level.get(figure), figure) if event else None
    if not nights and stated is None:
        return None
    first = {} if stated is None else _stated_nodes(event, figure)
    later = {node: level for node, level in _first_medians(nights).items() if node not in first}
    if event is not None and stated is not None:
        build = event.runs[-1] if event.runs else ""
        return AcceptedLevel(stated, later | first, max(1, len(event.runs)), event.at[:10], build)
    base = nights[:LONGEST]
    scale = _scale(_residuals(base)) if len(base) >= FEWEST else None
    return AcceptedLevel(median(n.cost for n in base), later, len(base), base[0].began[:10], base[-1].run_id, scale)


def _first_medians(nights: Sequence[Observation]) -> dict[str, float]:
    firsts: dict[str, list[Observation]] = {}
    for night in nights:
        firsts.setdefault(night.node, []).append(night)
    return node_medians([night for group in firsts.values() for night in group[:LONGEST]])


def _stated_nodes(event: StoreEvent | None, figure: Gated) -> dict[str, float]:
    """Return the levels by node that an accepted baseline states in its data, as costs."""
    nodes = event.data.get("nodes") if event else None
    of_figure = nodes.get(figure) if isinstance(nodes, dict) else None
    found = of_figure.items() if isinstance(of_figure, dict) else ()
    costs = {node: cost_of(value, figure) for node, value in found if isinstance(value, (int, float))}
    return {node: cost for node, cost in costs.items() if cost is not None}


def _residuals(nights: Sequence[Observation]) -> list[float]:
    """Return how far the nights are from their nodes' medians."""
    medians, overall = node_medians(nights), median(night.cost for night in nights)
    return [night.cost - medians.get(night.node, overall) for night in nights]


def _scale(residuals: Sequence[float]) -> float:
    middle = median(residuals)
    return max(LEAST_SCALE, 1.4826 * median(abs(value - middle) for value in residuals))
