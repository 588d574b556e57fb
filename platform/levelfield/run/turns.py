"""Alternating runs of two arms on one machine: their order, and the progress that is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from levelfield.compare.sides import disturbance
from levelfield.report.words import duration
from levelfield.series.findings import FIGURE_NAMES, figure_value, percent_change
from levelfield.series.pairs import MAX_PAIRS, MIN_PAIRS
from levelfield.series.segments import change_of, cost_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import GatedFigure, RunRecord

StoreRun = Callable[[str, RunPaths], RunRecord]  # arm and run directory -> the record, stored with its purpose


def abba_order(pairs: int) -> Iterator[tuple[str, str]]:
    """Return the order of the arms of each pair: a b, b a, a b, ... A drift of the machine hits both alike."""
    for number in range(pairs):
        yield ("a", "b") if number % 2 == 0 else ("b", "a")


def alternating_pairs(
    pairs: int, run: Callable[[str], RunRecord], before_pair: Callable[[], None] = lambda: None
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and yield one pair after another, the record of `a` first. run: runs the arm of this name."""
    for order in abba_order(pairs):
        before_pair()
        records = {arm: run(arm) for arm in order}
        yield records["a"], records["b"]


@dataclass
class PairProgress:
    """Reports after each run of pairs: the count, the run's figure, the mean difference of b so far, and the time left.

    fewest, most: pairs. arm_names: what messages call the arms.
    """

    figure: GatedFigure
    say: Callable[[str], None]
    fewest: int = MIN_PAIRS
    most: int = MAX_PAIRS
    arm_names: Mapping[str, str] = field(default_factory=lambda: {"a": "baseline build", "b": "tonight's build"})
    clock: Callable[[], float] = time.monotonic
    _costs: dict[str, list[float | None]] = field(default_factory=lambda: {"a": [], "b": []})
    _began: float | None = None
    _runs_timed: int = 0  # since `_began`

    def reporting(self, store_run: StoreRun, done: Sequence[RunRecord] = ()) -> StoreRun:
        """Return a function that stores a run and then reports it. done: runs that were stored before this start."""
        for record, arm in zip(done, chain.from_iterable(abba_order(self.most)), strict=False):
            self._add(arm, record)
        self._began = self.clock()

        def store_and_report(arm: str, paths: RunPaths) -> RunRecord:
            record = store_run(arm, paths)
            self._add(arm, record)
            self._runs_timed += 1
            self.say(self._line(arm, record))
            return record

        return store_and_report

    def _add(self, arm: str, record: RunRecord) -> None:
        self._costs[arm].append(cost_of(getattr(record, self.figure), self.figure))

    def _line(self, arm: str, record: RunRecord) -> str:
        done = sum(map(len, self._costs.values()))
        value = f"{figure_value(getattr(record, self.figure), self.figure)} {FIGURE_NAMES[self.figure]}"
        outcome = value + ", disturbed" * bool(disturbance(record)) if record.word == "valid" else record.word
        pairs = zip(self._costs["a"], self._costs["b"], strict=False)
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        mean = percent_change(change_of(fmean(differences), self.figure)) if differences else None
        pairs_done = f"{len(differences)} pair{'s' * (len(differences) > 1)}"
        so_far = f"; {self.arm_names['b']} {mean} in {pairs_done}" if mean else ""
        least, most = 2 * self.fewest, 2 * self.most
        total = f"{least} to {most}" if done < least < most else f"at most {most}" if least < most else f"{most}"
        # how long the further runs last, each as long as those before
        seconds = (self.clock() - (self._began or 0.0)) / self._runs_timed
        soonest, latest = max(0, least - done) * seconds, max(0, most - done) * seconds
        left = f"; {duration(soonest)} to {duration(latest)} left" if soonest else f"; at most {duration(latest)} left"
        if latest <= 0:
            left = ""
        elif self.fewest == self.most:
            left = f"; {duration(latest)} left"
        return f"run {done} of {total}, {self.arm_names[arm]}: {outcome}{so_far}{left}"
