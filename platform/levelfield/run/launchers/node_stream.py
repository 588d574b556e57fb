"""Receives the frames of one node into the run directory (node/file_stream.py).

A node is another machine, and may send anything. Only a closed list of names is written, each at its expected offset
and up to its limit. Everything else is a broken stream of that node.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from levelfield.node.file_stream import HEARTBEAT_FILE, MAX_FILE_BYTES, MAX_LINE_BYTES, appended_files

_MAX_BEAT_BYTES = 20
_OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BrokenStream(Exception):
    """A node sent something else than its frames. The message gives what was found."""


class NodeStream:
    """Writes the frames of one node into the run directory.

    received: how many bytes of each file an earlier stream of this node received.
    """

    def __init__(
        self, root: Path, node_rank: int, ranks: Iterable[int], received: Mapping[str, int] | None = None
    ) -> None:
        self.ranks = list(ranks)
        self._root = root
        # how many bytes of each file were received, by name
        self.received = {**dict.fromkeys(appended_files(node_rank, self.ranks), 0), **(received or {})}
        self._heartbeats = frozenset(HEARTBEAT_FILE.format(rank=rank) for rank in self.ranks)
        self._partial_line = b""
        self.frame_count = 0
        self.exit_code: int | None = None  # of the node, which its last frame has

    def receive(self, part: bytes) -> None:
        """Take the next bytes of the node. Raises BrokenStream, and OSError where a file cannot be written here."""
        *lines, self._partial_line = (self._partial_line + part).split(b"\n")
        for line in lines:
            if self.exit_code is None:  # lines after the last frame are ignored
                self._receive_frame(line)
        if len(self._partial_line) > MAX_LINE_BYTES:
            raise BrokenStream(f"found a frame of more than {MAX_LINE_BYTES} bytes")

    def is_complete(self) -> bool:
        return self.exit_code is not None

    def truncated_files(self) -> tuple[str, ...]:
        """Return the files that reached the size limit; the rest of them stayed on the node."""
        return tuple(f"{name} (its end)" for name, size in sorted(self.received.items()) if size >= MAX_FILE_BYTES)

    def _receive_frame(self, line: bytes) -> None:
        if len(line) > MAX_LINE_BYTES:
            raise BrokenStream(f"found a frame of {len(line)} bytes, expected at most {MAX_LINE_BYTES}")
        try:
            frame = json.loads(line.decode("ascii"))
        except (ValueError, RecursionError):
            raise BrokenStream(f"found {line[:80]!r}, expected a frame as JSON") from None
        if not isinstance(frame, dict):
            raise BrokenStream(f"found {type(frame).__name__}, expected a frame as a JSON object")
        self.frame_count += 1
        if frame.keys() == {"beat"}:
            _read_whole_number(frame, "beat")
        elif frame.keys() == {"end"}:
            self.exit_code = _read_whole_number(frame, "end")
        elif frame.keys() in ({"file", "at", "data"}, {"file", "at", "base64"}):
            self._write(frame)
        else:
            raise BrokenStream(f"found a frame with the keys {', '.join(sorted(frame))[:200]!r}")

    def _write(self, frame: Mapping[str, Any]) -> None:
        name, offset, key = frame["file"], _read_whole_number(frame, "at"), "data" if "data" in frame else "base64"
        try:
            content = frame[key].encode() if key == "data" else base64.b64decode(frame[key], validate=True)
        except (ValueError, TypeError, AttributeError):
            raise BrokenStream(f"{str(name)[:200]!r}: key '{key}' holds no such text") from None
        is_heartbeat = isinstance(name, str) and name in self._heartbeats
        if is_heartbeat:
            if offset != 0 or len(content) > _MAX_BEAT_BYTES:
                raise BrokenStream(f"{name}: found {len(content)} bytes at {offset}, expected a count at 0")
        elif not isinstance(name, str) or name not in self.received:
            raise BrokenStream(f"found the file {str(name)[:200]!r}, which is none of this node")
        elif offset != self.received[name]:
            raise BrokenStream(f"{name}: found offset {offset}, expected {self.received[name]}")
        elif offset + len(content) > MAX_FILE_BYTES:
            raise BrokenStream(f"{name}: found more than {MAX_FILE_BYTES} bytes")
        path = self._root / name
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, _OPEN_FLAGS, 0o666)
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(descriptor, content[written:], offset + written)
            os.utime(descriptor)  # the time changes even where a heartbeat repeats its count
        finally:
            os.close(descriptor)
        if not is_heartbeat:
            self.received[name] += len(content)


def _read_whole_number(frame: Mapping[str, Any], key: str) -> int:
    value = frame[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BrokenStream(f"key '{key}': found {str(value)[:40]!r}, expected a whole number from 0")
    return value
