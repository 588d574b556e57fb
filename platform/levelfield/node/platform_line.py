"""The line to the platform on standard input: its end, or a long silence, ends a node's work."""

from __future__ import annotations

import sys
import threading

from levelfield.node.rank_processes import Stop


class PlatformLine:
    """The line to the platform: it sends a line each second. Its end, or a long silence, stops this node."""

    def __init__(self, stop: Stop, limit_seconds: float) -> None:
        self._stop, self._limit = stop, limit_seconds
        self._lines, self._seen = 0, (0, 0.0)
        threading.Thread(target=self._read, daemon=True, name="platform").start()

    def silent(self, watched: float) -> str | None:
        """Return the evidence of a silence that is too long, in seconds that this process has watched."""
        if self._lines != self._seen[0]:
            self._seen = self._lines, watched
        silence = watched - self._seen[1]
        if silence > self._limit:
            return f"the platform sent nothing for {silence:.0f} s (limit {self._limit:g} s)"
        return None

    def _read(self) -> None:
        while sys.stdin.buffer.readline(65536):
            self._lines += 1
        self._stop.request("standard input was closed: the platform ended, or its connection did")
