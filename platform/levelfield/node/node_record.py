"""What a node's own part writes: files in one step, and its record, one JSON line for each thing that happened."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Mapping

RESERVED_BYTES = 64 * 1024  # for the last word: ends of 1,024 ranks, with what they are told beside


class NodeRecord:
    """Appends to a file. On a full disk a line is lost, but not the last one: its space is reserved from the start."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._guard = threading.Lock()
        self._reserve = path.with_suffix(".reserve")
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(RESERVED_BYTES))

    def write(self, event: str, **fields: Any) -> None:
        line = (json.dumps({"time_ns": time.monotonic_ns(), "event": event, **fields}) + "\n").encode()
        with self._guard, contextlib.suppress(OSError):
            if os.write(self._file, line) == len(line):
                self._size += len(line)
            else:
                os.ftruncate(self._file, self._size)  # no reader sees a part of a line

    def write_last(self, event: str, **fields: Any) -> None:
        """Write the last line, with the space that is free on the disk. The reserved space is given up for it."""
        free = None
        with contextlib.suppress(OSError):
            found = os.statvfs(str(self._reserve.parent))
            free = found.f_bavail * found.f_frsize
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        self.write(event, **fields, disk_free_bytes=free)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write texts below `root`, by name. Raises OSError."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two nodes may share the folder, and have the same process number in their containers.
        part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
