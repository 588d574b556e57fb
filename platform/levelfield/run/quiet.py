"""Waits until other programs leave the machine alone, before runs in turns whose speeds are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from levelfield.measure.other_use import HostUse
from levelfield.node.node_facts import load_of_others
from levelfield.report.words import duration

LIMIT_SECONDS = 300.0  # of waiting, over all pairs
REPORT_SECONDS = 30.0  # between two lines of progress


def host_load() -> HostUse:
    """Measure for a second what other programs use of this host. It is unknown where the kernel shows no counters."""
    try:
        facts = load_of_others(0)["facts"]
    except (OSError, ValueError):
        return HostUse(None, None, "the operating system gave no processor times")
    return HostUse(facts["other_cores"], facts["cores"])


@dataclass
class QuietWait:
    """Waits for a quiet machine, whenever it is called; no longer than the limit in all calls together.

    say: gets a sentence when the wait begins, every half minute, and when the limit ends it.
    """

    say: Callable[[str], None]
    measure: Callable[[], HostUse] = field(default_factory=lambda: host_load)
    clock: Callable[[], float] = time.monotonic
    limit: float = field(default_factory=lambda: LIMIT_SECONDS)
    waited: float = 0.0  # seconds, in all calls

    def __call__(self) -> None:
        began = reported = self.clock()
        before = self.waited
        while self.waited < self.limit and (use := self.measure()).is_noticeable:
            now = self.clock()
            self.waited = before + now - began
            load = f"other programs use {use.other_cores:.2f} of {use.cores} cores (limit: {use.limit:.2g})"
            if self.waited >= self.limit:
                self.waited = self.limit
                self.say(f"{load}: waited {duration(self.limit)} for a quiet machine, and now runs beside this load")
            elif reported == began or now - reported >= REPORT_SECONDS:
                reported = now
                left = duration(self.limit - self.waited)
                self.say(f"waiting for a quiet machine, at most {left} more: {load}")
