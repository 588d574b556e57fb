"""Checks that ranks are alive and make progress, from the files that their workers touch and write.

Only changes of the files count, in seconds that this process has watched. The files' own times have no part in it: the
clock of a file server may differ, and a clock may be set while a run goes on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from levelfield.contracts.execution import Request

LONGEST_LOOK = 1.0  # seconds that one look counts at most: a platform that stood still has not watched
Beat = tuple[int, bytes]


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the stopped rank.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Path(request.events_dir)
        self._written = 0
        self._started = False
        self._looked, self._watched = time.monotonic(), 0.0
        self._last_progress = 0.0
        self._beats: dict[int, tuple[Beat, float]] = {}

    def hang(self, alive: list[int]) -> str | None:
        """Return the evidence line of a hang, or None. `alive`: ranks whose processes have not ended."""
        self._watched += min(self._seconds_since_look(), LONGEST_LOOK)
        for rank in alive:
            silence = self._seconds_since_heartbeat(rank)
            if silence is not None and silence > self._request.heartbeat_seconds:
                limit = self._request.heartbeat_seconds
                return f"rank {rank} gave no heartbeat for {silence:.0f} s (limit {limit:g} s)"
        return self._no_progress()

    def _seconds_since_heartbeat(self, rank: int) -> float | None:
        beat = _beat(self._events / f"rank{rank}.alive")
        if beat is None:
            return None  # not started yet: the limit of the first step covers this
        if rank not in self._beats or self._beats[rank][0] != beat:
            self._beats[rank] = beat, self._watched
        return self._watched - self._beats[rank][1]

    def _seconds_since_look(self) -> float:
        before, self._looked = self._looked, time.monotonic()
        return self._looked - before

    def _no_progress(self) -> str | None:
        sizes = {p: p.stat().st_size for p in self._events.glob("rank*.jsonl")}
        if sum(sizes.values()) != self._written:
            self._written = sum(sizes.values())
            self._last_progress = self._watched
            self._started = self._started_steps(sizes)
        limit = self._request.step_seconds if self._started else self._request.start_seconds
        waited = self._watched - self._last_progress
        if waited <= limit:
            return None
        what = "step" if self._started else "first step"
        return f"no {what} was finished for {waited:.0f} s (limit {limit:g} s)"

    def _started_steps(self, sizes: dict[Path, int]) -> bool:
        return self._started or any(b'"event":"step"' in path.read_bytes() for path in sizes)


def _beat(path: Path) -> Beat | None:
    """Return what changes with every heartbeat: the file's time and its count. None before the first one."""
    try:
        with path.open("rb") as file:  # opened each time: a client of a file server then asks for the newest state
            return os.fstat(file.fileno()).st_mtime_ns, file.read(32)
    except OSError:
        return None
