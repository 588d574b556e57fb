"""How long a rank works by itself in a step: from the end of its last exchange to the next step's first one.

All ranks leave an exchange together, and the last one to arrive is the one that the others wait for. So this time shows
which rank that is; the time of a whole step is the same on all of them.
"""

from __future__ import annotations

import time
from typing import Any, Callable


class OwnWork:
    """The clock of one rank, for layouts whose ranks first exchange something after their own forward passes.

    is_measured: whether the layout and the device allow it; if not, every method does nothing. `now` and `between` are
    those of the host's clock: on an accelerator, which the host runs ahead of, a subclass replaces them.
    """

    def __init__(self, is_measured: bool) -> None:
        self.is_measured = is_measured
        self._since: Any = None
        self._span: Any = None

    def exchanged(self) -> None:
        """The step's last exchange has ended."""
        if self.is_measured:
            self._since = self.now()

    def reaches_exchange(self) -> None:
        """The step's first exchange begins now. Call it in each step before `exchanged`."""
        if self.is_measured:
            self._span = None if self._since is None else (self._since, self.now())

    def seconds(self) -> float | None:
        """Return the time of this step's own work; None for the first step, which no exchange precedes."""
        return self.reading()()

    def reading(self) -> Callable[[], float | None]:
        """Return what tells `seconds` of this step at its end, also while the next one runs already."""
        span = self._span
        return lambda: None if span is None else self.between(*span)

    def now(self) -> Any:
        return time.monotonic()

    def between(self, since: Any, until: Any) -> float:
        return float(until - since)
