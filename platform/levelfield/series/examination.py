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
    MIN_LEVEL_NIGHTS,
    AcceptedLevel,
    Level,
    accepted_level,
    first_rerunnable_run,
    level_of,
)
from levelfield.series.segments import Observation, Segment, excess_of, observations
from levelfield.series.trigger import DRIFT_NIGHTS, VARIANCE_INFLATION, Suspicion, find_suspicion, is_beyond
from levelfield.specs.record import GatedFigure, Point, StoreEvent

_Z_OF_STEP = 3.0  # a step is tested in every night until it is accepted
Z_OF_LONE_STEP = 3.5  # no other series with the same change supports or excuses it
RECENT_NIGHTS = 7  # nights that show on which nodes a series runs
# A gain is a provisional level with so many nights found better, and with so large a share of the nights since.
MIN_GAIN_NIGHTS, MIN_GAIN_SHARE = 7, 1 / 2


@dataclass(frozen=True)
class Era:
    """The segments that lead to tonight, the oldest first. The last one has tonight."""

    segments: tuple[Segment, ...]
    baseline: StoreEvent | None  # the accepted one; None without one

    def current_nights(self, figure: GatedFigure, end_time: str) -> list[Observation]:
        """Return the nights of tonight's segment before a time, since the baseline."""
        points = self.segments[-1].points
        return observations((p for p in points if p.began < end_time and is_of_baseline(self.baseline, p)), figure)

    def earlier_nights(self, figure: GatedFigure) -> list[Observation]:
        """Return the nights of the segments before tonight's, since the baseline, in order of time."""
        points = (p for segment in self.segments[:-1] for p in segment.points if is_of_baseline(self.baseline, p))
        return observations(sorted(points, key=lambda p: p.began), figure)


def is_of_baseline(baseline: StoreEvent | None, point: Point) -> bool:
    """Whether the point belongs to the level that a baseline accepts: it is of its evidence, or later."""
    return baseline is None or point.run_id in baseline.runs or point.began > baseline.at


def era_of(segments: Sequence[Segment], index: int, events: Iterable[StoreEvent], time: str, run_id: str = "") -> Era:
    """Return the era of the segment at `index`, with the events that hold at the time `time`.

    run_id: of the night. An event whose evidence has this run holds too, although it came later.
    """
    events = [event for event in events if is_in_force(event, time, run_id)]
    accepted = [(e.data.get("before"), e.data.get("after")) for e in events if e.kind == "environment-step"]
    chain = [index]
    while (previous := segments[chain[-1]].previous_index) is not None:
        if (segments[previous].conditions, segments[chain[-1]].conditions) in accepted:
            break
        chain.append(previous)
    return Era(tuple(segments[i] for i in reversed(chain)), standing_baseline(events, time, run_id))


def standing_baseline(events: Iterable[StoreEvent], time: str, run_id: str = "") -> StoreEvent | None:
    """Return the baseline that holds at a time; None where none was accepted, or it has expired."""
    baselines = (event for event in events if event.kind == "baseline" and is_in_force(event, time, run_id))
    return max(baselines, key=lambda event: event.at, default=None)


def is_in_force(event: StoreEvent, time: str, run_id: str = "") -> bool:
    """Whether the event was made by the time `time`, or has this run as evidence, and has not expired.

    `until` may be a date without a time: the event holds that whole day.
    """
    is_open = event.until is None or time[: len(event.until)] <= event.until
    return is_open and (event.at <= time or run_id in event.runs)


@dataclass(frozen=True)
class EnvironmentStep:
    """How far the nights under the new conditions are from the level before."""

    excess: float  # as a cost
    standard_error: float  # of the excess
    level_before: Level
    night_count: int  # how many there are under the new conditions
    history: tuple[Observation, ...] = ()  # nights before the change, also bad ones: such nights may come again

    @property
    def is_beyond(self) -> bool:
        return abs(self.excess) > self.limit()

    def limit(self, z: float = _Z_OF_STEP) -> float:
        return max(MIN_CHANGE, t_quantile(normal_tail(z), self.level_before.freedom) * self.standard_error)


