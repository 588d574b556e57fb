"""The heartbeat: a thread that counts up in a file every second and ends the process when it is an orphan."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time

PERIOD_SECONDS = 1.0
ORPHANED = 1  # exit code; no parent is left to read it

_parent = os.getppid()  # at import, before the slow imports of a framework: the launcher may die meanwhile


def start_heartbeat(path: str) -> None:
    """Write to `path` now and every second; end the process when its parent is gone. Raises OSError at the start only.

    The platform watches the file change; which time the file has does not matter.
    """
    _touch(path, 0)
    threading.Thread(target=_beat, args=(path,), name="levelfield-heartbeat", daemon=True).start()


def _beat(path: str) -> None:
    for count in itertools.count(1):
        time.sleep(PERIOD_SECONDS)
        if os.getppid() != _parent:
            os._exit(ORPHANED)
        with contextlib.suppress(OSError):  # without a touch the platform reports this rank as hung
            _touch(path, count)


def _touch(path: str, count: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.utime(descriptor)
        os.pwrite(descriptor, b"%d" % count, 0)  # it changes also where the clock of a file server stands still
    finally:
        os.close(descriptor)
