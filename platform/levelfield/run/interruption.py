"""Signals that end a command, as one KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT, SIGTERM or SIGHUP of the block, and ignore later ones.

    After the first one the processes are stopped and the result is written, which takes seconds. An ignored signal
    stays ignored, as in a shell's background job.
    """
    ending = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt

    handled = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