@dataclass(frozen=True)
class Examination:
    """What the nights show before any pair is run."""

    figure: GatedFigure
    tonight: Observation
    history: tuple[Observation, ...]  # the nights that the level may rest on
    recent: tuple[Observation, ...]  # `history`, and nights found changed that nobody accepted
    level: Level | None  # None for a series with fewer than 7 nights
    accepted_level: AcceptedLevel | None
    step: EnvironmentStep | None
    suspicion: Suspicion | None
    are_conditions_new: bool  # tonight's conditions have no level of their own yet
    # `level` and `accepted_level` are those of a gain that nobody accepted, because tonight looks worse than it
    is_provisional: bool = False
    open_regression: OpenRegression | None = None  # a regression that was named and has not ended
    baseline_run: str = ""  # the run whose build is the A of pairs; empty where there is none
    arm_bias: float = 0.0  # how much worse B is by the last weeks' null pairs, as a cost; 0 without any

    @property
    def direction(self) -> int:
        """The direction that pairs test: 1 where tonight looked worse, -1 where it looked better.

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
        if regression is None or not regression.is_by_pairs or self.step is not None:
            return None
        if regression.last_finding.against != self.baseline_run:
            return None
        return self.arm_bias + excess_of(regression.last_finding.change or 0.0, self.figure) / 2

    @property
    def is_regression_gone(self) -> bool:
        """Whether nights show that a regression is gone: none is suspected, and the last ones are nearer the level."""
        is_suspect = self.suspicion is not None and self.suspicion.direction > 0
        if self.open_regression is None or self.accepted_level is None or is_suspect:
            return False
        nights = [*self.recent, self.tonight][-DRIFT_NIGHTS:]
        distance = median(night.cost - self.accepted_level.cost_on(night.node) for night in nights)
        return distance < excess_of(self.open_regression.last_finding.change or 0.0, self.figure) / 2

    def without_build_excess(self, excess: float) -> Examination:
        """Return the examination with the conditions' step alone. excess: how much worse the build is, as a cost."""
        if self.step is None or abs(excess) <= MIN_CHANGE:
            return self
        return replace(self, step=replace(self.step, excess=self.step.excess - excess))

    @property
    def expected_level_a(self) -> Level | None:
        """The level that the A of a pair should reach: the accepted one, with the scatter of one night."""
        if self.level is None or self.accepted_level is None:
            return self.level
        accepted = self.accepted_level
        return replace(
            self.level, cost=accepted.cost_on(self.tonight.node), night_count=accepted.night_count, since=accepted.since
        )

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
        are_two_beyond = beyond[1] and nights[1].night != self.tonight.night
        nodes = {night.node for night in self.recent[-RECENT_NIGHTS:]}
        is_elsewhere = len(nodes) == 1 or nights[1].node != self.tonight.node
        return are_two_beyond and (is_elsewhere or (len(beyond) > 2 and beyond[2]))


@dataclass(frozen=True)
class NightsBefore:
    """What tonight is compared with."""

    current_nights: Sequence[Observation]  # under tonight's conditions
    earlier_nights: Sequence[Observation] = ()  # before the last change of conditions
    baseline: StoreEvent | None = None  # the accepted one
    replaced_nights: Sequence[Observation] = ()  # before the baseline; they still show how far nights scatter
    last_cleared_begin: str = ""  # when the last night that pairs found unchanged began
    unaccepted_runs: Collection[str] = ()  # ids of runs that were found changed; no level rests on them
    bad_nights: Sequence[Observation] = ()  # earlier ones that were found bad
    gain_nights: Sequence[Observation] = ()  # of a lasting gain that nobody accepted
    gain_runs: Sequence[str] = ()  # ids of the runs of the gain that were found better
    open_regression: OpenRegression | None = None  # a regression that was named before and has not ended
    can_run_again: Callable[[str], bool] = lambda run_id: True  # whether a commit holds all of a run's build


def nights_before(
    era: Era, figure: GatedFigure, tonight: Observation, cleared_runs: Collection[str],
    unaccepted_runs: Collection[str], bad_points: Iterable[Point] = (), better_runs: Collection[str] = (),
    open_regression: OpenRegression | None = None,
    can_run_again: Callable[[str], bool] = lambda run_id: True,
) -> NightsBefore:  # fmt: skip
    """Return the nights of the era, without those of tonight. cleared_runs: runs that pairs found unchanged.

    bad_points: points of nights that were found bad. better_runs: those of the unaccepted runs that were found better.
    open_regression, can_run_again: as in NightsBefore.
    """
    current = [night for night in era.current_nights(figure, tonight.began) if night.night != tonight.night]
    last_cleared_begin = max((night.began for night in current if night.run_id in cleared_runs), default="")
    earlier_conditions = {point.conditions for segment in era.segments[:-1] for point in segment.points}
    bad_nights = observations(
        (p for p in bad_points if p.conditions in earlier_conditions and is_of_baseline(era.baseline, p)), figure
    )
    candidates = [night for night in current if night.run_id in better_runs or night.run_id not in unaccepted_runs]
    better_indices = [index for index, night in enumerate(candidates) if night.run_id in better_runs]
    gain_nights: Sequence[Observation] = (
        candidates[better_indices[0] : better_indices[-1] + 1] if better_indices else ()
    )
    if len(better_indices) < max(MIN_GAIN_NIGHTS, MIN_GAIN_SHARE * len(gain_nights)):
        gain_nights = ()
    # The nights whose level the baseline has replaced, of the newest segment that has enough of them.
    groups = ([p for p in segment.points if not is_of_baseline(era.baseline, p)] for segment in reversed(era.segments))
    replaced_nights = next(
        (nights for group in groups if len(nights := observations(group, figure)) >= MIN_LEVEL_NIGHTS), []
    )
    gain_runs = [night.run_id for night in gain_nights if night.run_id in better_runs]
    return NightsBefore(
        current, era.earlier_nights(figure), era.baseline, replaced_nights, last_cleared_begin, unaccepted_runs,
        bad_nights, gain_nights, gain_runs, open_regression, can_run_again,
    )  # fmt: skip


