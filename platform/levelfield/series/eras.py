"""Which nights tonight is compared with: those since the last accepted baseline or the last accepted step.

A change of conditions alone accepts nothing. The nights before it stay the reference until somebody accepts the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from levelfield.series.level import FEWEST
from levelfield.series.segments import Observation, Segment, observations
from levelfield.specs.record import Gated, Point, StoreEvent


@dataclass(frozen=True)
class Era:
    """The segments that lead to tonight, the oldest first. The last one holds tonight. baseline: accepted, or None."""

    segments: tuple[Segment, ...]
    baseline: StoreEvent | None

    @property
    def tonight(self) -> Segment:
        return self.segments[-1]

    def own(self, figure: Gated, before: str) -> list[Observation]:
        """Return the nights of tonight's segment before a time, since the baseline."""
        return self._since(self.tonight.points, figure, before)

    def earlier(self, figure: Gated) -> list[Observation]:
        """Return the nights of the segments before tonight's, since the baseline, in order of time."""
        points = (p for segment in self.segments[:-1] for p in segment.points)
        return self._since(sorted(points, key=lambda p: p.began), figure, "~")

    def replaced(self, figure: Gated) -> list[Observation]:
        """Return the nights whose level the baseline has replaced: they still show how far nights scatter.

        Of one segment: the newest that has enough of them.
        """
        if self.baseline is None:
            return []
        groups = ([p for p in segment.points if not self._counts(p)] for segment in reversed(self.segments))
        return next((found for group in groups if len(found := observations(group, figure)) >= FEWEST), [])

    def _since(self, points: Iterable[Point], figure: Gated, before: str) -> list[Observation]:
        return observations((p for p in points if p.began < before and self._counts(p)), figure)

    def _counts(self, point: Point) -> bool:
        held = self.baseline
        return held is None or point.run_id in held.runs or point.began > held.at


def era_of(segments: Sequence[Segment], index: int, events: Iterable[StoreEvent], when: str, run_id: str = "") -> Era:
    """Return the era of the segment at `index`, with the events that hold at the time `when`.

    run_id: of the night. An event that was made on its own evidence holds for it, although it came later.
    """
    events = [event for event in events if holds(event, when) or (run_id in event.runs and _is_open(event, when))]
    baseline = _newest_baseline(events)
    chain = [index]
    while (before := segments[chain[-1]].before) is not None:
        if _is_accepted(segments[before], segments[chain[-1]], events):
            break
        chain.append(before)
    return Era(tuple(segments[i] for i in reversed(chain)), baseline)


def held(events: Iterable[StoreEvent], when: str) -> StoreEvent | None:
    """Return the baseline that holds at a time; None where none was accepted, or it has expired."""
    return _newest_baseline([event for event in events if holds(event, when)])


def _newest_baseline(events: Iterable[StoreEvent]) -> StoreEvent | None:
    return max((event for event in events if event.kind == "baseline"), key=lambda event: event.at, default=None)


def holds(event: StoreEvent, when: str) -> bool:
    """Whether the event was made by the time `when` and has not expired. An end without a time is the whole day."""
    return event.at <= when and _is_open(event, when)


def _is_open(event: StoreEvent, when: str) -> bool:
    return event.until is None or when[: len(event.until)] <= event.until


def _is_accepted(before: Segment, after: Segment, events: Iterable[StoreEvent]) -> bool:
    """Whether a person accepted the step between these conditions."""
    steps = (event.data for event in events if event.kind == "environment-step")
    return any((data.get("before"), data.get("after")) == (before.conditions, after.conditions) for data in steps)
