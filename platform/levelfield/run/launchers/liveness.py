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

WATCHED_FILES = 8  # of events, in each look; the others are opened before a verdict
SECONDS_PER_NODE = 0.01  # between two looks at the signs of all nodes: a file server answers for each
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
_NO_FILE = (-1, 0)  # the state of a file that is not there
MAX_CORE_SHARE = 0.05  # of one core for the checks; a check of more than 50 ms takes more, as pauses have a maximum


class Liveness:
    """Two limits of the case: seconds without a rank's heartbeat, and seconds without a finished step.

    A thread gives the heartbeat, so a rank that waits for another still has one. The evidence names the silent rank.
    All ranks of a training take part in each step, so the events of a few show it. A run has thousands on a file
    server: the others' are opened after half of the limit, and count where they have grown at its end.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._events = Path(request.events_dir)
        names = [f"rank{process.rank}.jsonl" for node in request.nodes for process in node.processes]
        self._watched_names = names[:: max(1, len(names) // WATCHED_FILES)]
        self._other_names = sorted({*names} - {*self._watched_names})
        self._sizes: dict[str, int] = {}
        self._has_step, self._is_doubtful = False, False  # is_doubtful: half of the limit has passed
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
        if grown_names := self._grown_files(self._watched_names):
            self._last_progress, self._is_doubtful = watched_seconds, False
            self._has_step = self._has_step or self._contains(grown_names, b'"event":"step"')
        limit_seconds = self._request.step_seconds if self._has_step else self._request.start_seconds
        waited_seconds = watched_seconds - self._last_progress
        if waited_seconds > limit_seconds / 2 and not self._is_doubtful:
            self._is_doubtful = True
            self._grown_files(self._other_names)
        if waited_seconds <= limit_seconds:
            return None
        if self._grown_files(self._other_names):
            self._last_progress, self._is_doubtful = watched_seconds, False
            return None
        awaited_step = "step" if self._has_step else "first step"
        stall_evidence = f"no {awaited_step} was finished for {waited_seconds:.0f} s (limit {limit_seconds:g} s)"
        nodes = self._request.nodes
        if self._has_step or len(nodes) < 2 or self._contains(self._sizes, b'"event":"weights"', b'"name":"joined"'):
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

    def _grown_files(self, names: Iterable[str]) -> list[str]:
        """Open files of events, and return those that have other bytes than when they were opened last."""
        sizes = {name: size for name in names if (size := file_state(self._events / name)[0]) >= 0}
        grown_names = [name for name, size in sizes.items() if self._sizes.get(name) != size]
        self._sizes |= sizes
        return grown_names

    def _contains(self, names: Iterable[str], *marks: bytes) -> bool:
        contents = (read_regular(self._events / name, "log") for name in names)
        return any(mark in content for content in contents for mark in marks)


class Silence(NamedTuple):
    """How long a node gave no sign."""

    seconds: float
    limit_seconds: float


class NodePulse:
    """Finds nodes that give no sign, in seconds that this process has watched.

    Each node watches its own ranks, so only a node without any sign is noticed here. A sign is a heartbeat of its first
    rank, a reading of its tools, which may hang, or a line of its record. The first sign may take as long as the first
    step, because an engine may prepare a node for minutes. The more nodes, the rarer are the looks.
    """

    def __init__(self, request: Request) -> None:
        self._root, self._request = Path(request.events_dir).parent, request
        self._clock = WatchedTime(lambda: time.monotonic())
        self._states: dict[Path, tuple[int, int]] = {}
        self._last_signs: dict[int, float] = {}  # the watched seconds of each node's last sign
        self._silences: dict[int, Silence] = {}
        self._has_sign, self._next_look = False, 0.0

    def has_sign(self, nodes: Iterable[NodeWork]) -> bool:
        """Return whether any of the nodes has ever given a sign."""
        files = (path for node in nodes for path in self._sign_files(node))
        self._has_sign = self._has_sign or any(file_state(path) != _NO_FILE for path in files)
        return self._has_sign

    def silent_nodes(self, nodes: list[NodeWork]) -> dict[int, Silence]:
        """Return the silence of the nodes that are beyond their limit, by node rank."""
        watched_seconds = self._clock.watched_seconds()
        if watched_seconds < self._next_look:
            return self._silences
        self._next_look, self._silences = watched_seconds + SECONDS_PER_NODE * len(nodes), {}
        for node in nodes:
            if any(map(self._has_changed, self._sign_files(node))):  # the first change is enough
                self._last_signs[node.node_rank] = watched_seconds
            last_sign = self._last_signs.get(node.node_rank)
            limit_seconds = self._request.start_seconds if last_sign is None else self._request.heartbeat_seconds
            seconds = watched_seconds - (last_sign or 0.0)
            if seconds > limit_seconds:
                self._silences[node.node_rank] = Silence(seconds, limit_seconds)
        return self._silences

    def _sign_files(self, node: NodeWork) -> tuple[Path, ...]:
        return (
            self._root / f"events/rank{node.processes[0].rank}.alive",
            self._root / f"telemetry/node{node.node_rank}.raw.jsonl",
            self._root / f"nodes/node{node.node_rank}.record.jsonl",
        )

    def _has_changed(self, path: Path) -> bool:
        """Return whether a file has another size or time than at its last look; at the first, whether it is there."""
        state = file_state(path)
        before, self._states[path] = self._states.get(path, _NO_FILE), state
        return state != before


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
