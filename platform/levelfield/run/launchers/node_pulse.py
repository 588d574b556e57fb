"""Signs of life of the nodes' own parts, from files that grow every second. It compares no clocks.

A rank that is silent on a node whose own part still writes hangs. Where both are silent, the node is lost.
"""

from __future__ import annotations

import time
from pathlib import Path

from levelfield.contracts.execution import Request
from levelfield.node.heartbeat_watch import WatchedTime

FILES = ("telemetry/node{}.raw.jsonl", "nodes/node{}.record.jsonl")


class NodePulse:
    """How long each node's part has written nothing, in seconds that this process has watched."""

    def __init__(self, request: Request) -> None:
        self._root = Path(request.events_dir).parent
        self._nodes = {p.rank: node.node_rank for node in request.nodes for p in node.processes}
        self._limit = request.heartbeat_seconds
        self._clock = WatchedTime(lambda: time.monotonic())
        self._sizes: dict[int, tuple[tuple[int, ...], float]] = {}

    def look(self, ranks: list[int]) -> list[int]:
        """Return the nodes of these ranks whose own part is silent for longer than a heartbeat may be missing."""
        watched, silent = self._clock.look(), []
        for node in sorted({self._nodes[rank] for rank in ranks}):
            sizes = tuple(_size(self._root / file.format(node)) for file in FILES)
            if node not in self._sizes or self._sizes[node][0] != sizes:
                self._sizes[node] = sizes, watched
            if watched - self._sizes[node][1] > self._limit:
                silent.append(node)
        return silent


def _size(path: Path) -> int:
    """Return a file's size. It is opened: a client of a file server then asks for the newest one."""
    try:
        with path.open("rb") as file:
            return file.seek(0, 2)
    except OSError:
        return 0
