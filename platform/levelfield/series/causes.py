"""One cause, one finding: changes of conditions over all series that share one, and nodes on which series moved alike.

One driver on three hundred series is three hundred chances of a false step, in every night until somebody accepts it.
So the series of a change are one family, with a bound on the false discovery rate (Benjamini and Hochberg, 1995). Under
a change without effect each finding is false, so that this rate is the family-wise one: the probability of any finding
in a night. Under one with an effect, those that moved are not hidden by the number of those that did not. In a family
of fewer than FEWEST_ALIKE each is judged alone, from the second night on: one slow night looks the same.

The probability of a step is at least the share of as large ones among the same series' nights before, had the
conditions changed then: outliers, heavy tails and slow nights count as often as they happen here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from levelfield.measure.student import normal_tail, tail_probability
from levelfield.series.examination import EnvironmentStep
from levelfield.series.findings import Finding, percent_change
from levelfield.series.judgement import Judged
from levelfield.series.level import FEWEST, LONGEST, node_medians
from levelfield.series.segments import change_of
from levelfield.series.trigger import Z, kept_of_many
from levelfield.specs.record import Gated
from levelfield.specs.short_names import short_digest

FEWEST_ALIKE = 3
ALIKE = (0.5, 1.5)  # of the median excess on a node
MARGIN = 1.5  # a step counts where it is that much above others: weeks of nights have not seen the largest
FALSE_STEPS = 0.03  # of the series that are said to be moved; all of them where the change has no effect
ENOUGH = 20  # builds found no slower: a slower one in more than one of seven series would have shown, with 95 %


@dataclass(frozen=True)
class MovedSeries:
    """The series of one figure that a change of conditions moved in one direction. of: how many series it reached."""

    members: tuple[Judged, ...]
    of: int

    def finding(self) -> Finding:
        """Return the one finding about the change, which stands for all of these series."""
        figure = self.members[0].found.figure
        steps = sorted(change_of(_step(member).excess, figure) for member in self.members)
        most = max(self.members, key=lambda member: abs(_step(member).excess))
        nights = max(_step(member).nights for member in self.members)
        nodes = sorted({member.found.tonight.node for member in self.members})
        detail = (
            f"moved {len(self.members)} of {self.of} series on {len(nodes)} node{'s' * (len(nodes) > 1)}, from "
            f"{percent_change(steps[0])} to {percent_change(steps[-1])}, in {nights} night{'s' * (nights > 1)}; "
            f"the most: {most.label}; `nightly accept-step {short_digest(most.series)} --everywhere` accepts it"
        )
        return Finding(
            series="", label=most.change, figure=figure, change=median(steps), detail=detail, fields=most.fields,
            word="environment step" if _step(most).excess > 0 else "improvement",
            node=nodes[0] if len(nodes) == 1 else None,
            runs=tuple(member.found.tonight.run_id for member in self.members),
        )  # fmt: skip


def families(judged: Iterable[Judged]) -> dict[tuple[tuple[str, ...], Gated], list[Judged]]:
    """Return the series that are held against the level before a change, by change and figure."""
    found = defaultdict(list)
    for each in judged:
        if each.found.step is not None:
            found[each.cause, each.found.figure].append(each)
    return dict(found)


def moved(family: Sequence[Judged]) -> list[MovedSeries]:
    """Return the members of a family that have moved, the worse direction first."""
    found = []
    for direction in (1, -1):
        candidates = [m for m in family if m.found.has_stepped and direction * _step(m).excess > 0]
        if len(family) < FEWEST_ALIKE:
            candidates = [m for m in candidates if _step(m).stands_alone]
        elif candidates:
            before = sorted(direction * each for member in family for each in _pretended(_step(member)))
            chances = [_chance(_step(m), direction, before) for m in candidates]
            kept = kept_of_many(chances, len(family), FALSE_STEPS)
            candidates = [m for m, is_kept in zip(candidates, kept, strict=True) if is_kept]
        if candidates:
            found.append(MovedSeries(tuple(candidates), len(family)))
    return found


def suspiciousness(judged: Sequence[Judged]) -> dict[tuple[str, Gated], float]:
    """Return how likely chance makes each series' night, the conditions apart: the least gets pairs first."""
    suspicions = ((each.name, each.found.suspicion) for each in judged)
    found = {name: suspicion.p for name, suspicion in suspicions if suspicion and suspicion.direction > 0}
    for family in families(judged).values():
        for each, chance in _beside_others(family):
            if each.is_due:
                found[each.name] = chance if each.build == "due" else -1.0
    return found


