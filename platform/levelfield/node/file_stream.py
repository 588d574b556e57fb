"""Sends what is appended to a node's files as frames, from a thread of its own: one JSON object on each line.

{"file": "events/rank0.jsonl", "at": 0, "data": "text"}   what was appended at this offset ("base64": no UTF-8)
{"file": "events/rank0.alive", "at": 0, "data": "17"}     the whole content of a heartbeat
{"beat": 3}                                               a count, each second
{"end": 0}                                                the last frame: the exit code

The receiver (run/launchers/node_stream.py) has the same limits.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

POLL_SECONDS = 0.2
END_WAIT_SECONDS = 10.0  # the longest wait for a receiver that has stopped reading
MAX_LINE_BYTES = 64 * 1024
MAX_FILE_BYTES = 256 * 2**20  # of one file; the rest stays on the node, and the node's end names the file
PART_BYTES = 10 * 1024  # of a file in one frame; as JSON it is at most six times as long
BEAT_SECONDS = 1.0
_NODE_FILES = (
    "nodes/node{node}.facts.json",
    "nodes/node{node}.record.jsonl",
    "telemetry/node{node}.raw.jsonl",
    "logs/node{node}.log",
)
_RANK_FILES = (
    *("events/rank{rank}.jsonl", "events/rank{rank}.choices.jsonl", "events/rank{rank}.spot_check.jsonl"),
    "logs/rank{rank}.log",
)
HEARTBEAT_FILE = "events/rank{rank}.alive"  # a frame replaces the whole file


class FileStream:
    """Sends the frames of one node until `end` is called. output: a descriptor.

    on_broken: is called once when the receiver is gone. offsets: the number of bytes that the receiver already has, by
    file name; it may name files beyond the usual ones.
    """

    def __init__(
        self,
        root: Path,
        node_rank: int,
        ranks: Iterable[int],
        output: int,
        on_broken: Callable[[], None],
        offsets: Mapping[str, int] | None = None,
    ) -> None:
        ranks = list(ranks)
        self._root, self._output, self._on_broken = root, output, on_broken
        self._sent = {**dict.fromkeys(appended_files(node_rank, ranks), 0), **(offsets or {})}
        self._heartbeats = {HEARTBEAT_FILE.format(rank=rank): b"" for rank in ranks}
        self._end_event, self._exit_code = threading.Event(), 0
        self._thread = threading.Thread(target=self._send_until_ended, daemon=True, name="frames")
        self._thread.start()

    def end(self, exit_code: int, wait_seconds: float | None = END_WAIT_SECONDS) -> None:
        """Send what is left and the exit code, and wait for it. wait_seconds: None has no limit."""
        self._exit_code = exit_code
        self._end_event.set()
        self._thread.join(wait_seconds)

    def _send_until_ended(self) -> None:
        count, next_beat = 0, time.monotonic()
        try:
            while True:
                is_last = self._end_event.is_set()
                if time.monotonic() >= next_beat:
                    count, next_beat = count + 1, time.monotonic() + BEAT_SECONDS
                    write_all(self._output, frame_line({"beat": count}))
                self._send_growth()
                if is_last:
                    return write_all(self._output, frame_line({"end": self._exit_code}))
                self._end_event.wait(POLL_SECONDS)
        except OSError:
            self._on_broken()

    def _send_growth(self) -> None:
        for name, offset in self._sent.items():
            may_have_more = True
            while may_have_more:
                part = _file_part(self._root / name, offset, min(PART_BYTES, MAX_FILE_BYTES - offset))
                if part:
                    frame, size = file_frame(name, offset, part)
                    write_all(self._output, frame)
                    offset += size
                    self._sent[name] = offset
                may_have_more = len(part) == PART_BYTES
        for name, sent_heartbeat in self._heartbeats.items():
            beat = _file_part(self._root / name, 0, 64)
            if beat and beat != sent_heartbeat:
                self._heartbeats[name] = beat
                write_all(self._output, file_frame(name, 0, beat)[0])


def write_all(output: int, content: bytes) -> None:
    """Write all of the content to a descriptor. Raises OSError."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(output, remaining) :]


def _file_part(path: Path, offset: int, max_bytes: int) -> bytes:
    """Return a part of a file; empty where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, max_bytes, offset) if max_bytes > 0 else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def appended_files(node_rank: int, ranks: Iterable[int]) -> list[str]:
    """Return the names of a node's files that only grow."""
    return [name.format(node=node_rank) for name in _NODE_FILES] + [
        n.format(rank=r) for r in ranks for n in _RANK_FILES
    ]


def frame_line(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode("ascii")


def file_frame(name: str, offset: int, part: bytes) -> tuple[bytes, int]:
    """Return the frame of a part of a file, and how many bytes of the part it has.

    A character that the end of the part cuts is left for the next frame.
    """
    try:
        text, size = part.decode(), len(part)
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start == 0 or len(part) < PART_BYTES:
            encoded = base64.b64encode(part).decode("ascii")
            return frame_line({"file": name, "at": offset, "base64": encoded}), len(part)
        text, size = part[: error.start].decode(), error.start
    return frame_line({"file": name, "at": offset, "data": text}), size
