"""A control group that freezes processes. One of version 1 holds them in the kernel, so that SIGKILL does not end them.

A device driver that does not return holds its process in the same way.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

SKIPPED = "this machine has no cgroup freezer of version 1, or it needs root"


class Freezer:
    """A group of its own. `freeze` holds a process; `remove` lets all go, which end if they were killed meanwhile."""

    def __init__(self) -> None:
        self._group = _mounted() / f"levelfield-{uuid.uuid4().hex[:12]}"
        try:
            self._group.mkdir()
        except OSError:
            pytest.skip(SKIPPED)

    def freeze(self, process: int) -> None:
        (self._group / "cgroup.procs").write_text(str(process))
        self._switch("FROZEN")

    def remove(self) -> None:
        self._switch("THAWED")
        deadline = time.monotonic() + 10
        while (self._group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._group.rmdir()

    def _switch(self, state: str) -> None:
        deadline = time.monotonic() + 10
        while (self._group / "freezer.state").read_text().strip() != state and time.monotonic() < deadline:
            (self._group / "freezer.state").write_text(state)
            time.sleep(0.01)


def _mounted() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "freezer" in options.split(","):
            return Path(place)
    pytest.skip(SKIPPED)
