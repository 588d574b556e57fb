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

StoreRun = Callable[[str, RunPaths], RunRecord]  # stores the run of an arm with its purpose, and returns the record


def abba_order(pairs: int) -> Iterator[tuple[str, str]]:
    """Return the order of the arms of each pair: a b, b a, a b, ... A drift of the machine hits both alike."""
    for number in range(pairs):
        yield ("a", "b") if number % 2 == 0 else ("b", "a")


def run_alternating_pairs(
    pairs: int, run: Callable[[str], RunRecord], before_pair: Callable[[], None] = lambda: None
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and yield one pair after another, the record of `a` first. run: runs the arm of this name."""
    for order in abba_order(pairs):
        before_pair()
        records = {arm: run(arm) for arm in order}
        yield records["a"], records["b"]


@dataclass
class PairProgress:
    """Reports after each run of pairs: count, the figure of the run, mean difference of b so far, and the time left."""

    figure: GatedFigure
    say: Callable[[str], None]
    min_pairs: int = MIN_PAIRS
    max_pairs: int = MAX_PAIRS
    # what messages call the arms
    arm_names: Mapping[str, str] = field(default_factory=lambda: {"a": "baseline build", "b": "tonight's build"})
    clock: Callable[[], float] = time.monotonic
    _costs: dict[str, list[float | None]] = field(default_factory=lambda: {"a": [], "b": []})
    _began: float | None = None
    _runs_timed: int = 0  # since `_began`

    def wrap_store_run(self, store_run: StoreRun, earlier_records: Sequence[RunRecord] = ()) -> StoreRun:
        """Return a function that stores a run and then reports it. earlier_records: of runs before this start."""
        for record, arm in zip(earlier_records, chain.from_iterable(abba_order(self.max_pairs)), strict=False):
            self._add_cost(arm, record)
        self._began = self.clock()

        def store_and_report(arm: str, paths: RunPaths) -> RunRecord:
            record = store_run(arm, paths)
            self._add_cost(arm, record)
            self._runs_timed += 1
            self.say(self._progress_line(arm, record))
            return record

        return store_and_report

    def _add_cost(self, arm: str, record: RunRecord) -> None:
        self._costs[arm].append(cost_of(getattr(record, self.figure), self.figure))

    def _progress_line(self, arm: str, record: RunRecord) -> str:
        run_count = sum(map(len, self._costs.values()))
        figure_text = f"{figure_value(getattr(record, self.figure), self.figure)} {FIGURE_NAMES[self.figure]}"
        outcome = figure_text + ", disturbed" * bool(disturbance(record)) if record.word == "valid" else record.word
        pairs = zip(self._costs["a"], self._costs["b"], strict=False)
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        mean_change = percent_change(change_of(fmean(differences), self.figure)) if differences else None
        pairs_done = f"{len(differences)} pair{'s' * (len(differences) > 1)}"
        so_far = f"; {self.arm_names['b']} {mean_change} in {pairs_done}" if mean_change else ""
        min_runs, max_runs = 2 * self.min_pairs, 2 * self.max_pairs
        total = (
            f"{min_runs} to {max_runs}"
            if run_count < min_runs < max_runs
            else f"at most {max_runs}"
            if min_runs < max_runs
            else f"{max_runs}"
        )
        # how long the further runs last, each as long as those before
        seconds = (self.clock() - (self._began or 0.0)) / self._runs_timed
        min_seconds, max_seconds = max(0, min_runs - run_count) * seconds, max(0, max_runs - run_count) * seconds
        remaining_text = (
            f"; {duration(min_seconds)} to {duration(max_seconds)} left"
            if min_seconds
            else f"; at most {duration(max_seconds)} left"
        )
        if max_seconds <= 0:
            remaining_text = ""
        elif self.min_pairs == self.max_pairs:
            remaining_text = f"; {duration(max_seconds)} left"
        return f"run {run_count} of {total}, {self.arm_names[arm]}: {outcome}{so_far}{remaining_text}"
