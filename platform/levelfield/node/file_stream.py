"""Sends the growth of a node's files as frames, from a thread of its own."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Callable, Iterable, Mapping

from levelfield.node.stream_frames import (
    BEAT_SECONDS,
    MOST_FILE_BYTES,
    PART_BYTES,
    appended_files,
    file_frame,
    frame_line,
    heartbeat_files,
)

LOOK_SECONDS = 0.2
LEAVE_SECONDS = 10.0  # the longest wait for a receiver that has stopped reading


class FileStream:
    """The frames of one node. broken: called once when the receiver is gone. offsets: what it has already, by name."""

    def __init__(
        self,
        root: Path,
        node: int,
        ranks: Iterable[int],
        output: int,
        broken: Callable[[], None],
        offsets: Mapping[str, int] | None = None,
    ) -> None:
        ranks = list(ranks)
        self._root, self._output, self._broken = root, output, broken
        self._sent = {name: (offsets or {}).get(name, 0) for name in appended_files(node, ranks)}
        self._beats = {name: b"" for name in heartbeat_files(ranks)}
        self._ending, self._code = threading.Event(), 0
        self._thread = threading.Thread(target=self._send_until_ended, daemon=True, name="frames")

    def start(self) -> None:
        self._thread.start()

    def end(self, code: int, wait_seconds: float | None = LEAVE_SECONDS) -> None:
        """Send what is left and the exit code, and wait: a bounded time, or None for any."""
        self._code = code
        self._ending.set()
        self._thread.join(wait_seconds)

    def _send_until_ended(self) -> None:
        count, next_beat = 0, time.monotonic()
        try:
            while True:
                is_last = self._ending.is_set()
                if time.monotonic() >= next_beat:
                    count, next_beat = count + 1, time.monotonic() + BEAT_SECONDS
                    self._write(frame_line({"beat": count}))
                self._send_growth()
                if is_last:
                    return self._write(frame_line({"end": self._code}))
                self._ending.wait(LOOK_SECONDS)
        except OSError:
            self._broken()

    def _send_growth(self) -> None:
        for name in self._sent:
            while self._send_part(name):
                pass
        for name, before in self._beats.items():
            found = _content(self._root / name, 0, 64)
            if found and found != before:
                self._beats[name] = found
                self._write(file_frame(name, 0, found)[0])

    def _send_part(self, name: str) -> bool:
        """Send the next part of a file. Return whether there may be more."""
        offset = self._sent[name]
        part = _content(self._root / name, offset, min(PART_BYTES, MOST_FILE_BYTES - offset))
        if part:
            frame, size = file_frame(name, offset, part)
            self._write(frame)
            self._sent[name] += size
        return len(part) == PART_BYTES

    def _write(self, frame: bytes) -> None:
        while frame:
            frame = frame[os.write(self._output, frame) :]


def _content(path: Path, offset: int, most: int) -> bytes:
    """Return a part of a file; nothing where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, most, offset) if most > 0 else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
