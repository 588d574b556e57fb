"""Which series a change of conditions moved, and how likely each series has such a night by chance alone.

One driver on three hundred series is three hundred chances of a false step, in every night until somebody accepts it.
So the series of a change are one family, with a bound on the false discovery rate (Benjamini and Hochberg, 1995). Where
a change has no effect, each finding is false, so this rate is the probability of any finding in a night. Where it has
one, the series that moved are not hidden by the number of those that did not. In a family of fewer than
MIN_ALIKE_SERIES each is judged alone, from the second night on: one slow night looks the same.

The probability of a step is at least the share of steps as large that the earlier nights of these series show although
nothing changed: outliers, heavy tails and slow nights count as often as they happen here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from levelfield.measure.student import normal_tail, t_tail_probability
from levelfield.series.examination import Z_OF_LONE_STEP, EnvironmentStep, Examination
from levelfield.series.findings import Finding, FindingWord, percent_change
from levelfield.series.judgement import MIN_ALIKE_SERIES, ExaminedFigure, JudgementContext
from levelfield.series.level import MAX_LEVEL_NIGHTS, MIN_LEVEL_NIGHTS, node_medians
from levelfield.series.segments import change_of
from levelfield.series.trigger import SUSPICION_Z, within_false_discovery_rate
from levelfield.specs.record import GatedFigure
from levelfield.specs.short_names import short_digest

# A step must be this many times an earlier one: weeks of nights do not show the largest that chance makes.
EARLIER_STEP_MARGIN = 1.5
FALSE_STEP_RATE = 0.03  # of the series that are reported as moved
# So many builds that pairs found no slower: with 95 % they would have shown a slower one in every seventh series.
MIN_CLEARED_BUILDS = 20


class ChangedSeries(NamedTuple):
    """A figure of a series that is compared with the level before a change of conditions."""

    context: JudgementContext
    examination: Examination
    step: EnvironmentStep


@dataclass(frozen=True)
class MovedSeries:
    """The series of one figure that a change of conditions moved in one direction."""

    figure: GatedFigure
    members: tuple[ChangedSeries, ...]
    family_size: int  # how many series have the change

    def finding(self) -> Finding:
        """Return the one finding about the change, which stands for all of these series."""
        word: FindingWord = "environment step" if self.members[0].step.excess > 0 else "improvement"
        steps = sorted(change_of(member.step.excess, self.figure) for member in self.members)
        context = max(self.members, key=lambda member: abs(member.step.excess)).context
        nights = max(member.step.night_count for member in self.members)
        nodes = sorted({member.examination.tonight.node for member in self.members})
        detail = (
            f"moved {len(self.members)} of {self.family_size} series on {len(nodes)} node{'s' * (len(nodes) > 1)}, "
            f"from {percent_change(steps[0])} to {percent_change(steps[-1])}, in {nights} night{'s' * (nights > 1)}; "
            f"the most: {context.label}; `nightly accept-step {short_digest(context.series)} --everywhere "
            "--reason REASON` accepts it"
        )
        return Finding(
            series="", label=context.change, figure=self.figure, word=word, change=median(steps), detail=detail,
            fields=context.fields, node=nodes[0] if len(nodes) == 1 else None,
            runs=tuple(member.examination.tonight.run_id for member in self.members),
        )  # fmt: skip


def change_families(
    examined: Iterable[ExaminedFigure],
) -> dict[tuple[tuple[str, ...], GatedFigure], list[ChangedSeries]]:
    """Return the series that are compared with the level before a change, by change and figure."""
    members = defaultdict(list)
    for context, examination in examined:
        if examination.step is not None:
            members[context.cause, examination.figure].append(ChangedSeries(context, examination, examination.step))
    return dict(members)


def moved_series(family: Sequence[ChangedSeries]) -> list[MovedSeries]:
    """Return the series of a family that have moved, in a group for each direction, the worse one first."""
    groups = []
    for direction in (1, -1):
        candidates = [m for m in family if m.step.is_beyond and direction * m.step.excess > 0]
        if len(family) < MIN_ALIKE_SERIES:  # one slow night looks the same
            candidates = [m for m in candidates if m.step.night_count > 1]
            candidates = [m for m in candidates if abs(m.step.excess) > m.step.limit(Z_OF_LONE_STEP)]
        elif candidates:
            earlier = sorted(direction * step for member in family for step in _steps_before_change(member.step))
            probabilities = []  # of a step so large: by the t distribution, or by nights without a change
            for step in (member.step for member in candidates):
                size = direction * step.excess / step.standard_error
                share = (
                    (len(earlier) - bisect_left(earlier, size / EARLIER_STEP_MARGIN)) / len(earlier) if earlier else 0.0
                )
                probabilities.append(max(t_tail_probability(size, step.level_before.freedom), share))
            flags = within_false_discovery_rate(probabilities, len(family), FALSE_STEP_RATE)
            candidates = [m for m, has_passed in zip(candidates, flags, strict=True) if has_passed]
        if candidates:
            groups.append(MovedSeries(candidates[0].examination.figure, tuple(candidates), len(family)))
    return groups


def night_probabilities(examined: Sequence[ExaminedFigure]) -> dict[tuple[str, GatedFigure], float]:
    """Return by series and figure the probability of such a night by chance, apart from a change of conditions.

    The least likely one gets pairs first; a build that pairs have shown to be worse has -1.
    """
    probabilities = {
        (context.series, night.figure): night.suspicion.probability
        for context, night in examined
        if night.suspicion and night.suspicion.direction > 0
    }
    for family in change_families(examined).values():
        for (context, examination, _), probability in _probabilities_beside_family(family):
            if context.are_pairs_due:
                probabilities[context.series, examination.figure] = -1.0 if context.is_build_worse else probability
    return probabilities


def drop_explained_pairs(examined: Sequence[ExaminedFigure]) -> list[ExaminedFigure]:
    """Return all series; those that their change of conditions explains are no longer due for pairs.

    The change explains it once pairs have shown MIN_CLEARED_BUILDS builds under it to be no slower, and none to be
    slower, and the series is within z = 2.5 of the median of all with the change.
    """
    explained = set()
    for family in change_families(examined).values():
        cleared = sum(member.context.is_build_cleared for member in family)
        if cleared >= MIN_CLEARED_BUILDS and not any(member.context.is_build_worse for member in family):
            probabilities = {
                (m.context.series, m.examination.figure): probability
                for m, probability in _probabilities_beside_family(family)
            }
            explained |= {
                key
                for key, probability in probabilities.items()
                if min(probability, 1 - probability) > normal_tail(SUSPICION_Z)
            }
    return [
        member._replace(context=replace(member.context, are_pairs_due=False))
        if (member.context.series, member.examination.figure) in explained
        else member
        for member in examined
    ]


def _probabilities_beside_family(family: Sequence[ChangedSeries]) -> Iterator[tuple[ChangedSeries, float]]:
    """Yield each series of a family with the probability that chance puts it so far above their median.

    A driver that makes all faster hides a slower build in each of them, but not beside the others.
    """
    common = median(member.step.excess for member in family) if len(family) >= MIN_ALIKE_SERIES else 0.0
    for member in family:
        step = member.step
        yield member, t_tail_probability((step.excess - common) / step.standard_error, step.level_before.freedom)


def _steps_before_change(step: EnvironmentStep) -> list[float]:
    """Return the steps of nights before the change, over the step's standard error.

    Each is of as many nights as the step, against the nights before those.
    """
    medians = node_medians(step.history)
    overall = median(night.cost for night in step.history)
    costs = [night.cost - medians.get(night.node, overall) for night in step.history][-2 * MAX_LEVEL_NIGHTS :]
    return [
        (median(costs[first : first + step.night_count]) - median(costs[max(0, first - MAX_LEVEL_NIGHTS) : first]))
        / step.standard_error
        for first in range(MIN_LEVEL_NIGHTS, len(costs) - step.night_count + 1)
    ]
