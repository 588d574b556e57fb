"""The nodes of a run as the platform sees them: their connections, frames and records, until the last has ended.

The first cause decides how the run ended; then the other nodes are ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, NodeWork, ProcessEnd, Watch
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.node.rank_processes import KILL_SECONDS, SETTLE_SECONDS, TERMINATE_SECONDS
from levelfield.run.launchers.launched_ranks import evidence_of, first_failure, node_ranks_ends
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.node_records import disk_remark, last_fields
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import Connection, explained, printable_text, wait_for_output

# What the node's last word means for the run, and for the node.
_MEANINGS: Mapping[str, tuple[Cause, NodeWord]] = {
    "exited": ("exited", "ended"),
    "rank-failed": ("rank-failed", "failed"),
    "hang": ("hang", "failed"),
    "launch-error": ("launch-error", "failed"),
    "port-taken": ("launch-error", "failed"),
    "name-unknown": ("launch-error", "failed"),
    "node-differs": ("node-differs", "differs"),
    "device-taken": ("device-taken", "device-taken"),
    "stopped": ("cancelled", "cancelled"),
    "fault": ("node-lost", "lost"),
}

POLL_SECONDS = 0.1
PARTS_AT_ONCE = 16
COMPLETE_SECONDS = 5.0  # that a connection may stay open after its node sent everything
PACE_SECONDS = 1e-4  # for each node: of a thousand, one sends at any time, and a turn looks at all of them
LINE_SECONDS = 1.0  # between the lines that show a node that the platform is there
# A node that is stopped ends its ranks, writes its last word and sends the rest.
STOP_SECONDS = SETTLE_SECONDS + TERMINATE_SECONDS + KILL_SECONDS + 10.0


class NodeRun:
    """A node while it runs."""

    def __init__(self, work: NodeWork, root: Path, connection: Connection, clock: WatchedTime) -> None:
        self.work, self.connection, self._root, self._clock = work, connection, root, clock
        self.name = work.name or work.address
        self.stream = NodeStream(root, work.node_rank, [process.rank for process in work.processes])
        self.is_open, self.is_stopped = True, False
        self.fault: str | None = None
        self._frames, self._last_frame = 0, clock.look()

    def receive(self) -> None:
        """Take what came. A broken stream, and the end of the stream, close this node."""
        try:
            for _ in range(PARTS_AT_ONCE):  # then the other nodes' turn comes, however much this one sends
                if not (part := self.connection.read()):
                    break
                if not self.stream.is_complete():  # what comes after the last frame, or never, changes nothing
                    self.stream.receive(part)
        except BrokenStream as error:
            self.fault = f"{self.name} sent no proper frame: {error}"
            self.connection.end()
        if part is None or self.fault:
            self.is_open = not (self.fault or self.connection.has_ended())

    def silence(self) -> float:
        """Return for how many watched seconds no frame came."""
        now = self._clock.look()
        if self.stream.frames != self._frames:
            self._frames, self._last_frame = self.stream.frames, now
        return now - self._last_frame

    def lose(self, reason: str) -> None:
        """End the connection. A node that sent everything is not lost by it."""
        self.fault, self.is_open = None if self.stream.is_complete() else reason, False
        self.connection.end()

    def last_word(self) -> Mapping[str, Any]:
        """Return the last line of the node's record where it wrote one; an empty one before."""
        return last_fields(self._root, self.work.node_rank) or {}

    def ends(self) -> tuple[ProcessEnd, ...]:
        """Return how each rank ended. One of a lost node has no values."""
        return node_ranks_ends(self.work, self.last_word().get("ends", ()))

    def memory_kills(self) -> tuple[int, str | None]:
        last = self.last_word()
        number = last.get("oom_kills")
        if not isinstance(number, int) or isinstance(number, bool) or not number > 0:
            return 0, None
        return number, f"{self.name}: {printable_text(str(last.get('oom_evidence')), 500)}"

    def finding(self) -> tuple[Cause, NodeEnd]:
        """Return what the end of a closed node means for the run, and its end."""
        last = self.last_word()
        cause: Cause
        word: NodeWord
        detail = self.fault
        if self.fault:
            cause, word = "node-lost", "lost"
        elif not last:
            cause, word = "node-lost", "lost"
            detail = explained(self.name, self.connection.code, self.connection.complaint)
            if self.stream.frames == 0:
                cause, word = "unreachable", "unreachable"
            elif self.is_stopped:
                cause, word = "exited", "stopped"
        else:
            cause, word = _MEANINGS.get(str(last.get("cause")), ("node-lost", "lost"))
            if cause == "cancelled" and self.is_stopped:
                cause, word = "exited", "stopped"
            elif last.get("cause") == "rank-failed" and (failed := first_failure(self.ends())):
                detail = f"{self.name}: {evidence_of(failed)}{disk_remark(last)}"
            elif evidence := last.get("evidence"):
                detail = f"{self.name}: {printable_text(str(evidence), 500)}"
        return cause, NodeEnd(self.work.node_rank, self.name, word, detail)


class Supervision:
    """The watch over all nodes of a run."""

    def __init__(self, nodes: Sequence[NodeRun], liveness: Liveness, silence_seconds: float, watch: Watch) -> None:
        self._nodes, self._liveness, self._watch = nodes, liveness, watch
        self._silence_seconds, self._next_line = silence_seconds, 0.0
        self._ended: set[int] = set()
        self.cause: Cause = "exited"  # the first one that is worse decides how the run ended
        self.evidence: str | None = None

    def _open(self) -> list[NodeRun]:
        return [node for node in self._nodes if node.is_open]

    def run(self) -> None:
        """Watch until all nodes have ended, or one ends badly, or the run hangs. Raises KeyboardInterrupt."""
        while self._open() and self.cause == "exited":
            self._turn()
            # each node watches its ranks' heartbeats itself: here they would stop with the connection
            if evidence := self._liveness.hang([]):
                self._decide("hang", evidence)
        if self.cause == "rank-failed":
            self._until_closed(SETTLE_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End all nodes that are left: first by closing their input, then their connections."""
        for node in self._open():
            node.is_stopped = True
            node.connection.close_input()  # which ends its ranks; it is still read to its end
        self._until_closed(STOP_SECONDS)
        for node in self._open():
            node.lose(f"{node.name}: it did not end within {STOP_SECONDS:g} s after the platform ended it")
        self._watch()

    def _until_closed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._open() and time.monotonic() < deadline:
            self._turn()

    def _turn(self) -> None:
        """Take what came from every node, and keep the first cause."""
        wait_for_output([node.connection for node in self._open()], POLL_SECONDS)
        time.sleep(len(self._nodes) * PACE_SECONDS)
        if is_due := time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
        for node in self._open():
            if is_due and not node.connection.unsent:
                node.connection.send(b"\n")
            node.connection.flush()
        for node in self._nodes:
            if node.is_open:
                node.receive()
                silence = node.silence()
                limit = COMPLETE_SECONDS if node.stream.is_complete() else self._silence_seconds
                if node.is_open and silence > limit:
                    node.lose(f"{node.name} sent nothing for {silence:.0f} s (limit {self._silence_seconds:g} s)")
            if not node.is_open and node.work.node_rank not in self._ended:
                self._ended.add(node.work.node_rank)
                cause, end = node.finding()
                if cause != "exited":
                    self._decide(cause, end.detail)
        self._watch()

    def _decide(self, cause: Cause, evidence: str | None) -> None:
        if self.cause == "exited":
            self.cause, self.evidence = cause, evidence
