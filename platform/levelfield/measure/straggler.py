"""Which rank or node the others wait for, from how long each worked by itself in each step.

All ranks do the same work between the last exchange of one step and the first of the next, so without a straggler each
is the slowest equally often. A rank that is the slowest in more steps than chance allows, and by a noticeable part, is
one. The test is exact (binomial, with Bonferroni's correction over ranks and nodes), and one slow step moves nothing:
the part is a median. Its false alarms stay below FALSE_ALARMS where a rank's noise in one step tells nothing about the
next. A program beside one rank for the whole window is found as well: the others did wait for that rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from levelfield.specs.result import RankPace, Straggler

FALSE_ALARMS = 0.01  # of all runs without a straggler
NOTICEABLE = 0.03  # relative excess over the others; less is not worth a search
MIN_STEPS = 10  # the same of two ranks is by chance the slower one in all of eight steps in 1 of 128 runs: too often

StepSeconds = Mapping[int, Mapping[int, float]]  # by rank and step


def find_stragglers(times: StepSeconds, nodes: Mapping[str, Sequence[int]]) -> RankPace:
    """Return the nodes and ranks that the others wait for. times: each rank's own work. nodes: their ranks, by name.

    A step counts only where every rank has a time that is above zero. A node whose ranks are slow together is named as
    a node, and its ranks are not named again.
    """
    common_steps = set.intersection(*map(set, times.values())) if times else set()
    steps = sorted(step for step in common_steps if all(0 < seconds[step] < math.inf for seconds in times.values()))
    if len(times) < 2 or len(steps) < MIN_STEPS:
        reason = f"{len(steps)} steps have a time of every rank, at least {MIN_STEPS} are needed"
        if len(times) < 2:
            reason = "one rank waits for nobody"
        return RankPace(steps=len(steps), stragglers=(), unchecked=reason)
    members = {name: tuple(rank for rank in ranks if rank in times) for name, ranks in nodes.items()}
    members = {name: ranks for name, ranks in members.items() if ranks}
    node_seconds = {
        name: [median(times[rank][step] for rank in ranks) for step in steps] for name, ranks in members.items()
    }
    slow_nodes = _significantly_slow(node_seconds, members) if len(members) > 1 else []
    ranks_of_slow_nodes = {rank for node in slow_nodes for rank in node.ranks}
    rank_seconds = {f"rank {rank}": [seconds[step] for step in steps] for rank, seconds in times.items()}
    slow_ranks = _significantly_slow(rank_seconds, {f"rank {rank}": (rank,) for rank in times})
    other_slow_ranks = (rank for rank in slow_ranks if not ranks_of_slow_nodes.issuperset(rank.ranks))
    return RankPace(steps=len(steps), stragglers=(*slow_nodes, *other_slow_ranks), unchecked=None)


def _significantly_slow(series: Mapping[str, Sequence[float]], ranks: Mapping[str, tuple[int, ...]]) -> list[Straggler]:
    """Return the nodes or ranks that are slowest more often than chance allows and by enough, the slowest first."""
    names = list(series)
    slowest_counts = dict.fromkeys(names, 0)
    for values in zip(*series.values(), strict=True):
        slowest_counts[names[values.index(max(values))]] += 1
    steps = len(next(iter(series.values())))
    slow_members = []
    for name in names:
        p_value = min(1.0, len(names) * binomial_tail(slowest_counts[name], steps, 1 / len(names)))
        if p_value <= FALSE_ALARMS / 2:  # ranks and nodes are two tests
            others = [median(row) for row in zip(*(v for n, v in series.items() if n != name), strict=True)]
            pairs = list(zip(series[name], others, strict=True))
            excess, waited = median(x / other - 1 for x, other in pairs), median(x - other for x, other in pairs)
            if excess >= NOTICEABLE:
                slow_members.append(
                    Straggler(
                        name=name,
                        ranks=ranks[name],
                        excess=excess,
                        waited_seconds=waited,
                        slowest_in=slowest_counts[name],
                        chance=p_value,
                    )
                )
    return sorted(slow_members, key=lambda straggler: -straggler.excess)


def binomial_tail(count: int, trials: int, probability: float) -> float:
    """Return the probability of at least `count` successes in `trials` independent trials."""
    if count <= 0:
        return 1.0
    logarithms = []  # the coefficients themselves exceed every float
    for k in range(count, trials + 1):
        ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        logarithms.append(ways + k * math.log(probability) + (trials - k) * math.log1p(-probability))
    return min(1.0, math.fsum(map(math.exp, logarithms)))
