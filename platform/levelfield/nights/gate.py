"""The gate of a night: every expected series compared with its level, suspicions confirmed by pairs, a word for each.

It takes plain values, so it runs on a store, on a list, and in a simulation alike. Nothing is green that was not
compared: what is missing is a finding of its own, and the first line counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from levelfield.errors import RunFailed
from levelfield.nights.gate_input import (
    GateInput,
    awaited_series,
    examinations,
    expected_series,
    findings_about_arms,
    findings_about_machines,
    findings_about_runs,
    missing_findings,
)
from levelfield.series.causes import NodeGroup, families, moved, node_groups, still_due, suspiciousness
from levelfield.series.examination import Examination
from levelfield.series.findings import COMPARED, Finding, in_order
from levelfield.series.judgement import Judged, NoPairs, Pair, Pairs, Share, judged_night
from levelfield.series.pairs import PairedTest, PairRuling, judged_pairs, less_bias
from levelfield.series.segments import change_of
from levelfield.series.trigger import FALSE_SHARE, MANY, kept_of_many
from levelfield.specs.record import Gated, RunRecord
from levelfield.specs.short_names import short_digest

ConfirmingPairs = Callable[[str, Gated], "Pairs | str | None"]

MOST_PAIRS_OF_A_NIGHT = 100
LEAST_CHANCE = 1e-9  # below it the larger excess is the likelier cause
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


def compared(
    given: GateInput,
    pairs: ConfirmingPairs = lambda series, figure: None,
    most_pairs: int | None = None,
) -> GateReport:
    """Return the findings of the night. pairs: of a series' figure, or why there are none; `suspects` says of which.

    most_pairs: of the night; after as many no confirmation begins.
    """
    spending = _Spending(given, pairs, most_pairs)
    judged = _judged(given)
    of_nodes, of_group = _of_groups([each for each in judged if not each.found.is_under_change], spending)
    for each in _in_order(judged):
        if each.name not in of_group:
            spending.ruling(each)
    judged, of_causes, shared = _of_causes(judged, spending)
    found = list(of_nodes)
    for each in judged:
        ruling = spending.rulings.get(each.name)
        has_own = each.name not in shared or each.is_slower or isinstance(ruling, PairRuling)
        if each.name not in of_group and has_own:
            found.append(judged_night(each, ruling))
    done = {f.series for f in found if f.series and f.word in COMPARED} | {series for series, _ in of_group | shared}
    found = [*_with_open(given, judged, found), *of_causes, *findings_about_arms(given)]
    found += [*findings_about_machines(given), *findings_about_runs(given), *missing_findings(given)]
    named = tuple(f.model_copy(update={"night": given.night}) for f in in_order(found))
    return GateReport(given.night, named, len(done), len(expected_series(given) | done))


def _with_open(given: GateInput, judged: Sequence[Judged], findings: Iterable[Finding]) -> Iterator[Finding]:
    """Return the findings, where a regression that was named before keeps its word in a night that does not end it."""
    examined = {each.name: each.found for each in judged}
    opened = {name: found.opened for name, found in examined.items() if found.opened}
    awaited = awaited_series(given) if given.named_regressions else ()
    for series, figure in given.named_regressions:
        known = given.open_regression(series, figure, given.held(series)) if series in awaited else None
        if known is not None and (series, figure) not in examined:
            opened[series, figure] = known
    for finding in findings:
        known = opened.pop((finding.series, finding.figure), None) if finding.figure else None
        if known is None or finding.word == "regression":
            yield finding
            continue
        assert finding.figure is not None
        by_tonight = finding.pairs or examined[finding.series, finding.figure].is_back
        yield finding if known.is_ended_by(finding) and by_tonight else known.undecided(finding)
    for name, known in opened.items():
        yield known.undecided(_unjudged(given, name, examined.get(name)))


def _unjudged(given: GateInput, name: tuple[str, Gated], found: Examination | None) -> Finding:
    """Return that the night says nothing about a figure by itself. found: where another finding stands for it."""
    series, figure = name
    why = "no valid run of it" if found is None else "the finding about its node or its conditions stands for it"
    tonight = found.tonight if found else None
    return Finding(
        series=series, label=given.label(series), figure=figure, word="inconclusive", detail=why,
        run_id=tonight.run_id if tonight else None, node=tonight.node if tonight else None,
    )  # fmt: skip


def suspects(given: GateInput) -> list[Judged]:
    """Return what pairs should confirm, the likeliest first. `compared` with their values then gives the findings."""
    return _in_order(_judged(given))


def _in_order(judged: Sequence[Judged]) -> list[Judged]:
    chances = suspiciousness(judged)

    def urgency(each: Judged) -> tuple[float, float]:
        chance = chances.get(each.name, 1.0)
        return chance if chance > LEAST_CHANCE else min(chance, 0), -each.found.above

    return sorted((each for each in judged if each.wants_pairs), key=urgency)


def _judged(given: GateInput) -> list[Judged]:
    """Return every figure of the night, with the mark of those that many looks explain."""
    judged = still_due(list(examinations(given)))
    if len(judged) <= MANY:
        return judged
    suspicions = [each.found.suspicion for each in judged]
    kept = iter(kept_of_many([found.p for found in suspicions if found], len(judged), FALSE_SHARE))
    return [
        replace(each, share="chance") if suspicion and not next(kept) else each
        for each, suspicion in zip(judged, suspicions, strict=True)
    ]


@dataclass
class _Spending:
    """The pairs of a night, in the order in which they are called for, and what they show.

    rulings: of each figure that was called for; the reason where no pairs were run; None where they cannot be.
    """

    given: GateInput
    pairs: ConfirmingPairs
    most: int | None
    rulings: dict[tuple[str, Gated], PairRuling | NoPairs | None] = field(default_factory=dict)

    def ruling(self, judged: Judged) -> PairRuling | NoPairs | None:
        """Return what pairs show about a figure, or why none were run. The first call runs them."""
        if judged.name not in self.rulings:
            self.rulings[judged.name] = self._ruling(judged)
        return self.rulings[judged.name]

    def _ruling(self, judged: Judged) -> PairRuling | NoPairs | None:
        spent: dict[str, int] = {}  # by series: its figures share the pairs, as a run has all figures
        for (series, _), ruling in self.rulings.items():
            if isinstance(ruling, PairRuling):
                spent[series] = max(spent.get(series, 0), ruling.pairs)
        if self.most is not None and sum(spent.values()) >= self.most and judged.series not in spent:
            return NoPairs(f"the night's {self.most} pairs were spent on likelier suspicions", "put off")
        pairs, found = self.pairs(*judged.name), judged.found
        if pairs is None or isinstance(pairs, str):
            return NoPairs(pairs) if pairs else None
        ruling = judged_pairs(pairs, found.figure, found.direction, found.expected_first)
        return less_bias(ruling, self.given.arm_bias(found.tonight.node, found.figure))


def _of_groups(judged: Sequence[Judged], spending: _Spending) -> tuple[list[Finding], set[tuple[str, Gated]]]:
    """Return one finding for each node on which many series moved alike, and the figures that it stands for."""
    found = [(group, finding) for group in node_groups(judged) if (finding := _of_group(group, spending))]
    return [finding for _, finding in found], {member.name for group, _ in found for member in group.members}


def _of_group(group: NodeGroup, spending: _Spending) -> Finding | None:
    """Return the finding about the node; None where its build, or an unknown cause, moved the series."""
    ruling, clearest = spending.ruling(group.clearest), group.clearest
    if isinstance(ruling, PairRuling):
        if ruling.word != "bad night":
            return None
        reason = f"the accepted build of {clearest.label} is off its level too, by {ruling.pairs} pairs"
    else:
        if not group.is_alone:
            return None
        reason = "series on other nodes did not move"
    node, figure = clearest.found.tonight.node, clearest.found.figure
    detail = f"{len(group.members)} of {group.of} series on node {short_digest(node)} moved alike; {reason}"
    return Finding(
        series="", label=f"node {short_digest(node)}", figure=figure, word="bad night",
        change=change_of(group.excess, figure), detail=detail, node=node,
        runs=tuple(member.found.tonight.run_id for member in group.members),
    )  # fmt: skip


def _of_causes(
    judged: Sequence[Judged], spending: _Spending
) -> tuple[list[Judged], list[Finding], set[tuple[str, Gated]]]:
    """Return the series with what their changes of conditions mean for them, the findings about these changes, and the
    figures that these stand for."""
    steps = [each.less_build(spending.rulings.get(each.name)) for each in judged]
    groups = [group for family in families(steps).values() for group in moved(family)]
    of_moved = {member.name for group in groups for member in group.members}
    groups = [group for group in groups if len(group.members) > 1]
    shared = {member.name for group in groups for member in group.members}
    by_chance = {step.name for step in steps if step.found.has_stepped} - of_moved
    by_chance |= {each.name for each in judged if each.share == "chance"}
    found: list[Judged] = []
    for each in judged:
        share: Share = "chance" if each.name in by_chance else "together" if each.name in shared else "own"
        found.append(replace(each, share=share))
    return found, [*(group.finding() for group in groups), *_not_compared(judged, spending)], shared


def _not_compared(judged: Sequence[Judged], spending: _Spending) -> Iterator[Finding]:
    """Return a finding for each change of conditions under which pairs of some series could not be run tonight."""
    by_cause: dict[tuple[str, ...], dict[str, str]] = {}
    reached: dict[tuple[str, ...], set[str]] = {}
    for each in judged:
        if each.found.step is not None:
            reached.setdefault(each.cause, set()).add(each.series)
            ruling = spending.rulings.get(each.name)
            if each.is_due and isinstance(ruling, NoPairs):
                by_cause.setdefault(each.cause, {})[each.label] = ruling.reason
    names = {each.cause: each.change for each in judged}
    for cause, reasons in by_cause.items():
        label, reason = next(iter(reasons.items()))
        which = label if len(reasons) == 1 else f"{len(reasons)} of {len(reached[cause])} series"
        detail = f"a slower build may hide behind it: {which} not compared with the accepted build yet; {reason}"
        yield Finding(series="", label=names[cause], figure=None, word="inconclusive", detail=detail)


@dataclass
class PairRuns:
    """The source of pairs for a gate: pairs of runs, series by series; each runs once, for all figures of its series.

    suspects: what the gate wants to know. start: returns the pairs of a series, or why there are none. left: whether
    the budget holds another pair of the series.
    """

    suspects: Mapping[tuple[str, Gated], Judged]
    start: Callable[[str], Iterator[RecordPair] | str]
    left: Callable[[str], bool]
    say: Callable[[str], None]
    _known: dict[str, list[RecordPair]] = field(default_factory=dict)
    _running: dict[str, Iterator[RecordPair] | str] = field(default_factory=dict)

    def __call__(self, series: str, figure: Gated) -> Pairs | str | None:
        """Return the values of both builds, pair by pair, as many as the test needs; or why there are none."""
        suspect = self.suspects.get((series, figure))
        if suspect is None:
            return None
        test = PairedTest(figure, suspect.found.direction, suspect.found.expected_first)
        values: list[Pair] = []
        for accepted, tonight in self.of(series):
            values.append((getattr(accepted, figure), getattr(tonight, figure)))
            if test.add(*values[-1]).is_final:
                break
        running = self._running.get(series)
        return values or (running if isinstance(running, str) else "they gave no figures")

    def of(self, series: str) -> Iterator[RecordPair]:
        """Yield the pairs that have run, then further ones: until the runs end, one fails, or the budget is used up."""
        known = self._known.setdefault(series, [])
        yield from list(known)
        while (pair := self._next(series)) is not None:
            known.append(pair)
            yield pair

    def _next(self, series: str) -> RecordPair | None:
        if series not in self._running:
            self._set(series, self.start(series))
        running = self._running[series]
        if isinstance(running, str):
            return None
        if self.left(series):
            try:
                return next(running, None)
            except RunFailed as error:
                self._set(series, str(error))
        else:
            self._set(series, "the budget of the night holds no further pair")
        return None

    def _set(self, series: str, running: Iterator[RecordPair] | str) -> None:
        self._running[series] = running
        if isinstance(running, str):
            self.say(f"no {'further ' if self._known.get(series) else ''}pairs: {running}")
