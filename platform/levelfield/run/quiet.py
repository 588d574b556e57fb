"""Waits until other programs leave the machine alone, before runs in turns whose speeds are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from levelfield.measure.other_use import HostUse
from levelfield.node.node_facts import measure_load_of_others
from levelfield.report.words import duration

MAX_WAIT_SECONDS = 300.0  # of all waits together
REPORT_INTERVAL_SECONDS = 30.0  # between two lines of progress


def measure_host_load() -> HostUse:
    """Measure for a second how many cores other programs use here; unknown where the kernel shows no counters."""
    try:
        facts = measure_load_of_others(0)["facts"]
    except (OSError, ValueError):
        return HostUse(None, None, "the operating system gave no processor times")
    return HostUse(facts["other_cores"], facts["cores"])


@dataclass
class QuietWait:
    """Each call waits for a quiet machine; all calls together no longer than the limit."""

    say: Callable[[str], None]  # gets a sentence when a wait begins, every half minute, and when the limit ends it
    measure_load: Callable[[], HostUse] = field(default_factory=lambda: measure_host_load)
    clock: Callable[[], float] = time.monotonic
    limit_seconds: float = field(default_factory=lambda: MAX_WAIT_SECONDS)
    waited_seconds: float = 0.0  # in all calls so far

    def __call__(self) -> None:
        began = last_report = self.clock()
        earlier_seconds = self.waited_seconds
        while self.waited_seconds < self.limit_seconds and (use := self.measure_load()).is_noticeable:
            now = self.clock()
            self.waited_seconds = earlier_seconds + now - began
            load = f"other programs use {use.other_cores:.2f} of {use.cores} cores (limit: {use.limit:.2g})"
            if self.waited_seconds >= self.limit_seconds:
                self.waited_seconds = self.limit_seconds
                self.say(
                    f"{load}: waited {duration(self.limit_seconds)} for a quiet machine, and now runs beside this load"
                )
            elif last_report == began or now - last_report >= REPORT_INTERVAL_SECONDS:
                last_report = now
                remaining = duration(self.limit_seconds - self.waited_seconds)
                self.say(f"waiting for a quiet machine, at most {remaining} more: {load}")
