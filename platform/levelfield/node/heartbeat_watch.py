"""How long ranks have been silent, from the files that their workers touch. It compares no clocks.

Only changes of a file count, in seconds that this process has watched. The file's own time has no part in it: the clock
of a file server may differ, and a clock may be set while a run goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Iterable, Tuple

from levelfield.node.regular_files import open_regular

MAX_LOOK_SECONDS = 1.0  # one look counts at most so much: a process that stood still has not watched
Beat = Tuple[int, bytes]  # the time and the content of a heartbeat's file


class WatchedTime:
    """The seconds that this process has watched. clock: a monotonic clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._last_look, self._watched = clock, clock(), 0.0

    def watched_seconds(self) -> float:
        """Count the time since the last look, and return the sum."""
        previous_look, self._last_look = self._last_look, self._clock()
        self._watched += min(self._last_look - previous_look, MAX_LOOK_SECONDS)
        return self._watched


class HeartbeatWatch:
    """Compares how long ranks give no heartbeat with a limit. events: the folder with the files of the heartbeats."""

    def __init__(self, events: Path, limit_seconds: float) -> None:
        self._events, self._limit = events, limit_seconds
        self._beats: dict[int, tuple[Beat, float]] = {}

    def silence_evidence(self, running_ranks: Iterable[int], watched_seconds: float) -> str | None:
        """Return a sentence about the first rank that is silent for too long; None without one."""
        for rank in running_ranks:
            try:
                # opening it makes the client of a file server ask for the newest state
                with open_regular(self._events / f"rank{rank}.alive") as file:
                    beat = os.fstat(file.fileno()).st_mtime_ns, file.read(32)  # both change with every heartbeat
            except OSError:
                continue  # not started yet: the limit of the first step covers this
            if rank not in self._beats or self._beats[rank][0] != beat:
                self._beats[rank] = beat, watched_seconds
            silence = watched_seconds - self._beats[rank][1]
            if silence > self._limit:
                return f"rank {rank} gave no heartbeat for {silence:.0f} s (limit {self._limit:g} s)"
        return None
