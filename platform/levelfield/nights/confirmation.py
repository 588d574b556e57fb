"""Confirms a night's suspicions by pairs of builds, one pair after another, until the sequential test decides.

The figures of a series share its pairs: a run has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from levelfield.errors import RunFailed
from levelfield.nights.gate import Suspect
from levelfield.series.judgement import Pairs
from levelfield.series.pairs import PairedTest
from levelfield.specs.record import Gated, RunRecord

RecordPair = tuple[RunRecord, RunRecord]  # of the accepted build and of tonight's


@dataclass
class Confirmation:
    """The source of pairs for a gate. Call it with a series and a figure.

    suspects: what the gate wants to know. start: returns the pairs of a series one after another, or why there are
    none. left: whether the budget holds another pair of the series.
    """

    suspects: Mapping[tuple[str, Gated], Suspect]
    start: Callable[[Suspect], Iterator[RecordPair] | str]
    left: Callable[[str], bool]
    say: Callable[[str], None]
    _known: dict[str, list[RecordPair]] = field(default_factory=dict)
    _running: dict[str, Iterator[RecordPair] | None] = field(default_factory=dict)

    def __call__(self, series: str, figure: Gated) -> Pairs | None:
        """Return the values of both builds, pair by pair, as many as the test needs; None where none can be run."""
        suspect = self.suspects.get((series, figure))
        if suspect is None or not self._can_start(suspect):
            return None
        found = suspect.examination
        stepped_down = found.step is not None and found.step.excess < 0
        direction = found.suspicion.direction if found.suspicion else (-1 if stepped_down else 1)
        test = PairedTest(figure, direction, found.expected_first)
        values: list[tuple[float | None, float | None]] = []
        for accepted, tonight in self._pairs(series):
            values.append((getattr(accepted, figure), getattr(tonight, figure)))
            if test.add(*values[-1]).is_final:
                break
        return values or None

    def _can_start(self, suspect: Suspect) -> bool:
        series = suspect.series
        if series not in self._running:
            started = self.start(suspect)
            if isinstance(started, str):
                self.say(f"no pairs: {started}")
            self._running[series] = None if isinstance(started, str) else started
        return self._running[series] is not None

    def _pairs(self, series: str) -> Iterator[RecordPair]:
        known = self._known.setdefault(series, [])
        return chain(list(known), self._more(series, known))

    def _more(self, series: str, known: list[RecordPair]) -> Iterator[RecordPair]:
        """Run further pairs. A run that fails, and a budget that is used up, end them."""
        running = self._running[series]
        while running is not None:
            if not self.left(series):
                self.say("the budget holds no further pair")
                return
            try:
                known.append(next(running))
            except StopIteration:
                return
            except RunFailed as error:
                self.say(f"the pairs end: {error}")
                return
            yield known[-1]
