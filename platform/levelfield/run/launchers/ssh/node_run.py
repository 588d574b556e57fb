"""The nodes of a run as the platform sees them: their connections, frames and records, until the last has ended.

The first cause decides how the run ended; then the other nodes are ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, NodeWork, ProcessEnd, Say, Watch
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.node.rank_processes import KILL_SECONDS, SETTLE_SECONDS, TERMINATE_SECONDS
from levelfield.run.launchers.launched_ranks import failure_evidence, first_failure, parse_rank_ends
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.node_records import full_disk_suffix, read_last_fields
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import Connection, printable_text, wait_for_output
from levelfield.run.launchers.ssh.host_tasks import WaitReport

# By the cause in a node's last record: the cause for the run, and the node's status.
_CAUSES_AND_STATUSES: Mapping[str, tuple[Cause, NodeWord]] = {
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
MAX_PARTS_PER_TURN = 16  # read from one node before the others' turn
CLOSE_SECONDS = 5.0  # for which a connection may stay open after its node sent everything
PAUSE_SECONDS_PER_NODE = 1e-4  # between two polls, as each poll visits all nodes
EMPTY_LINE_SECONDS = 1.0  # between the empty lines by which a node sees that the platform still runs
# A stopped node needs this long to end its ranks, write its last record and send the rest.
STOP_SECONDS = SETTLE_SECONDS + TERMINATE_SECONDS + KILL_SECONDS + 10.0


class NodeRun:
    """The platform's side of one running node: its connection, its frames and how it ended."""

    def __init__(self, work: NodeWork, root: Path, connection: Connection, clock: WatchedTime) -> None:
        self.work, self.connection, self._root, self._clock = work, connection, root, clock
        self.name = work.name or work.address
        self.stream = NodeStream(root, work.node_rank, [process.rank for process in work.processes])
        self.is_open, self.is_stopped = True, False
        self.fault: str | None = None
        self._frame_count, self._last_frame_seconds = 0, clock.watched_seconds()

    def receive(self) -> None:
        """Read what the node has sent. A broken stream, and the end of the stream, close this node."""
        try:
            for _ in range(MAX_PARTS_PER_TURN):
                if not (part := self.connection.read()):
                    break
                if not self.stream.is_complete():  # anything after the last frame is ignored
                    self.stream.receive(part)
        except BrokenStream as error:
            self.fault = f"{self.name} sent no proper frame: {error}"
            self.connection.end()
        if part is None or self.fault:
            self.is_open = not (self.fault or self.connection.has_ended())

    def silence_seconds(self) -> float:
        """Return for how many watched seconds no frame has come; 0 while the connection waits for its turn."""
        now = self._clock.watched_seconds()
        if self.stream.frame_count != self._frame_count or not self.connection.seconds_since_start():
            self._frame_count, self._last_frame_seconds = self.stream.frame_count, now
        return now - self._last_frame_seconds

    def lose(self, reason: str) -> None:
        """End the connection and record the reason; a node that sent everything does not count as lost."""
        self.fault, self.is_open = None if self.stream.is_complete() else reason, False
        self.connection.end()

    def last_record(self) -> Mapping[str, Any]:
        """Return the node's last record; an empty one before it is written."""
        return read_last_fields(self._root, self.work.node_rank) or {}

    def ends(self) -> tuple[ProcessEnd, ...]:
        """Return how each rank ended, without values for the ranks of a lost node."""
        return parse_rank_ends(self.work, self.last_record().get("ends", ()))

    def memory_kills(self) -> tuple[int, str | None]:
        """Return how many ranks the kernel killed for memory by the node's record, and its evidence."""
        record = self.last_record()
        kill_count = record.get("oom_kills")
        if not isinstance(kill_count, int) or isinstance(kill_count, bool) or not kill_count > 0:
            return 0, None
        return kill_count, f"{self.name}: {printable_text(str(record.get('oom_evidence')), 500)}"

    def cause_and_end(self) -> tuple[Cause, NodeEnd]:
        """Return the cause that a closed node's end gives the run, and how the node ended."""
        record = self.last_record()
        cause: Cause
        word: NodeWord
        detail = self.fault
        if self.fault:
            cause, word = "node-lost", "lost"
        elif not record and self.is_stopped and not self.connection.has_answered and self.connection.code is None:
            cause, word = "exited", "stopped"  # its connection had not begun
        elif not record:  # also where the platform ended it: a node that lives writes its last record
            is_reached = self.stream.frame_count > 0
            cause, word = ("node-lost", "lost") if is_reached else ("unreachable", "unreachable")
            detail = self.connection.failure()
        else:
            cause, word = _CAUSES_AND_STATUSES.get(str(record.get("cause")), ("node-lost", "lost"))
            if cause == "cancelled" and self.is_stopped:
                cause, word = "exited", "stopped"
            elif record.get("cause") == "rank-failed" and (failed := first_failure(self.ends())):
                detail = f"{self.name}: {failure_evidence(failed)}{full_disk_suffix(record)}"
            elif evidence := record.get("evidence"):
                detail = f"{self.name}: {printable_text(str(evidence), 500)}"
        return cause, NodeEnd(self.work.node_rank, self.name, word, detail)


