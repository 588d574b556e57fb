"""One figure of one series in one night: its level, a step at a change of conditions, and whether it is suspicious.

Tonight is compared with the nights since the last accepted baseline or the last accepted step. A change of conditions
alone accepts nothing: the nights before it stay the reference until somebody accepts the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_high, median_low

from levelfield.measure.student import normal_tail, t_quantile
from levelfield.series.findings import OpenRegression
from levelfield.series.level import (
    MEDIAN_VARIANCE,
    MIN_CHANGE,
    MIN_NIGHTS,
    AcceptedLevel,
    Level,
    accepted_level,
    first_build,
    level_of,
)
from levelfield.series.segments import Observation, Segment, excess_of, observations
from levelfield.series.trigger import DRIFT_NIGHTS, VARIANCE_INFLATION, Suspicion, find_suspicion, is_beyond
from levelfield.specs.record import GatedFigure, Point, StoreEvent

_Z_OF_STEP = 3.0  # it is looked at in every night until it is accepted
Z_OF_LONE_STEP = 3.5  # no other series with the same change supports or excuses it
RECENT = 7  # nights that show on which nodes a series runs
LASTING, STEADY = 7, 1 / 2  # nights found better that make a provisional level, and their least share since the first


@dataclass(frozen=True)
class Era:
    """The segments that lead to tonight, the oldest first. The last one holds tonight."""

    segments: tuple[Segment, ...]
    baseline: StoreEvent | None  # accepted, or None

    def current(self, figure: GatedFigure, before: str) -> list[Observation]:
        """Return the nights of tonight's segment before a time, since the baseline."""
        points = self.segments[-1].points
        return observations((p for p in points if p.began < before and is_since(self.baseline, p)), figure)

    def earlier(self, figure: GatedFigure) -> list[Observation]:
        """Return the nights of the segments before tonight's, since the baseline, in order of time."""
        points = (p for segment in self.segments[:-1] for p in segment.points if is_since(self.baseline, p))
        return observations(sorted(points, key=lambda p: p.began), figure)


def is_since(baseline: StoreEvent | None, point: Point) -> bool:
    """Whether the point is of the level that a baseline accepts: of its evidence, or after it."""
    return baseline is None or point.run_id in baseline.runs or point.began > baseline.at


def era_of(segments: Sequence[Segment], index: int, events: Iterable[StoreEvent], when: str, run_id: str = "") -> Era:
    """Return the era of the segment at `index`, with the events that hold at the time `when`.

    run_id: of the night. An event that was made on its own evidence holds for it, although it came later.
    """
    events = [event for event in events if holds(event, when, run_id)]
    accepted = [(e.data.get("before"), e.data.get("after")) for e in events if e.kind == "environment-step"]
    chain = [index]
    while (before := segments[chain[-1]].before) is not None:
        if (segments[before].conditions, segments[chain[-1]].conditions) in accepted:
            break
        chain.append(before)
    return Era(tuple(segments[i] for i in reversed(chain)), standing_baseline(events, when, run_id))


def standing_baseline(events: Iterable[StoreEvent], when: str, run_id: str = "") -> StoreEvent | None:
    """Return the baseline that holds at a time; None where none was accepted, or it has expired."""
    baselines = (event for event in events if event.kind == "baseline" and holds(event, when, run_id))
    return max(baselines, key=lambda event: event.at, default=None)


def holds(event: StoreEvent, when: str, run_id: str = "") -> bool:
    """Whether the event was made by the time `when`, or on this run, and has not expired.

    An end without a time is the whole day.
    """
    is_open = event.until is None or when[: len(event.until)] <= event.until
    return is_open and (event.at <= when or run_id in event.runs)


@dataclass(frozen=True)
class EnvironmentStep:
    """How far the nights under the new conditions are from the level before."""

    excess: float  # as a cost
    error: float  # of the excess, by chance
    before: Level
    nights: int  # under the new conditions
    history: tuple[Observation, ...] = ()  # before the change, also nights found bad: they may come again

    @property
    def is_beyond(self) -> bool:
        return abs(self.excess) > self.limit()

    def limit(self, z: float = _Z_OF_STEP) -> float:
        return max(MIN_CHANGE, t_quantile(normal_tail(z), self.before.freedom) * self.error)


