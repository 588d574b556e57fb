"""Watches the nodes of a run until the last has ended. The first cause decides; then the other nodes are ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from levelfield.contracts.execution import Cause, Watch
from levelfield.node.rank_processes import KILL_SECONDS, SETTLE_SECONDS, TERMINATE_SECONDS
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.ssh.connection import wait_for_output
from levelfield.run.launchers.ssh.node_run import NodeRun

POLL_SECONDS = 0.1
PACE_SECONDS = 1e-4  # for each node: of a thousand, one sends at any time, and a turn looks at all of them
LINE_SECONDS = 1.0  # between the lines that show a node that the platform is there
# A node that is stopped ends its ranks, writes its last word and sends the rest.
STOP_SECONDS = SETTLE_SECONDS + TERMINATE_SECONDS + KILL_SECONDS + 10.0


class Supervision:
    """The nodes of a run. cause and evidence: the first ones, which decide how the run ended."""

    def __init__(self, nodes: Sequence[NodeRun], liveness: Liveness, silence_seconds: float, watch: Watch) -> None:
        self._nodes, self._liveness, self._watch = nodes, liveness, watch
        self._silence_seconds, self._next_line = silence_seconds, 0.0
        self._found: set[int] = set()
        self.cause: Cause = "exited"
        self.evidence: str | None = None

    def run(self) -> None:
        """Watch until all nodes have ended, or one ends badly, or the run hangs. Raises KeyboardInterrupt."""
        while any(node.is_open for node in self._nodes):
            self._turn()
            # each node watches its ranks' heartbeats itself: here they would stop with the connection
            if self.cause == "exited" and (evidence := self._liveness.hang([])):
                self._decide("hang", evidence)
            if self.cause != "exited":
                break
        if self.cause == "rank-failed":
            self._until_closed(SETTLE_SECONDS)
        self.stop()

    def stop(self) -> None:
        """End all nodes that are left: first by closing their input, then their connections."""
        for node in self._nodes:
            if node.is_open:
                node.stop()
        self._until_closed(STOP_SECONDS)
        for node in self._nodes:
            if node.is_open:
                node.lose(f"{node.name}: it did not end within {STOP_SECONDS:g} s after the platform ended it")
        self._watch()

    def _until_closed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(node.is_open for node in self._nodes) and time.monotonic() < deadline:
            self._turn()

    def _turn(self) -> None:
        """Take what came from every node, and keep the first cause."""
        wait_for_output([node.connection for node in self._nodes if node.is_open], POLL_SECONDS)
        time.sleep(len(self._nodes) * PACE_SECONDS)
        self._send_lines()
        for node in self._nodes:
            if node.is_open:
                node.receive()
                self._check_silence(node)
            if not node.is_open and node.work.node_rank not in self._found:
                self._found.add(node.work.node_rank)
                self._take_end(node)
        self._watch()

    def _send_lines(self) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            for node in self._nodes:
                if node.is_open and node.connection.has_sent:
                    node.connection.send(b"\n")
        for node in self._nodes:
            if node.is_open:
                node.connection.flush()

    def _check_silence(self, node: NodeRun) -> None:
        silence = node.silence()
        if node.is_open and silence > self._silence_seconds:
            node.lose(f"{node.name} sent nothing for {silence:.0f} s (limit {self._silence_seconds:g} s)")

    def _take_end(self, node: NodeRun) -> None:
        finding = node.finding()
        if finding and finding[0] != "exited":
            self._decide(finding[0], finding[1].detail)

    def _decide(self, cause: Cause, evidence: str | None) -> None:
        if self.cause == "exited":
            self.cause, self.evidence = cause, evidence
