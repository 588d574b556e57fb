"""Runs of two arms in turns, on one machine: their order, and what is said while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from levelfield.report.words import duration
from levelfield.series.findings import FIGURES, figure_value, percent_change
from levelfield.series.pairs import FEWEST_PAIRS, MOST_PAIRS
from levelfield.series.segments import change_of, cost_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Gated, RunRecord

Keep = Callable[[str, RunPaths], RunRecord]  # arm and run directory -> the record, stored with its purpose


def abba(pairs: int) -> Iterator[tuple[str, str]]:
    """Return the order of the arms of each pair: a b, b a, a b, ... A drift of the machine hits both alike."""
    for number in range(pairs):
        yield ("a", "b") if number % 2 == 0 else ("b", "a")


def in_turns(pairs: int, run: Callable[[str], RunRecord]) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and yield one pair after another, the record of `a` first. run: an arm by its name."""
    for order in abba(pairs):
        records = {arm: run(arm) for arm in order}
        yield records["a"], records["b"]


@dataclass
class PairProgress:
    """Says after each run of pairs: how many are done, its figure, how b differs in the mean so far, and the time left.

    fewest, most: pairs. arm_names: what messages call the arms.
    """

    figure: Gated
    say: Callable[[str], None]
    fewest: int = FEWEST_PAIRS
    most: int = MOST_PAIRS
    arm_names: Mapping[str, str] = field(default_factory=lambda: {"a": "accepted build", "b": "tonight's build"})
    clock: Callable[[], float] = time.monotonic
    _costs: dict[str, list[float | None]] = field(default_factory=lambda: {"a": [], "b": []})
    _began: float | None = None
    _timed: int = 0

    def keeping(self, keep: Keep, done: Sequence[RunRecord] = ()) -> Keep:
        """Return what keeps a run and then says it. done: runs of an earlier start."""
        for record, arm in zip(done, chain.from_iterable(abba(self.most)), strict=False):
            self._add(arm, record)
        self._began = self.clock()

        def keep_and_say(arm: str, paths: RunPaths) -> RunRecord:
            record = keep(arm, paths)
            self._add(arm, record)
            self._timed += 1
            self.say(self._line(arm, record))
            return record

        return keep_and_say

    def _add(self, arm: str, record: RunRecord) -> None:
        self._costs[arm].append(cost_of(getattr(record, self.figure), self.figure))

    def _line(self, arm: str, record: RunRecord) -> str:
        done = sum(map(len, self._costs.values()))
        value = f"{figure_value(getattr(record, self.figure), self.figure)} {FIGURES[self.figure]}"
        outcome = value if record.word == "valid" else record.word
        pairs = zip(self._costs["a"], self._costs["b"], strict=False)
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        mean = percent_change(change_of(fmean(differences), self.figure)) if differences else None
        pairs_done = f"{len(differences)} pair{'s' * (len(differences) > 1)}"
        so_far = f"; {self.arm_names['b']} {mean} in {pairs_done}" if mean else ""
        least, most = 2 * self.fewest, 2 * self.most
        of = f"{least} to {most}" if done < least < most else f"at most {most}" if least < most else f"{most}"
        # how long the further runs last, each as long as those before
        seconds = (self.clock() - (self._began or 0.0)) / self._timed
        soonest, latest = max(0, least - done) * seconds, max(0, most - done) * seconds
        left = f"; {duration(soonest)} to {duration(latest)} left" if soonest else f"; at most {duration(latest)} left"
        if latest <= 0:
            left = ""
        elif self.fewest == self.most:
            left = f"; {duration(latest)} left"
        return f"run {done} of {of}, {self.arm_names[arm]}: {outcome}{so_far}{left}"
