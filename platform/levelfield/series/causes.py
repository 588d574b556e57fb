"""Changes of conditions over all series that share one: which of them it moved, and how likely each build is to blame.

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
from typing import NamedTuple

from levelfield.measure.student import normal_tail, tail_probability
from levelfield.series.examination import Z_OF_LONE_STEP, EnvironmentStep, Examination
from levelfield.series.findings import Finding, FindingWord, percent_change
from levelfield.series.judgement import FEWEST_ALIKE, ExaminedFigure, JudgementContext
from levelfield.series.level import FEWEST_NIGHTS, LONGEST, node_medians
from levelfield.series.segments import change_of
from levelfield.series.trigger import Z, within_false_discovery_rate
from levelfield.specs.record import Gated
from levelfield.specs.short_names import short_digest

MARGIN = 1.5  # a step counts where it is that much above others: weeks of nights have not seen the largest
FALSE_STEPS = 0.03  # of the series that are said to be moved; all of them where the change has no effect
ENOUGH = 20  # builds found no slower: a slower one in more than one of seven series would have shown, with 95 %


class ChangedSeries(NamedTuple):
    """A figure of a series that is held against the level before a change of conditions."""

    context: JudgementContext
    night: Examination
    step: EnvironmentStep


@dataclass(frozen=True)
class MovedSeries:
    """The series of one figure that a change of conditions moved in one direction."""

    figure: Gated
    members: tuple[ChangedSeries, ...]
    of: int  # how many series the change reached

    def finding(self) -> Finding:
        """Return the one finding about the change, which stands for all of these series."""
        word: FindingWord = "environment step" if self.members[0].step.excess > 0 else "improvement"
        steps = sorted(change_of(member.step.excess, self.figure) for member in self.members)
        context = max(self.members, key=lambda member: abs(member.step.excess)).context
        nights = max(member.step.nights for member in self.members)
        nodes = sorted({member.night.tonight.node for member in self.members})
        detail = (
            f"moved {len(self.members)} of {self.of} series on {len(nodes)} node{'s' * (len(nodes) > 1)}, from "
            f"{percent_change(steps[0])} to {percent_change(steps[-1])}, in {nights} night{'s' * (nights > 1)}; "
            f"the most: {context.label}; `nightly accept-step {short_digest(context.series)} --everywhere` accepts it"
        )
        return Finding(
            series="", label=context.change, figure=self.figure, word=word, change=median(steps), detail=detail,
            fields=context.fields, node=nodes[0] if len(nodes) == 1 else None,
            runs=tuple(member.night.tonight.run_id for member in self.members),
        )  # fmt: skip


def families(examined: Iterable[ExaminedFigure]) -> dict[tuple[tuple[str, ...], Gated], list[ChangedSeries]]:
    """Return the series that are held against the level before a change, by change and figure."""
    members = defaultdict(list)
    for context, night in examined:
        if night.step is not None:
            members[context.cause, night.figure].append(ChangedSeries(context, night, night.step))
    return dict(members)


def moved(family: Sequence[ChangedSeries]) -> list[MovedSeries]:
    """Return the members of a family that have moved, the worse direction first."""
    groups = []
    for direction in (1, -1):
        candidates = [m for m in family if m.step.is_beyond and direction * m.step.excess > 0]
        if len(family) < FEWEST_ALIKE:  # one slow night looks the same
            candidates = [m for m in candidates if m.step.nights > 1]
            candidates = [m for m in candidates if abs(m.step.excess) > m.step.limit(Z_OF_LONE_STEP)]
        elif candidates:
            before = sorted(direction * excess for member in family for excess in _pretended(member.step))
            chances = []  # of such a step: by the t distribution, and by the nights without a change
            for step in (member.step for member in candidates):
                size = direction * step.excess / step.error
                share = (len(before) - bisect_left(before, size / MARGIN)) / len(before) if before else 0.0
                chances.append(max(tail_probability(size, step.before.freedom), share))
            passed = within_false_discovery_rate(chances, len(family), FALSE_STEPS)
            candidates = [m for m, has_passed in zip(candidates, passed, strict=True) if has_passed]
        if candidates:
            groups.append(MovedSeries(candidates[0].night.figure, tuple(candidates), len(family)))
    return groups


def suspiciousness(examined: Sequence[ExaminedFigure]) -> dict[tuple[str, Gated], float]:
    """Return how likely chance makes each series' night, the conditions apart: the least gets pairs first."""
    chances = {(a.series, e.figure): e.suspicion.p for a, e in examined if e.suspicion and e.suspicion.direction > 0}
    for family in families(examined).values():
        for (context, night, _), chance in _beside_others(family):
            if context.are_pairs_due:
                chances[context.series, night.figure] = -1.0 if context.is_build_worse else chance
    return chances


def still_due(examined: Sequence[ExaminedFigure]) -> list[ExaminedFigure]:
    """Return the same, where a series that its change of conditions explains is no longer due for pairs.

    The change explains it once pairs found ENOUGH builds under it no slower, and none slower, and the series is not
    beyond z = 2.5 of the median of all with the change, in either direction.
    """
    explained = set()
    for family in families(examined).values():
        cleared = sum(member.context.is_build_cleared for member in family)
        if cleared >= ENOUGH and not any(member.context.is_build_worse for member in family):
            chances = {(m.context.series, m.night.figure): chance for m, chance in _beside_others(family)}
            explained |= {name for name, chance in chances.items() if min(chance, 1 - chance) > normal_tail(Z)}
    return [
        (
            replace(context, are_pairs_due=context.are_pairs_due and (context.series, night.figure) not in explained),
            night,
        )
        for context, night in examined
    ]


def _beside_others(family: Sequence[ChangedSeries]) -> Iterator[tuple[ChangedSeries, float]]:
    """Yield each series of a family with the probability that chance puts it so far above their median.

    A driver that makes all faster hides a slower build in each of them, but not beside the others.
    """
    common = median(member.step.excess for member in family) if len(family) >= FEWEST_ALIKE else 0.0
    for member in family:
        step = member.step
        yield member, tail_probability((step.excess - common) / step.error, step.before.freedom)


def _pretended(step: EnvironmentStep) -> list[float]:
    """Return the steps, in errors, that as many nights before the change show against the nights before those."""
    medians = node_medians(step.history)
    overall = median(night.cost for night in step.history)
    costs = [night.cost - medians.get(night.node, overall) for night in step.history][-2 * LONGEST :]
    return [
        (median(costs[first : first + step.nights]) - median(costs[max(0, first - LONGEST) : first])) / step.error
        for first in range(FEWEST_NIGHTS, len(costs) - step.nights + 1)
    ]
