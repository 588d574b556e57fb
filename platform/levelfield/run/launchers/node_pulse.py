"""Signs of life of nodes, from files that grow or change every second. It compares no clocks.

Each node watches its own ranks, and records when one hangs. Only a node that gives no sign at all is seen from outside.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from levelfield.contracts.execution import NodeWork, Request
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.node.regular_files import open_regular

Sign = tuple[tuple[int, int], ...]


class NodePulse:
    """How long each node has given no sign, in seconds that this process has watched.

    A sign is a reading of its tools, a line of its record, or a heartbeat of its first rank: a tool may hang.
    """

    def __init__(self, request: Request) -> None:
        self._root, self._limit = Path(request.events_dir).parent, request.heartbeat_seconds
        self._clock = WatchedTime(lambda: time.monotonic())
        self._signs: dict[int, tuple[Sign, float]] = {}

    def silent(self, nodes: list[NodeWork]) -> dict[int, float]:
        """Return the nodes without a sign for longer than a heartbeat may be missing, and for how many seconds."""
        watched, found = self._clock.look(), {}
        for node in nodes:
            sign = self._sign(node)
            if node.node_rank not in self._signs or self._signs[node.node_rank][0] != sign:
                self._signs[node.node_rank] = sign, watched
            seconds = watched - self._signs[node.node_rank][1]
            if seconds > self._limit:
                found[node.node_rank] = seconds
        return found

    def _sign(self, node: NodeWork) -> Sign:
        rank, first = node.node_rank, node.processes[0].rank
        names = (f"telemetry/node{rank}.raw.jsonl", f"nodes/node{rank}.record.jsonl", f"events/rank{first}.alive")
        return tuple(_state(self._root / name) for name in names)


def _state(path: Path) -> tuple[int, int]:
    """Return a file's size and time. It is opened: a client of a file server then asks for the newest ones."""
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            return found.st_size, found.st_mtime_ns
    except OSError:
        return -1, 0
