"""Signals that end a command, as one KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Interrupt:
    """The signal handler of a block."""

    was_raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.was_raised:
            self.was_raised = True
            raise KeyboardInterrupt


def was_interrupted() -> bool:
    """Return whether a signal has interrupted the block of `interrupt_once` that this is called in."""
    handler = signal.getsignal(signal.SIGINT)
    return isinstance(handler, _Interrupt) and handler.was_raised


class WatchLeft(BaseException):
    """The user stops watching a run that goes on. No launcher catches it, so nothing of the run is ended."""


@contextmanager
def leave_at_interrupt() -> Iterator[None]:
    """Raise WatchLeft at a SIGINT, SIGTERM or SIGHUP of the block."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise WatchLeft

    previous_handlers = {
        number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_once(process_ends: bool = False) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT, SIGTERM or SIGHUP of the block, and ignore later ones.

    After the first one the processes are stopped and the result is written, which takes seconds. An ignored signal
    stays ignored, as in a shell's background job. A block inside another one does nothing. process_ends: the
    process ends after the block, and later signals do not change its exit code.
    """
    signal_numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    if any(isinstance(signal.getsignal(number), _Interrupt) for number in signal_numbers):
        yield
        return
    interrupt = _Interrupt()
    previous_handlers = {number: signal.signal(number, interrupt) for number in signal_numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_IGN if process_ends and interrupt.was_raised else handler)
