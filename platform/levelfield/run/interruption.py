"""Signals that end a command, as one KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Interrupt:
    """The handler of a block's signals."""

    came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.came:
            self.came = True
            raise KeyboardInterrupt


@contextmanager
def interrupted_once(to_the_end: bool = False) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT, SIGTERM or SIGHUP of the block, and ignore later ones.

    After the first one the processes are stopped and the result is written, which takes seconds. An ignored signal
    stays ignored, as in a shell's background job. A block inside another one is a part of it. to_the_end: the process
    ends after the block, and later signals do not change its exit code.
    """
    handled = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    if any(isinstance(signal.getsignal(number), _Interrupt) for number in handled):
        yield
        return
    interrupt = _Interrupt()
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if to_the_end and interrupt.came else handler)