@dataclass(frozen=True)
class Examination:
    """What the nights show before any pair is run."""

    figure: GatedFigure
    tonight: Observation
    history: tuple[Observation, ...]  # the nights that the level may rest on
    recent: tuple[Observation, ...]  # those and the changed ones that nobody accepted
    level: Level | None  # None for a series with fewer than 7 nights
    accepted: AcceptedLevel | None
    step: EnvironmentStep | None
    suspicion: Suspicion | None
    are_conditions_new: bool  # tonight's conditions have no level of their own yet
    # level and accepted are of a gain that nobody accepted, because tonight looks worse than it
    is_provisional: bool = False
    open_regression: OpenRegression | None = None  # a regression that was named and has not ended
    baseline_run: str = ""  # the run whose build is the A of pairs; empty where there is none
    arm_bias: float = 0.0  # how much worse B is by the last weeks' null pairs, as a cost; 0 without any

    @property
    def direction(self) -> int:
        """What pairs test: 1 where tonight looked worse, -1 where it looked better.

        Under new conditions always 1: those that make all builds better may hide one that is worse. A regression that
        was named is looked for in every night.
        """
        is_better = self.suspicion is not None and self.suspicion.direction < 0
        return -1 if is_better and self.step is None and self.open_regression is None else 1

    @property
    def reconfirmation_limit(self) -> float | None:
        """How much worse B of one pair has to be, as a cost, to reconfirm a named regression; None: pairs decide anew.

        It is half of the regression beside the arms' bias, which every pair has whatever the builds. Pairs decide anew
        about another A, under new conditions, and about what nights found.
        """
        regression = self.open_regression
        if regression is None or not regression.by_pairs or self.step is not None:
            return None
        if regression.last.against != self.baseline_run:
            return None
        return self.arm_bias + excess_of(regression.last.change or 0.0, self.figure) / 2

    @property
    def is_back(self) -> bool:
        """Whether nights show that a regression is gone: none is suspected, and the last ones are nearer the level."""
        is_suspect = self.suspicion is not None and self.suspicion.direction > 0
        if self.open_regression is None or self.accepted is None or is_suspect:
            return False
        nights = [*self.recent, self.tonight][-DRIFT_NIGHTS:]
        off = median(night.cost - self.accepted.at(night.node) for night in nights)
        return off < excess_of(self.open_regression.last.change or 0.0, self.figure) / 2

    def without_build_excess(self, excess: float) -> Examination:
        """Return the same with the step of the conditions alone. excess: how much worse the build is, as a cost."""
        if self.step is None or abs(excess) <= MIN_CHANGE:
            return self
        return replace(self, step=replace(self.step, excess=self.step.excess - excess))

    @property
    def expected_level_a(self) -> Level | None:
        """What the A of a pair should reach: the accepted level, within the scatter of one night."""
        if self.level is None or self.accepted is None:
            return self.level
        accepted = self.accepted
        return replace(self.level, cost=accepted.at(self.tonight.node), n=accepted.n, since=accepted.since)

    @property
    def is_second_night_beyond(self) -> bool:
        """Whether the night before was beyond the level as well, by a node that can be trusted for both.

        Where the series runs on several nodes, one bad node explains two nights. Then both need other nodes, or three
        nights running.
        """
        if self.suspicion is None or not self.suspicion.is_clear or not self.recent:
            return False
        nights, direction = [*self.recent[-2:], self.tonight][::-1], self.suspicion.direction
        levels = (level_of(self.history, night.node) or self.level for night in nights)
        beyond = [is_beyond(level, night, direction) for level, night in zip(levels, nights, strict=True) if level]
        two = beyond[1] and nights[1].night != self.tonight.night
        nodes = {night.node for night in self.recent[-RECENT:]}
        is_elsewhere = len(nodes) == 1 or nights[1].node != self.tonight.node
        return two and (is_elsewhere or (len(beyond) > 2 and beyond[2]))


@dataclass(frozen=True)
class NightsBefore:
    """What tonight is compared with."""

    current: Sequence[Observation]  # nights under tonight's conditions
    earlier: Sequence[Observation] = ()  # those before the last change
    baseline: StoreEvent | None = None  # what somebody accepted
    replaced: Sequence[Observation] = ()  # nights before the baseline, which still show how far nights scatter
    last_cleared: str = ""  # when the last night began that pairs found unchanged
    unaccepted: Collection[str] = ()  # runs that were found changed; no level rests on them
    bad: Sequence[Observation] = ()  # earlier nights that were found bad
    gained: Sequence[Observation] = ()  # the nights of a lasting gain that nobody accepted
    gainers: Sequence[str] = ()  # the runs of `gained` that were found better
    open_regression: OpenRegression | None = None  # a regression that was named before and has not ended
    can_run_again: Callable[[str], bool] = lambda run_id: True  # whether a commit holds all of a run's build


