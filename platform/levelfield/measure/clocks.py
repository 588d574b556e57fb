"""The clocks of a run: of a worker against the platform's, and of nodes against each other.

The platform looks for new events a few times a second. An event that was missing at one look and there at the next
happened between the two. So the platform knows the shortest and the longest time that can lie between two events,
however late it looked.

In each step, exchanges hold every rank until the last one is there. So no rank gets more than a step ahead, and the
nodes' windows last the same to within a step, whatever their clocks show. Times of two nodes are not compared, only
what lasted between two events of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from levelfield.measure.raw_facts import NANOSECONDS, StepRecord, records_by_rank
from levelfield.specs.case import Window

TOLERANCE = 0.02
# A busy machine may take a process off its core between reading the clock and writing the event.
SLACK_SECONDS = 0.25


@dataclass(frozen=True)
class Sighting:
    """When the platform noticed an event, on its monotonic clock. The event happened between the two looks."""

    last_absent_ns: int  # the last look that did not find it
    first_seen_ns: int  # the first look that did


@dataclass(frozen=True)
class WindowSighting:
    """The ends of the step before the window and of its last step, as the platform saw them."""

    begin: Sighting
    end: Sighting

    @property
    def seconds(self) -> tuple[float, float]:
        """The shortest and the longest time that the window may have lasted."""
        shortest = self.end.last_absent_ns - self.begin.first_seen_ns
        longest = self.end.first_seen_ns - self.begin.last_absent_ns
        return shortest / NANOSECONDS, longest / NANOSECONDS


def platform_clock_reasons(
    records: Iterable[StepRecord], sightings: Mapping[int, WindowSighting], window: Window
) -> list[str]:
    """Check that each rank's clock counts the window as the platform's does, within 2 % and a quarter of a second.

    A rank that the platform did not see is not checked.
    """
    reasons = []
    for rank, steps in records_by_rank(records).items():
        ends = {r.step: r.end_ns for r in steps}
        if rank in sightings and {window.first_step - 1, window.last_step} <= ends.keys():
            rank_seconds = (ends[window.last_step] - ends[window.first_step - 1]) / NANOSECONDS
            shortest, longest = sightings[rank].seconds
            low, high = rank_seconds * (1 - TOLERANCE), rank_seconds * (1 + TOLERANCE)
            if not (shortest - SLACK_SECONDS <= high and low <= longest + SLACK_SECONDS):
                lasted = f"{max(0.0, shortest):.2f} to {longest:.2f} s"
                reasons.append(
                    f"rank {rank} counted {rank_seconds:.2f} s for the window; on the platform's clock it lasted "
                    f"{lasted} (tolerance {TOLERANCE:.0%})"
                )
    return reasons


def node_clock_reasons(windows: Mapping[str, tuple[int, int]], steps: int) -> list[str]:
    """Return a sentence for each node whose window lasted longer or shorter than the nodes' median.

    windows: begin and end of the window on each node's own clock. steps: how many steps the window has. A stage of a
    pipeline may end a step before another stage does, so windows may differ by up to one step.
    """
    node_seconds = {name: (end - begin) / NANOSECONDS for name, (begin, end) in windows.items()}
    if len(node_seconds) < 2:
        return []
    median_seconds = median(node_seconds.values())
    allowed = TOLERANCE * median_seconds + SLACK_SECONDS + median_seconds / max(1, steps)
    return [
        f"{name} counted {seconds:.2f} s for the window, and the nodes' median is {median_seconds:.2f} s (allowed: "
        f"{allowed:.2f} s apart): one of the clocks runs at another rate"
        for name, seconds in node_seconds.items()
        if not abs(seconds - median_seconds) <= allowed
    ]
