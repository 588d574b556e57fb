"""Checks that ranks are alive and make progress, from the files that their workers touch and write."""

from __future__ import annotations

import time
from pathlib import Path

from levelfield.contracts.execution import Request


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the stopped rank.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Path(request.events_dir)
        self._written = 0
        self._started = False
        self._last_progress = time.monotonic()

    def hang(self, alive: list[int]) -> str | None:
        """Return the evidence line of a hang, or None. `alive`: ranks whose processes have not ended."""
        for rank in alive:
            silence = self._seconds_since_heartbeat(rank)
            if silence is not None and silence > self._request.heartbeat_seconds:
                limit = self._request.heartbeat_seconds
                return f"rank {rank} gave no heartbeat for {silence:.0f} s (limit {limit:g} s)"
        return self._no_progress()

    def _seconds_since_heartbeat(self, rank: int) -> float | None:
        try:
            return time.time() - (self._events / f"rank{rank}.alive").stat().st_mtime
        except OSError:
            return None  # not started yet: the limit of the first step covers this

    def _no_progress(self) -> str | None:
        sizes = {p: p.stat().st_size for p in self._events.glob("rank*.jsonl")}
        if sum(sizes.values()) != self._written:
            self._written = sum(sizes.values())
            self._last_progress = time.monotonic()
            self._started = self._started_steps(sizes)
        limit = self._request.step_seconds if self._started else self._request.start_seconds
        waited = time.monotonic() - self._last_progress
        if waited <= limit:
            return None
        what = "step" if self._started else "first step"
        return f"no {what} was finished for {waited:.0f} s (limit {limit:g} s)"

    def _started_steps(self, sizes: dict[Path, int]) -> bool:
        return self._started or any(b'"event":"step"' in path.read_bytes() for path in sizes)
