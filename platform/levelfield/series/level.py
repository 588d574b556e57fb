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

MAX_LEVEL_NIGHTS = 30  # a level rests on these at most
MIN_LEVEL_NIGHTS = 7  # with fewer the word is `new series`
MIN_NIGHTS_ON_NODE = 3
MIN_SCALE = 0.002
MIN_CHANGE = 0.01  # as a cost; a smaller one is no finding
MEDIAN_VARIANCE = math.pi / 2
_SCALE_PER_DISTANCE = 1 / (math.sqrt(2) * NormalDist().inv_cdf(0.75))  # 1.0483: normal scale over median distance
_SCALE_BIAS, _EFFICIENCY = 0.62, 0.8  # the scale is smaller by the first over f; the second is the effective share of f


@dataclass(frozen=True)
class Level:
    """The level of a figure on one node."""

    cost: float  # the median of its nights
    scale: float  # how far nights scatter, as a cost
    night_count: int  # nights that it rests on
    freedom: int  # effective degrees of freedom of the scale
    is_of_node: bool  # of this node alone; otherwise an offset of the node cannot be told from a bad night
    since: str  # date of its first night
    last_night: str  # date of its last night

    def threshold(self, z: float) -> float:
        """Return how far above the level one night may lie."""
        spread = math.sqrt(1 + MEDIAN_VARIANCE / self.night_count)
        return max(MIN_CHANGE, t_quantile(normal_tail(z), self.freedom) * self.scale * spread)


@dataclass(frozen=True)
class AcceptedLevel:
    """The level that drift is measured against. It stays until somebody accepts another one."""

    cost: float
    cost_by_node: Mapping[str, float]  # the cost on each node that has a level of its own
    night_count: int  # nights that it rests on
    since: str  # a date
    build_run: str  # id of the run whose build is the A of a confirmation
    scale: float | None = None  # of its own nights, which a ramp after them does not widen; None below MIN_LEVEL_NIGHTS

    def cost_on(self, node: str) -> float:
        return self.cost_by_node.get(node, self.cost)


def level_of(nights: Sequence[Observation], node: str) -> Level | None:
    """Return the level of at most MAX_LEVEL_NIGHTS nights on this node; None below MIN_LEVEL_NIGHTS."""
    if len(nights) < MIN_LEVEL_NIGHTS:
        return None
    level_nights = nights[-MAX_LEVEL_NIGHTS:]
    by_node = _node_costs(level_nights)
    same_node = by_node.get(node, [])
    is_own = len(same_node) >= MIN_NIGHTS_ON_NODE
    all_costs = [night.cost for night in level_nights]
    # A node without a level may be as far off as nodes are from each other.
    scale, freedom = _scatter(by_node.values() if is_own else [all_costs])
    costs = same_node if is_own else all_costs
    return Level(
        median(costs), scale, len(costs), freedom, is_own, level_nights[0].began[:10], level_nights[-1].began[:10]
    )


def node_medians(nights: Sequence[Observation]) -> dict[str, float]:
    """Return the median of every node with at least MIN_NIGHTS_ON_NODE nights."""
    return {node: median(costs) for node, costs in _node_costs(nights).items() if len(costs) >= MIN_NIGHTS_ON_NODE}


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
    """Return what an event accepted, else the level of the first MAX_LEVEL_NIGHTS nights; None without any night.

    A node without accepted nights has the level of its own first nights. A is the build that was accepted last, or
    without an event that of the first night. Nights that the gate judged never move it: they may have a regression
    that it did not see. can_run_again: whether a commit holds all of a run's build.
    """
    accepted = cost_of(event.level.get(figure), figure) if event else None
    if not nights and accepted is None:
        return None
    # the levels by node that an accepted baseline states in its data
    nodes = event.data.get("nodes") if event and accepted is not None else None
    figure_nodes = nodes.get(figure) if isinstance(nodes, dict) else None
    entries = figure_nodes.items() if isinstance(figure_nodes, dict) else ()
    costs = {node: cost_of(value, figure) for node, value in entries if isinstance(value, (int, float))}
    stated_costs = {node: cost for node, cost in costs.items() if cost is not None}
    nights_by_node: dict[str, list[Observation]] = {}
    for night in nights:
        nights_by_node.setdefault(night.node, []).append(night)
    first_medians = node_medians([night for group in nights_by_node.values() for night in group[:MAX_LEVEL_NIGHTS]])
    unstated_costs = {node: level for node, level in first_medians.items() if node not in stated_costs}
    if event is not None and accepted is not None:
        build = first_rerunnable_run(event.runs[::-1], can_run_again)
        return AcceptedLevel(accepted, unstated_costs | stated_costs, max(1, len(event.runs)), event.at[:10], build)
    first_nights = nights[:MAX_LEVEL_NIGHTS]
    scale = _scatter(_node_costs(first_nights).values())[0] if len(first_nights) >= MIN_LEVEL_NIGHTS else None
    build = first_rerunnable_run([night.run_id for night in first_nights[:MIN_LEVEL_NIGHTS]], can_run_again)
    return AcceptedLevel(
        median(n.cost for n in first_nights),
        unstated_costs,
        len(first_nights),
        first_nights[0].began[:10],
        build,
        scale,
    )


def first_rerunnable_run(runs: Sequence[str], can_run_again: Callable[[str], bool]) -> str:
    """Return the first run whose build a commit holds. Without one: the first run, for the message that says why."""
    return next(filter(can_run_again, runs), runs[0] if runs else "")


def _scatter(groups: Collection[Sequence[float]]) -> tuple[float, int]:
    """Return the scale of nights, by the distances within groups, and its effective degrees of freedom."""
    freedom = sum(len(costs) - 1 for costs in groups)
    if not freedom:  # each night is on another node
        groups, freedom = [list(chain.from_iterable(groups))], len(groups) - 1
    distance = median(abs(a - b) for costs in groups for a, b in combinations(costs, 2))
    scale = _SCALE_PER_DISTANCE * distance * (1 - _SCALE_BIAS / freedom)
    return max(MIN_SCALE, scale), max(2, round(_EFFICIENCY * freedom))
