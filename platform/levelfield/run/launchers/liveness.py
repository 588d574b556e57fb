"""Checks that ranks are alive and make progress, and that nodes give signs, by the files that they touch and write.

Only changes of the files count, in seconds that this process has watched (node/heartbeat_watch.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from levelfield.contracts.execution import NodeWork, Request
from levelfield.node.heartbeat_watch import HeartbeatWatch, WatchedTime
from levelfield.node.regular_files import open_regular, read_regular
from levelfield.node.step_draw import StepDraw
from levelfield.rundir.follower import event_file_sizes

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
_NO_FILE = (-1, 0)  # the state of a file that is not there
_NO_SIGN = [_NO_FILE] * 3
MAX_CORE_SHARE = 0.05  # of one core for the checks; a check of more than 50 ms takes more, as pauses have a maximum


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the silent rank.
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

    def hang_evidence(self, alive_ranks: list[int]) -> str | None:
        """Return the evidence of a hang as a sentence; None without one. alive_ranks: those that have not ended.

        One of these ranks is told to sample a step of the window.
        """
        self._draw.look(alive_ranks)
        watched_seconds = self._clock.watched_seconds()
        if evidence := self._heartbeats.silence_evidence(alive_ranks, watched_seconds):
            return evidence
        sizes = event_file_sizes(self._events)
        if sum(sizes.values()) != self._event_bytes:
            self._event_bytes = sum(sizes.values())
            self._last_progress = watched_seconds
            self._has_step = self._has_step or self._contains(sizes, b'"event":"step"')
        limit_seconds = self._request.step_seconds if self._has_step else self._request.start_seconds
        waited_seconds = watched_seconds - self._last_progress
        if waited_seconds <= limit_seconds:
            return None
        awaited_step = "step" if self._has_step else "first step"
        stall_evidence = f"no {awaited_step} was finished for {waited_seconds:.0f} s (limit {limit_seconds:g} s)"
        nodes = self._request.nodes
        if self._has_step or len(nodes) < 2 or self._contains(sizes, b'"event":"weights"', b'"name":"joined"'):
            return stall_evidence
        # no rank recorded the event that follows when the process group is formed: name the rendezvous
        variables = nodes[0].processes[0].environment
        parts = (variables.get("MASTER_ADDR", ""), f"port {variables.get('MASTER_PORT', '')}")
        rendezvous = ", ".join(part for part in parts if part and "{" not in part)  # Slurm's nodes fill in the address
        first_node = nodes[0].name or "node0"
        if not rendezvous:
            return stall_evidence
        reason = f"no process group came up: every rank was given {rendezvous} of the first node, {first_node}"
        return f"{stall_evidence}; {reason}"

    def _contains(self, names: Iterable[str], *marks: bytes) -> bool:
        contents = (read_regular(self._events / name, "log") for name in names)
        return any(mark in content for content in contents for mark in marks)


class Silence(NamedTuple):
    """How long a node gave no sign."""

    seconds: float
    limit_seconds: float


class NodePulse:
    """Finds nodes that give no sign, in seconds that this process has watched.

    Each node watches its own ranks, so only a node without any sign is noticed here. A sign is a reading of its tools,
    a line of its record, or a heartbeat of its first rank: a tool may hang. The first sign may take as long as the
    first step, because an engine may prepare a node for minutes.
    """

    def __init__(self, request: Request) -> None:
        self._root, self._request = Path(request.events_dir).parent, request
        self._clock = WatchedTime(lambda: time.monotonic())
        self._signs: dict[int, tuple[list[tuple[int, int]], float]] = {}

    def has_sign(self, nodes: list[NodeWork]) -> bool:
        """Return whether any of the nodes has ever given a sign."""
        return any(self._sign(node) != _NO_SIGN for node in nodes)

    def silent_nodes(self, nodes: list[NodeWork]) -> dict[int, Silence]:
        """Return the silence of the nodes that are beyond their limit, by node rank."""
        watched_seconds, silences = self._clock.watched_seconds(), {}
        for node in nodes:
            node_rank, sign = node.node_rank, self._sign(node)
            if node_rank not in self._signs or self._signs[node_rank][0] != sign:
                self._signs[node_rank] = sign, watched_seconds
            limit_seconds = self._request.start_seconds if sign == _NO_SIGN else self._request.heartbeat_seconds
            seconds = watched_seconds - self._signs[node_rank][1]
            if seconds > limit_seconds:
                silences[node_rank] = Silence(seconds, limit_seconds)
        return silences

    def _sign(self, node: NodeWork) -> list[tuple[int, int]]:
        node_rank, first_rank = node.node_rank, node.processes[0].rank
        names = (
            f"telemetry/node{node_rank}.raw.jsonl",
            f"nodes/node{node_rank}.record.jsonl",
            f"events/rank{first_rank}.alive",
        )
        return [file_state(self._root / name) for name in names]


def file_state(path: Path) -> tuple[int, int]:
    """Return a file's size and time. Opening it makes the client of a file server ask for the newest ones."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            return status.st_size, status.st_mtime_ns
    except OSError:
        return _NO_FILE


def pause_after(check_seconds: float) -> float:
    """Return the seconds until the next check. check_seconds: the processor time of the last one."""
    return min(max(MIN_PAUSE_SECONDS, check_seconds / MAX_CORE_SHARE), MAX_PAUSE_SECONDS)


def wait_until(is_done: Callable[[], bool], seconds: float, poll_seconds: float = 0.2) -> bool:
    """Wait until `is_done` returns true, at most so many seconds. Return whether it did."""
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_seconds)
    return True