class Supervision:
    """Watches all nodes of a run."""

    def __init__(
        self, nodes: Sequence[NodeRun], liveness: Liveness, max_silence_seconds: float, watch: Watch, say: Say
    ) -> None:
        self._nodes, self._liveness, self._watch = nodes, liveness, watch
        self._max_silence_seconds, self._next_empty_line = max_silence_seconds, 0.0
        self._ended_nodes: set[int] = set()
        self._say, self._report = say, WaitReport(say)
        self.cause: Cause = "exited"  # how the run ended: the first cause of a node that is not `exited`
        self.evidence: str | None = None

    def _open_nodes(self) -> list[NodeRun]:
        return [node for node in self._nodes if node.is_open]

    def run(self) -> None:
        """Watch until all nodes have ended, one has failed, or the run hangs. Raises KeyboardInterrupt."""
        while self._open_nodes() and self.cause == "exited":
            self._poll()
            silent_names = [node.name for node in self._nodes if not node.connection.has_answered]
            self._report.look("the nodes begin", silent_names, self._max_silence_seconds)
            # each node watches its ranks' heartbeats itself: here they would stop with the connection
            if evidence := self._liveness.hang_evidence([]):
                self._set_first_cause("hang", evidence)
        if self.cause == "rank-failed":
            self._poll_until_closed(SETTLE_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End all nodes that are left: first by closing their input, then their connections."""
        for node in self._open_nodes():
            node.is_stopped = True
            node.connection.close_input()  # the node then ends its ranks; its output is still read to the end
        self._report = WaitReport(self._say)
        self._poll_until_closed(STOP_SECONDS)
        for node in self._open_nodes():
            node.lose(f"{node.name}: it did not end within {STOP_SECONDS:g} s after the platform ended it")
        self._watch()

    def _poll_until_closed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (open_nodes := self._open_nodes()) and time.monotonic() < deadline:
            self._poll()
            self._report.look("the nodes end their ranks", [node.name for node in open_nodes], seconds)

    def _poll(self) -> None:
        """Read what every node has sent, and store the first cause."""
        wait_for_output([node.connection for node in self._open_nodes()], POLL_SECONDS)
        time.sleep(len(self._nodes) * PAUSE_SECONDS_PER_NODE)
        if is_due := time.monotonic() >= self._next_empty_line:
            self._next_empty_line = time.monotonic() + EMPTY_LINE_SECONDS
        for node in self._open_nodes():
            if is_due and not node.connection.unsent:
                node.connection.send(b"\n")
            node.connection.flush()
        for node in self._nodes:
            if node.is_open:
                node.receive()
                silence_seconds = node.silence_seconds()
                limit = CLOSE_SECONDS if node.stream.is_complete() else self._max_silence_seconds
                if node.is_open and silence_seconds > limit:
                    node.lose(
                        f"{node.name} sent nothing for {silence_seconds:.0f} s (limit {self._max_silence_seconds:g} s)"
                    )
            if not node.is_open and node.work.node_rank not in self._ended_nodes:
                self._ended_nodes.add(node.work.node_rank)
                cause, end = node.cause_and_end()
                if cause != "exited":
                    self._set_first_cause(cause, end.detail)
        self._watch()

    def _set_first_cause(self, cause: Cause, evidence: str | None) -> None:
        if self.cause == "exited":
            self.cause, self.evidence = cause, evidence
