"""How often a launcher looks at a run: often for a few ranks, and never so often that looking costs much."""

from __future__ import annotations

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
SHARE = 0.05  # of one core, which looking takes at most; a look of more than 50 ms takes more


def pause_after(look_seconds: float) -> float:
    """Return the seconds until the next look. look_seconds: what the last one took, of the processor."""
    return min(max(SHORTEST_SECONDS, look_seconds / SHARE), LONGEST_SECONDS)
