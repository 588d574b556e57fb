"""The gate of a night: every expected series compared with its level, suspicions confirmed by pairs, a word for each.

It takes plain values, so it runs on a store, on a list, and in a simulation alike. Nothing is green that was not
compared: what is missing is a finding of its own, and the first line counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain

from levelfield.errors import RunFailed
from levelfield.nights.gate_input import GateInput, examinations, expected_series, findings_about_runs, missing_findings
from levelfield.series.examination import Examination
from levelfield.series.findings import COMPARED, Finding, in_order, short
from levelfield.series.judgement import Judged, NodeGroup, Pairs, judged_night, node_groups, wants_pairs
from levelfield.series.pairs import PairedTest, judged_pairs
from levelfield.series.segments import change_of
from levelfield.series.trigger import Z, kept_of_many
from levelfield.specs.record import Gated, RunRecord

ConfirmingPairs = Callable[[str, Gated], "Pairs | None"]

# The figures of a series share its pairs: a run has all of them.
RecordPair = tuple[RunRecord, RunRecord]  # of the accepted build and of tonight's


@dataclass(frozen=True)
class GateReport:
    """The findings of a night, the worst first. compared, expected: numbers of series."""

    night: str
    findings: tuple[Finding, ...]
    compared: int
    expected: int

    @property
    def first_line(self) -> str:
        """How much was compared, against what; then the counts of every word that is not `no change`."""
        dates = sorted(f.level_since for f in self.findings if f.level_since)
        against = "with no level" if not dates else f"with levels since {dates[0]}"
        newest = f" (the newest: {dates[-1]})" if dates and dates[-1] != dates[0] else ""
        return f"compared {self.compared} of {self.expected} series of night {self.night} {against}{newest}"


@dataclass(frozen=True)
class Suspect:
    """A figure whose night has to be confirmed by pairs. size: how far beyond its threshold, the largest first."""

    series: str
    figure: Gated
    node: str
    size: float
    examination: Examination


def compared(given: GateInput, pairs: ConfirmingPairs = lambda series, figure: None) -> GateReport:
    """Return the findings of the night. pairs: of a series' figure, or None; `suspects` says which are needed."""
    judged, pairs = _marked(list(examinations(given))), cache(pairs)
    found, grouped = _of_groups(judged, pairs)
    for around, examination in judged:
        if (around.series, examination.figure) not in grouped:
            found.append(judged_night(examination, around, partial(pairs, around.series, examination.figure)))
    done = {f.series for f in found if f.series and f.word in COMPARED} | {series for series, _ in grouped}
    found += [*findings_about_runs(given), *missing_findings(given)]
    named = tuple(f.model_copy(update={"night": given.night}) for f in in_order(found))
    return GateReport(given.night, named, len(done), len(expected_series(given) | done))


def suspects(given: GateInput) -> list[Suspect]:
    """Return what pairs should confirm, the largest first. `compared` with their values then gives the findings."""
    found = []
    for around, examination in _marked(list(examinations(given))):
        level, night = examination.level, examination.tonight
        if level is not None and wants_pairs(examination, around):
            size = abs(night.cost - level.cost) / level.threshold(Z)
            found.append(Suspect(around.series, examination.figure, night.node, size, examination))
    return sorted(found, key=lambda suspect: -suspect.size)


def _marked(judged: list[Judged]) -> list[Judged]:
    """Return the same with the mark of those that many looks explain."""
    kept = iter(kept_of_many([found.suspicion for _, found in judged if found.suspicion], len(judged)))
    return [(replace(around, is_chance=bool(found.suspicion) and not next(kept)), found) for around, found in judged]


def _of_groups(judged: Sequence[Judged], pairs: ConfirmingPairs) -> tuple[list[Finding], set[tuple[str, Gated]]]:
    """Return one finding for each node on which many series moved alike, and the figures that it stands for."""
    found = [(group, finding) for group in node_groups(judged) if (finding := _of_group(group, pairs))]
    grouped = {(around.series, group.figure) for group, _ in found for around, _ in group.members}
    return [finding for _, finding in found], grouped


def _of_group(group: NodeGroup, pairs: ConfirmingPairs) -> Finding | None:
    """Return the finding about the node; None where its build, or an unknown cause, moved the series."""
    around, clearest = group.clearest
    values = pairs(around.series, group.figure)
    if values is None:
        if not group.is_alone:
            return None
        reason = "series on other nodes did not move"
    else:
        ruling = judged_pairs(list(values), group.figure, clearest.direction, clearest.expected_first)
        if ruling.word != "bad night":
            return None
        reason = f"the accepted build of {around.label} is off its level too, by {ruling.pairs} pairs"
    detail = f"{len(group.members)} of {group.of} series on node {short(group.node)} moved alike; {reason}"
    return Finding(
        series="", label=f"node {short(group.node)}", figure=group.figure, word="bad night",
        change=change_of(group.excess, group.figure), detail=detail, node=group.node,
        runs=tuple(member.tonight.run_id for _, member in group.members),
    )  # fmt: skip


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
        test = PairedTest(figure, suspect.examination.direction, suspect.examination.expected_first)
        values: list[tuple[float | None, float | None]] = []
        known = self._known.setdefault(series, [])
        for accepted, tonight in chain(list(known), self._more(series, known)):
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
