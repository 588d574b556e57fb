"""One node of a run as the platform sees it: its connection, its frames, its record, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, NodeWork, ProcessEnd
from levelfield.node.heartbeat_watch import WatchedTime
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.launched_ranks import ends_of, evidence_of
from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import NodeLine
from levelfield.run.launchers.ssh.ssh_errors import explained

FULL_BYTES = 2**20
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


class NodeRun:
    """A node while it runs. end: how it ended, and what that means for the run; None before."""

    def __init__(self, work: NodeWork, root: Path, connection: NodeLine, clock: WatchedTime) -> None:
        self.work, self.connection, self._root, self._clock = work, connection, root, clock
        self.name = work.name or work.address
        self.stream = NodeStream(root, work.node_rank, [process.rank for process in work.processes])
        self.is_open, self.is_stopped = True, False
        self.fault: str | None = None
        self._frames, self._last_frame = 0, clock.look()
        self._record_size, self._record_lines = 0, list[Mapping[str, Any]]()

    def receive(self) -> None:
        """Take what came. A broken stream, and the end of the stream, close this node."""
        try:
            while part := self.connection.read():
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

    def lose(self, why: str) -> None:
        """Give the node up."""
        self.fault, self.is_open = why, False
        self.connection.end()

    def stop(self) -> None:
        """End the node's ranks by closing its input. It is then still read to its end."""
        self.is_stopped = True
        self.connection.close_input()

    def record(self) -> Sequence[Mapping[str, Any]]:
        """Return the lines of the node's record so far."""
        name = f"nodes/node{self.work.node_rank}.record.jsonl"
        if self.stream.received[name] != self._record_size:
            self._record_size = self.stream.received[name]
            self._record_lines = _lines(self._root / name)
        return self._record_lines

    def last_word(self) -> Mapping[str, Any] | None:
        """Return the record's last line where the node wrote one."""
        return next((line for line in self.record() if line.get("event") == "ended"), None)

    def ends(self) -> tuple[ProcessEnd, ...]:
        """Return how each rank ended. One of a lost node has no values."""
        said = (self.last_word() or {}).get("ends", ())
        known = {end.rank: end for end in _ends(said)}
        return tuple(known.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in self.work.processes)

    def memory_kills(self) -> tuple[int, str | None]:
        """Return how many processes the node's kernel killed for memory, and how that is known."""
        last = self.last_word() or {}
        number, said = last.get("oom_kills"), last.get("oom_evidence")
        if not isinstance(number, int) or isinstance(number, bool) or not number > 0:
            return 0, None
        return number, f"{self.name}: {_printable(str(said))}"

    def finding(self) -> tuple[Cause, NodeEnd] | None:
        """Return what the node's end means for the run, and its end; None while it is open."""
        if self.is_open:
            return None
        last = self.last_word()
        if last is None or self.fault:
            return self._without_last_word()
        cause, word = _MEANINGS.get(str(last.get("cause")), ("node-lost", "lost"))
        if cause == "cancelled" and self.is_stopped:
            return "exited", self._end("stopped", None)
        return cause, self._end(word, self._evidence(last))

    def _evidence(self, last: Mapping[str, Any]) -> str | None:
        failed = [end for end in self.ends() if (end.signal or end.exit_code) and not end.stopped_by_us]
        if last.get("cause") == "rank-failed" and failed:
            return f"{self.name}: {evidence_of(self.ends(), failed[0].rank)}{_disk(last)}"
        said = last.get("evidence")
        return f"{self.name}: {_printable(str(said))}" if said else None

    def _without_last_word(self) -> tuple[Cause, NodeEnd]:
        why = self.fault or explained(self.name, self.connection.code, self.connection.complaint)
        if self.stream.frames == 0 and not self.fault:
            return "unreachable", self._end("unreachable", why)
        if self.is_stopped and not self.fault:
            return "exited", self._end("stopped", why)
        return "node-lost", self._end("lost", why)

    def _end(self, word: NodeWord, detail: str | None) -> NodeEnd:
        return NodeEnd(self.work.node_rank, self.name, word, detail)


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """Return the whole lines of a record. A line that is no object is left out: another machine wrote it."""
    found: list[Mapping[str, Any]] = []
    for line in read_regular(path).split(b"\n")[:-1]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found.append(content)
    return found


def _ends(said: Any) -> tuple[ProcessEnd, ...]:
    """Return the ends of a record; none where they are no such list."""
    try:
        found = ends_of(list(said))
    except (TypeError, ValueError):
        return ()
    return found if all(_is_end(end) for end in found) else ()


def _is_end(end: ProcessEnd) -> bool:
    numbers = (end.exit_code, end.signal, end.process)
    return isinstance(end.rank, int) and all(n is None or isinstance(n, int) for n in numbers)


def _disk(last: Mapping[str, Any]) -> str:
    """Return a remark where the node's disk was full at its end."""
    free = last.get("disk_free_bytes")
    is_full = isinstance(free, int) and free < FULL_BYTES
    return f"; the disk of its run's folder is full ({free} bytes free)" if is_full else ""


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:500]