def nights_before(
    era: Era, figure: GatedFigure, tonight: Observation, cleared: Collection[str], unaccepted: Collection[str],
    bad: Iterable[Point] = (), better: Collection[str] = (), open_regression: OpenRegression | None = None,
    can_run_again: Callable[[str], bool] = lambda run_id: True,
) -> NightsBefore:  # fmt: skip
    """Return the nights of the era, without those of tonight. cleared: runs that pairs found unchanged. bad: runs.

    better: those of the unaccepted runs that were found better. open_regression, can_run_again: as in NightsBefore.
    """
    current = [night for night in era.current(figure, tonight.began) if night.night != tonight.night]
    last = max((night.began for night in current if night.run_id in cleared), default="")
    former = {point.conditions for segment in era.segments[:-1] for point in segment.points}
    slow = observations((p for p in bad if p.conditions in former and is_since(era.baseline, p)), figure)
    candidates = [night for night in current if night.run_id in better or night.run_id not in unaccepted]
    places = [place for place, night in enumerate(candidates) if night.run_id in better]
    gained: Sequence[Observation] = candidates[places[0] : places[-1] + 1] if places else ()
    if len(places) < max(LASTING, STEADY * len(gained)):
        gained = ()
    # The nights whose level the baseline has replaced, of the newest segment that has enough of them.
    groups = ([p for p in segment.points if not is_since(era.baseline, p)] for segment in reversed(era.segments))
    replaced = next((nights for group in groups if len(nights := observations(group, figure)) >= MIN_NIGHTS), [])
    gainers = [night.run_id for night in gained if night.run_id in better]
    return NightsBefore(
        current, era.earlier(figure), era.baseline, replaced, last, unaccepted, slow, gained, gainers,
        open_regression, can_run_again,
    )  # fmt: skip


def examined(figure: GatedFigure, tonight: Observation, before: NightsBefore) -> Examination:
    """Return what the nights show about tonight. A fall from a gain that nobody accepted comes before the gain."""
    if before.gained:
        fallen = _against_gain(figure, tonight, before)
        is_open = before.open_regression is not None and before.open_regression.last.against in before.gainers
        if is_open or (fallen.suspicion is not None and fallen.suspicion.direction > 0):
            return fallen
    recent = sorted((*before.earlier, *before.current), key=lambda night: night.began)
    joined, current, earlier = (
        [night for night in nights if night.run_id not in before.unaccepted]
        for nights in (recent, before.current, before.earlier)
    )
    accepted = accepted_level(joined, figure, before.baseline, before.can_run_again)
    are_conditions_new = len(current) < MIN_NIGHTS
    level = level_of(joined if are_conditions_new else current, tonight.node)
    baseline_level = None
    scattered = None
    if level is None and accepted is not None and before.baseline is not None:
        scattered = level_of(before.replaced, tonight.node)
    if accepted is not None and scattered is not None:
        # the accepted level with the scatter of the nights that it replaced
        last = joined[-1].began[:10] if joined else accepted.since
        n, cost = max(accepted.n, len(joined)), accepted.at(tonight.node)
        level = baseline_level = replace(scattered, cost=cost, n=n, since=accepted.since, last=last)
    step = _step(earlier, current, tonight, baseline_level, before.bad) if earlier else None
    suspicion = None
    if level is not None:
        drifts_from = None if step and step.is_beyond else accepted
        suspicion = find_suspicion(level, drifts_from, recent, tonight, before.last_cleared)
    baseline_run = accepted.build if accepted else ""
    # also where an accepted change of conditions began a new level
    if before.open_regression and before.baseline is None:
        baseline_run = before.open_regression.last.against or baseline_run
    return Examination(
        figure, tonight, tuple(joined), tuple(recent), level, accepted, step, suspicion, are_conditions_new, False,
        before.open_regression, baseline_run,
    )  # fmt: skip


def _against_gain(figure: GatedFigure, tonight: Observation, before: NightsBefore) -> Examination:
    """Return what the nights show about tonight where the level is that of the gain.

    A is the build of the night that made the gain last: nights after it are judged by it, and never move it.
    """
    gained = before.gained
    recent = [night for night in before.current if night.began >= gained[0].began]
    level, accepted = level_of(gained, tonight.node), accepted_level(gained, figure, None)
    suspicion = find_suspicion(level, accepted, recent, tonight, before.last_cleared) if level else None
    baseline_run = first_build(before.gainers[:LASTING][::-1], before.can_run_again)
    return Examination(
        figure, tonight, tuple(gained), tuple(recent), level, accepted, None, suspicion, False, True,
        before.open_regression, baseline_run,
    )  # fmt: skip


def _step(
    earlier: Sequence[Observation], current: Sequence[Observation], tonight: Observation, baseline_level: Level | None,
    bad: Sequence[Observation],
) -> EnvironmentStep | None:  # fmt: skip
    """Return the step from the earlier nights to those under tonight's conditions; None where they have no level.

    baseline_level: the level of a baseline, where the nights since it are too few.
    """
    nights = (*current, tonight)
    levels = {node: level_of(earlier, node) for node in {night.node for night in nights}}
    before = levels[tonight.node] or baseline_level
    if before is None:
        return None
    costs = [night.cost - (levels[night.node] or before).cost for night in nights]
    excess = min(median_low(costs), median_high(costs), key=abs)  # one bad night of two moves their mean
    spread = math.sqrt(sum(min(1.0, VARIANCE_INFLATION * MEDIAN_VARIANCE / n) for n in (len(nights), before.n)))
    history = sorted((*earlier, *bad), key=lambda night: night.began)
    return EnvironmentStep(excess, before.scale * spread, before, len(nights), tuple(history))
