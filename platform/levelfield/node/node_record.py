"""The record of a node's own part: one JSON line for each thing that happened, appended and never changed."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class NodeRecord:
    """Appends to a file. On a full disk a line is lost, and the run's end is not held up."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._guard = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        line = (json.dumps({"time_ns": time.monotonic_ns(), "event": event, **fields}) + "\n").encode()
        with self._guard:
            try:
                if os.write(self._file, line) == len(line):
                    self._size += len(line)
                    return
            except OSError:
                pass
            os.ftruncate(self._file, self._size)  # no reader sees a part of a line
