"""Checks that ranks are alive and make progress, and nodes give signs, from the files that they touch and write.

Only changes of the files count, in seconds that this process has watched (node/heartbeat_watch.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from levelfield.contracts.execution import NodeWork, Request
from levelfield.node.heartbeat_watch import HeartbeatWatch, WatchedTime
from levelfield.node.regular_files import open_regular, read_regular
from levelfield.node.step_draw import StepDraw
from levelfield.rundir.follower import event_file_sizes

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
MAX_CORE_SHARE = 0.05  # of one core for looking; a look of more than 50 ms takes more, as pauses have a maximum


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the stopped rank.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Path(request.events_dir)
        self._event_bytes = 0
        self._has_step = False
        self._clock = WatchedTime(lambda: time.monotonic())
        self._heartbeats = HeartbeatWatch(self._events, request.heartbeat_seconds)
        self._last_progress = 0.0
        self._draw = StepDraw(self._events)

    def hang(self, alive: list[int]) -> str | None:
        """Return the evidence line of a hang, or None. `alive`: ranks whose processes have not ended.

        One of these ranks is told to sample a step of the window.
        """
        self._draw.look(alive)
        watched = self._clock.watched_seconds()
        if evidence := self._heartbeats.silence_evidence(alive, watched):
            return evidence
        sizes = event_file_sizes(self._events)
        if sum(sizes.values()) != self._event_bytes:
            self._event_bytes = sum(sizes.values())
            self._last_progress = watched
            self._has_step = self._has_step or self._contains(sizes, b'"event":"step"')
        limit = self._request.step_seconds if self._has_step else self._request.start_seconds
        waited = watched - self._last_progress
        if waited <= limit:
            return None
        what = "step" if self._has_step else "first step"
        hang_evidence, nodes = f"no {what} was finished for {waited:.0f} s (limit {limit:g} s)", self._request.nodes
        if self._has_step or len(nodes) < 2 or self._contains(sizes, b'"event":"weights"', b'"name":"joined"'):
            return hang_evidence
        # none of several nodes recorded what follows on their group: where the ranks sought each other
        variables = nodes[0].processes[0].environment
        parts = (variables.get("MASTER_ADDR", ""), f"port {variables.get('MASTER_PORT', '')}")
        place = ", ".join(part for part in parts if part and "{" not in part)  # Slurm's nodes fill in the address
        first = nodes[0].name or "node0"
        group = f"; no process group came up: every rank was given {place} of the first node, {first}" if place else ""
        return hang_evidence + group

    def _contains(self, names: Iterable[str], *marks: bytes) -> bool:
        contents = (read_regular(self._events / name, "log") for name in names)
        return any(mark in content for content in contents for mark in marks)


class NodePulse:
    """How long each node has given no sign, in seconds that this process has watched.

    Each node watches its own ranks. Only a node that gives no sign at all is seen from outside. A sign is a reading of
    its tools, a line of its record, or a heartbeat of its first rank: a tool may hang.
    """

    def __init__(self, request: Request) -> None:
        self._root, self._limit = Path(request.events_dir).parent, request.heartbeat_seconds
        self._clock = WatchedTime(lambda: time.monotonic())
        self._signs: dict[int, tuple[list[tuple[int, int]], float]] = {}

    def silent_nodes(self, nodes: list[NodeWork]) -> dict[int, float]:
        """Return the nodes without a sign for longer than a heartbeat may be missing, and for how many seconds."""
        watched, silent_nodes = self._clock.watched_seconds(), {}
        for node in nodes:
            rank, first = node.node_rank, node.processes[0].rank
            names = (f"telemetry/node{rank}.raw.jsonl", f"nodes/node{rank}.record.jsonl", f"events/rank{first}.alive")
            sign = [file_state(self._root / name) for name in names]
            if rank not in self._signs or self._signs[rank][0] != sign:
                self._signs[rank] = sign, watched
            seconds = watched - self._signs[rank][1]
            if seconds > self._limit:
                silent_nodes[rank] = seconds
        return silent_nodes


def file_state(path: Path) -> tuple[int, int]:
    """Return a file's size and time. It is opened: a client of a file server then asks for the newest ones."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            return status.st_size, status.st_mtime_ns
    except OSError:
        return -1, 0


def pause_after(look_seconds: float) -> float:
    """Return the seconds until the next look. look_seconds: what the last one took, of the processor."""
    return min(max(MIN_PAUSE_SECONDS, look_seconds / MAX_CORE_SHARE), MAX_PAUSE_SECONDS)


def wait_for(done: Callable[[], bool], seconds: float, step_seconds: float = 0.2) -> bool:
    """Wait until it is done, but not longer. Return whether it is."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_seconds)
    return True