def still_due(judged: Sequence[Judged]) -> list[Judged]:
    """Return the same, where a series that its change of conditions explains is no longer due for pairs.

    The change explains it once pairs found ENOUGH builds under it no slower, and none slower, and the series is not
    beyond z = 2.5 of the median of all with the change, in either direction.
    """
    explained = set()
    for family in families(judged).values():
        no_slower = sum(each.build == "no slower" for each in family)
        if no_slower >= ENOUGH and not any(each.is_slower for each in family):
            chances = {each.name: chance for each, chance in _beside_others(family)}
            explained |= {name for name, chance in chances.items() if min(chance, 1 - chance) > normal_tail(Z)}
    return [replace(each, build="open") if each.build == "due" and each.name in explained else each for each in judged]


def _beside_others(family: Sequence[Judged]) -> Iterator[tuple[Judged, float]]:
    """Yield each series of a family with the probability that chance puts it so far above their median.

    A driver that makes all faster hides a slower build in each of them, but not beside the others.
    """
    common = median(_step(each).excess for each in family) if len(family) >= FEWEST_ALIKE else 0.0
    for each in family:
        step = _step(each)
        yield each, tail_probability((step.excess - common) / step.error, step.before.freedom)


def _chance(step: EnvironmentStep, direction: int, before: Sequence[float]) -> float:
    """Return the probability of such a step by chance. before: in errors, of nights without a change, in order."""
    size = direction * step.excess / step.error
    share = (len(before) - bisect_left(before, size / MARGIN)) / len(before) if before else 0.0
    return max(tail_probability(size, step.before.freedom), share)


def _pretended(step: EnvironmentStep) -> list[float]:
    """Return the steps, in errors, that as many nights before the change show against the nights before those."""
    medians = node_medians(step.history)
    overall = median(night.cost for night in step.history)
    costs = [night.cost - medians.get(night.node, overall) for night in step.history][-2 * LONGEST :]
    return [
        (median(costs[first : first + step.nights]) - median(costs[max(0, first - LONGEST) : first])) / step.error
        for first in range(FEWEST, len(costs) - step.nights + 1)
    ]


def _step(judged: Judged) -> EnvironmentStep:
    assert judged.found.step is not None
    return judged.found.step


@dataclass(frozen=True)
class NodeGroup:
    """Series on one node whose figure moved alike. of: how many series ran there. excess: the median, as a cost.

    is_alone: whether series on other nodes ran in the same night and did not move, so that the build is no cause.
    """

    members: tuple[Judged, ...]
    of: int
    excess: float
    is_alone: bool

    @property
    def clearest(self) -> Judged:
        """The member that is farthest from its level: its pairs stand for the group."""
        return max(self.members, key=lambda m: abs(m.found.above) / m.found.level.scale)  # type: ignore[union-attr]


def node_groups(judged: Sequence[Judged]) -> list[NodeGroup]:
    """Return the groups of at least FEWEST_ALIKE series, and half of those on the node, that moved alike tonight."""
    found = []
    levelled = [each for each in judged if each.found.level]
    for node, figure in dict.fromkeys((each.found.tonight.node, each.found.figure) for each in judged):
        here = [m for m in levelled if (m.found.tonight.node, m.found.figure) == (node, figure)]
        others = [m for m in levelled if m.found.tonight.node != node and m.found.figure == figure]
        for direction in (1, -1):
            off = [(m, excess) for m in here if (excess := _tonight_off(m, direction)) is not None]
            middle = abs(median(excess for _, excess in off)) if off else 0.0
            alike = [(m, excess) for m, excess in off if ALIKE[0] * middle <= abs(excess) <= ALIKE[1] * middle]
            if len(alike) >= max(FEWEST_ALIKE, len(here) / 2):
                still = sum(_tonight_off(m, direction) is None for m in others)
                is_alone = still >= FEWEST_ALIKE and still > len(others) / 2
                members, excesses = zip(*alike, strict=True)
                found.append(NodeGroup(members, len(here), median(excesses), is_alone))
    return found


def _tonight_off(judged: Judged, direction: int) -> float | None:
    """Return how far tonight is beyond its level in a direction, as a cost; None where it is not."""
    suspicion = judged.found.suspicion
    is_off = suspicion is not None and suspicion.rule == "tonight" and suspicion.direction == direction
    return suspicion.excess if is_off and suspicion else None
