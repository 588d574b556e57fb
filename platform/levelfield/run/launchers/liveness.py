"""Checks that ranks are alive and make progress, from the files that their workers touch and write.

Only changes of the files count, in seconds that this process has watched (node/heartbeat_watch.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from levelfield.contracts.execution import Request
from levelfield.node.heartbeat_watch import HeartbeatWatch, WatchedTime
from levelfield.node.regular_files import MOST_BYTES, read_regular
from levelfield.rundir.follower import event_file_sizes


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the stopped rank.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Path(request.events_dir)
        self._written = 0
        self._started = False
        self._clock, self._watched = WatchedTime(lambda: time.monotonic()), 0.0
        self._heartbeats = HeartbeatWatch(self._events, request.heartbeat_seconds)
        self._last_progress = 0.0

    def hang(self, alive: list[int]) -> str | None:
        """Return the evidence line of a hang, or None. `alive`: ranks whose processes have not ended."""
        self._watched = self._clock.look()
        return self._heartbeats.silent(alive, self._watched) or self._no_progress()

    def _no_progress(self) -> str | None:
        sizes = event_file_sizes(self._events)
        if sum(sizes.values()) != self._written:
            self._written = sum(sizes.values())
            self._last_progress = self._watched
            self._started = self._started or self._has_steps(sizes)
        limit = self._request.step_seconds if self._started else self._request.start_seconds
        waited = self._watched - self._last_progress
        if waited <= limit:
            return None
        what = "step" if self._started else "first step"
        return f"no {what} was finished for {waited:.0f} s (limit {limit:g} s)"

    def _has_steps(self, names: Iterable[str]) -> bool:
        return any(b'"event":"step"' in read_regular(self._events / name, MOST_BYTES) for name in names)
