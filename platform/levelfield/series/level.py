"""The level of a series: where it was, how far its nights scatter, and what somebody accepted.

The level is the median of at most 30 accepted nights, on tonight's node where three of them are. The scale is 1.0483
times the median distance between two nights of one node (Bickel and Lehmann, 1979), less 0.62 / f of it, at least
0.2 %. f counts the nights less one for each node. Distances need no medians of nodes: the median absolute deviation
from those is 0.76 of the true scale for seven nights on two nodes. One more night lies above the level by more than

    t(z, 0.8 f) x scale x sqrt(1 + 1.57 / n)

with the probability that a normal variable exceeds z: 1.57 = pi / 2 is the variance of a median over that of a mean.
0.62 and 0.8 are fitted to simulated nights by benchmarks/gate_rules/young_levels.py. No change below MIN_CHANGE, 1 %,
counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from statistics import NormalDist, median

from levelfield.measure.student import normal_tail, t_quantile
from levelfield.series.segments import Observation, cost_of
from levelfield.specs.record import GatedFigure, StoreEvent

MAX_NIGHTS = 30  # nights of a level
MIN_NIGHTS = 7  # below it the word is `new series`
MIN_ON_NODE = 3
MIN_SCALE = 0.002
MIN_CHANGE = 0.01  # as a cost; a smaller one is no finding
MEDIAN_VARIANCE = math.pi / 2
_OF_DISTANCE = 1 / (math.sqrt(2) * NormalDist().inv_cdf(0.75))  # 1.0483: of a normal scale over the median distance
_TOO_FAR, _EFFICIENCY = 0.62, 0.8  # the first is over the degrees of freedom, the second of them


@dataclass(frozen=True)
class Level:
    """The level of a figure on one node."""

    cost: float
    scale: float
    n: int  # nights that it rests on
    freedom: int  # effective degrees of freedom of the scale
    is_own: bool  # of the node; without one, an offset of the node cannot be told from a bad night
    since: str
    last: str

    def threshold(self, z: float) -> float:
        """Return how far above the level one night may lie."""
        spread = math.sqrt(1 + MEDIAN_VARIANCE / self.n)
        return max(MIN_CHANGE, t_quantile(normal_tail(z), self.freedom) * self.scale * spread)


@dataclass(frozen=True)
class AcceptedLevel:
    """The level that drift is measured against. It stays until somebody accepts another one."""

    cost: float
    by_node: Mapping[str, float]  # of the nodes that have one
    n: int
    since: str
    build: str  # the run whose build is the A of a confirmation
    scale: float | None = None  # of its own nights, which a ramp after them does not widen; None below MIN_NIGHTS

    def at(self, node: str) -> float:
        return self.by_node.get(node, self.cost)


def level_of(nights: Sequence[Observation], node: str) -> Level | None:
    """Return the level of at most MAX_NIGHTS nights on this node; None below MIN_NIGHTS."""
    if len(nights) < MIN_NIGHTS:
        return None
    used = nights[-MAX_NIGHTS:]
    by_node = _node_costs(used)
    same_node = by_node.get(node, [])
    is_own = len(same_node) >= MIN_ON_NODE
    everything = [night.cost for night in used]
    # A node without a level may be as far off as nodes are from each other.
    scale, freedom = _scatter(by_node.values() if is_own else [everything])
    costs = same_node if is_own else everything
    return Level(median(costs), scale, len(costs), freedom, is_own, used[0].began[:10], used[-1].began[:10])


def node_medians(nights: Sequence[Observation]) -> dict[str, float]:
    """Return the median of every node with at least MIN_ON_NODE nights."""
    return {node: median(costs) for node, costs in _node_costs(nights).items() if len(costs) >= MIN_ON_NODE}


def _node_costs(nights: Iterable[Observation]) -> dict[str, list[float]]:
    costs: dict[str, list[float]] = {}
    for night in nights:
        costs.setdefault(night.node, []).append(night.cost)
    return costs


def accepted_level(
    nights: Sequence[Observation],
    figure: GatedFigure,
    event: StoreEvent | None,
    can_run_again: Callable[[str], bool] = lambda run_id: True,
) -> AcceptedLevel | None:
    """Return what an event accepted, or without one the level of the first MAX_NIGHTS nights; None without any night.

    A node that the accepted nights do not know has the level of its own first nights. A is the build that was accepted
    last, or without an event that of the first night. Nights that the gate judged never move it: one in which it did
    not see a regression has that regression. can_run_again: whether a commit holds all of a run's build.
    """
    accepted = cost_of(event.level.get(figure), figure) if event else None
    if not nights and accepted is None:
        return None
    # the levels by node that an accepted baseline states in its data
    nodes = event.data.get("nodes") if event and accepted is not None else None
    of_figure = nodes.get(figure) if isinstance(nodes, dict) else None
    entries = of_figure.items() if isinstance(of_figure, dict) else ()
    costs = {node: cost_of(value, figure) for node, value in entries if isinstance(value, (int, float))}
    first = {node: cost for node, cost in costs.items() if cost is not None}
    nights_of: dict[str, list[Observation]] = {}
    for night in nights:
        nights_of.setdefault(night.node, []).append(night)
    firsts = node_medians([night for group in nights_of.values() for night in group[:MAX_NIGHTS]])
    later = {node: level for node, level in firsts.items() if node not in first}
    if event is not None and accepted is not None:
        build = first_build(event.runs[::-1], can_run_again)
        return AcceptedLevel(accepted, later | first, max(1, len(event.runs)), event.at[:10], build)
    base = nights[:MAX_NIGHTS]
    scale = _scatter(_node_costs(base).values())[0] if len(base) >= MIN_NIGHTS else None
    build = first_build([night.run_id for night in base[:MIN_NIGHTS]], can_run_again)
    return AcceptedLevel(median(n.cost for n in base), later, len(base), base[0].began[:10], build, scale)


def first_build(runs: Sequence[str], can_run_again: Callable[[str], bool]) -> str:
    """Return the first of the runs whose build a commit holds; where none is, the first one, for the reason."""
    return next(filter(can_run_again, runs), runs[0] if runs else "")


def _scatter(groups: Collection[Sequence[float]]) -> tuple[float, int]:
    """Return the scale of nights, by the distances within groups, and its effective degrees of freedom."""
    free = sum(len(costs) - 1 for costs in groups)
    if not free:  # each on a node of its own
        groups, free = [list(chain.from_iterable(groups))], len(groups) - 1
    distance = median(abs(a - b) for costs in groups for a, b in combinations(costs, 2))
    scale = _OF_DISTANCE * distance * (1 - _TOO_FAR / free)
    return max(MIN_SCALE, scale), max(2, round(_EFFICIENCY * free))
