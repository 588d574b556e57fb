"""The clocks of a run's nodes against each other, by what each counted for the same window.

All ranks end each step together: an exchange holds them until the last one is there. So the nodes' windows last the
same, whatever their clocks show, and a clock that runs at another rate counts another time. Times of two nodes are not
compared, only what lasted between two events of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from levelfield.measure.raw_facts import NANOSECONDS

TOLERANCE = 0.02  # as for a worker's clock against the platform's
SLACK_SECONDS = 0.25


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