def examine_figure(figure: GatedFigure, tonight: Observation, reference_nights: NightsBefore) -> Examination:
    """Return what the nights show about tonight. A fall from a gain that nobody accepted counts before the gain."""
    if reference_nights.gain_nights:
        fallen = _examine_against_gain(figure, tonight, reference_nights)
        is_open = (
            reference_nights.open_regression is not None
            and reference_nights.open_regression.last_finding.against in reference_nights.gain_runs
        )
        if is_open or (fallen.suspicion is not None and fallen.suspicion.direction > 0):
            return fallen
    recent = sorted((*reference_nights.earlier_nights, *reference_nights.current_nights), key=lambda night: night.began)
    level_nights, current_nights, earlier_nights = (
        [night for night in nights if night.run_id not in reference_nights.unaccepted_runs]
        for nights in (recent, reference_nights.current_nights, reference_nights.earlier_nights)
    )
    accepted = accepted_level(level_nights, figure, reference_nights.baseline, reference_nights.can_run_again)
    are_conditions_new = len(current_nights) < MIN_LEVEL_NIGHTS
    level = level_of(level_nights if are_conditions_new else current_nights, tonight.node)
    baseline_level = None
    replaced_level = None
    if level is None and accepted is not None and reference_nights.baseline is not None:
        replaced_level = level_of(reference_nights.replaced_nights, tonight.node)
    if accepted is not None and replaced_level is not None:
        # the accepted level with the scatter of the nights that it replaced
        last = level_nights[-1].began[:10] if level_nights else accepted.since
        n, cost = max(accepted.night_count, len(level_nights)), accepted.cost_on(tonight.node)
        baseline_level = replace(replaced_level, cost=cost, night_count=n, since=accepted.since, last_night=last)
        level = baseline_level
    step = (
        _environment_step(earlier_nights, current_nights, tonight, baseline_level, reference_nights.bad_nights)
        if earlier_nights
        else None
    )
    suspicion = None
    if level is not None:
        drifts_from = None if step and step.is_beyond else accepted
        suspicion = find_suspicion(level, drifts_from, recent, tonight, reference_nights.last_cleared_begin)
    baseline_run = accepted.build_run if accepted else ""
    # also where an accepted change of conditions began a new level
    if reference_nights.open_regression and reference_nights.baseline is None:
        baseline_run = reference_nights.open_regression.last_finding.against or baseline_run
    return Examination(
        figure, tonight, tuple(level_nights), tuple(recent), level, accepted, step, suspicion, are_conditions_new,
        False, reference_nights.open_regression, baseline_run,
    )  # fmt: skip


def _examine_against_gain(figure: GatedFigure, tonight: Observation, reference_nights: NightsBefore) -> Examination:
    """Return what the nights show about tonight where the level is that of the gain.

    A is the build of the night that made the gain last: nights after it are judged by it, and never move it.
    """
    gain_nights = reference_nights.gain_nights
    recent = [night for night in reference_nights.current_nights if night.began >= gain_nights[0].began]
    level, accepted = level_of(gain_nights, tonight.node), accepted_level(gain_nights, figure, None)
    suspicion = find_suspicion(level, accepted, recent, tonight, reference_nights.last_cleared_begin) if level else None
    baseline_run = first_rerunnable_run(
        reference_nights.gain_runs[:MIN_GAIN_NIGHTS][::-1], reference_nights.can_run_again
    )
    return Examination(
        figure, tonight, tuple(gain_nights), tuple(recent), level, accepted, None, suspicion, False, True,
        reference_nights.open_regression, baseline_run,
    )  # fmt: skip


def _environment_step(
    earlier_nights: Sequence[Observation], current_nights: Sequence[Observation], tonight: Observation,
    baseline_level: Level | None, bad_nights: Sequence[Observation],
) -> EnvironmentStep | None:  # fmt: skip
    """Return the step from the earlier nights to those under tonight's conditions; None where they have no level.

    baseline_level: the level of a baseline, where the nights since it are too few.
    """
    nights = (*current_nights, tonight)
    levels = {node: level_of(earlier_nights, node) for node in {night.node for night in nights}}
    level_before = levels[tonight.node] or baseline_level
    if level_before is None:
        return None
    costs = [night.cost - (levels[night.node] or level_before).cost for night in nights]
    excess = min(median_low(costs), median_high(costs), key=abs)  # one bad night of two moves their mean
    spread = math.sqrt(
        sum(min(1.0, VARIANCE_INFLATION * MEDIAN_VARIANCE / n) for n in (len(nights), level_before.night_count))
    )
    history = sorted((*earlier_nights, *bad_nights), key=lambda night: night.began)
    return EnvironmentStep(excess, level_before.scale * spread, level_before, len(nights), tuple(history))
