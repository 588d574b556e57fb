"""The clocks of a run: of a worker against the platform's, and of nodes against each other.

The platform looks for new events a few times a second. An event that was missing at one look and there at the next
happened between the two, so the time between two events has a least and a most, however late the platform looked.

All ranks end each step together: an exchange holds them until the last one is there. So the nodes' windows last the
same, whatever their clocks show. Times of two nodes are not compared, only what lasted between two events of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from levelfield.measure.raw_facts import NANOSECONDS, StepRecord, by_rank
from levelfield.specs.case import Window

TOLERANCE = 0.02
# A busy machine may take a process off its core between reading the clock and writing the event.
SLACK_SECONDS = 0.25


@dataclass(frozen=True)
class Sighting:
    """An event seen by the platform, on its monotonic clock: it was not there at `after_ns`, and was at `seen_ns`."""

    after_ns: int
    seen_ns: int


@dataclass(frozen=True)
class WindowSighting:
    """The ends of the step before the window and of its last step, as the platform saw them."""

    begin: Sighting
    end: Sighting

    @property
    def seconds(self) -> tuple[float, float]:
        """How long the window lasted at least and at most."""
        least, most = self.end.after_ns - self.begin.seen_ns, self.end.seen_ns - self.begin.after_ns
        return least / NANOSECONDS, most / NANOSECONDS


def platform_clock_reasons(
    records: Iterable[StepRecord], seen: Mapping[int, WindowSighting], window: Window
) -> list[str]:
    """Check that each rank's clock counts the window as the platform's does, within 2 % and a quarter of a second.

    A rank that the platform did not see is not checked.
    """
    reasons = []
    for rank, steps in by_rank(records).items():
        ends = {r.step: r.end_ns for r in steps}
        if rank in seen and {window.first_step - 1, window.last_step} <= ends.keys():
            counted = (ends[window.last_step] - ends[window.first_step - 1]) / NANOSECONDS
            least, most = seen[rank].seconds
            low, high = counted * (1 - TOLERANCE), counted * (1 + TOLERANCE)
            if not (least - SLACK_SECONDS <= high and low <= most + SLACK_SECONDS):
                lasted = f"{max(0.0, least):.2f} to {most:.2f} s"
                reasons.append(
                    f"rank {rank} counted {counted:.2f} s for the window; on the platform's clock it lasted {lasted} "
                    f"(tolerance {TOLERANCE:.0%})"
                )
    return reasons


def node_clock_reasons(windows: Mapping[str, tuple[int, int]], steps: int) -> list[str]:
    """Return a sentence for each node that counted another time than the nodes' median.

    windows: begin and end of the window on each node's own clock. steps: how many it has. A stage of a pipeline ends a
    step before another, so a window's ends may move by up to one step each.
    """
    counted = {name: (end - begin) / NANOSECONDS for name, (begin, end) in windows.items()}
    if len(counted) < 2:
        return []
    middle = median(counted.values())
    allowed = TOLERANCE * middle + SLACK_SECONDS + middle / max(1, steps)
    return [
        f"{name} counted {seconds:.2f} s for the window, and the nodes' median is {middle:.2f} s (allowed: "
        f"{allowed:.2f} s apart): one of the clocks runs at another rate"
        for name, seconds in counted.items()
        if not abs(seconds - middle) <= allowed
    ]
