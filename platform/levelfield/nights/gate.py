"""The gate of a night: every expected series compared with its level, suspicions confirmed by pairs, a word for each.

It takes plain values, so it runs on a store, on a list, and in a simulation alike. Nothing is green that was not
compared: what is missing is a finding of its own, and the first line counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from levelfield.errors import RunFailed
from levelfield.nights.gate_input import (
    GateInput,
    awaited_series,
    examinations,
    expected_series,
    findings_about_machines,
    findings_about_runs,
    missing_findings,
    order_of_night,
)
from levelfield.series.causes import families, moved_series, night_chances, without_explained
from levelfield.series.examination import Examination, standing_baseline
from levelfield.series.findings import COMPARED, FIGURES, Finding, worst_first
from levelfield.series.judgement import (
    ExaminedFigure,
    NodeGroup,
    NoPairs,
    Pairs,
    build_excess,
    judge_figure,
    needs_pairs,
    node_groups,
)
from levelfield.series.pairs import (
    MAX_NULLS_OF_A_NIGHT,
    MIN_NULLS,
    Pair,
    PairRuling,
    arm_bias,
    checked_by_nulls,
    is_reconfirmed,
    judged_pairs,
    pairs_so_far,
)
from levelfield.series.segments import change_of, shown_change
from levelfield.series.trigger import FALSE_DISCOVERY_RATE, MANY_SERIES, within_false_discovery_rate
from levelfield.specs.record import GatedFigure, StoredFigures
from levelfield.specs.short_names import short_digest

ConfirmingPairs = Callable[[str, GatedFigure], "Pairs | str | None"]
NullPairs = Callable[[str, GatedFigure], Iterable[Pair]]

MAX_PAIRS_OF_A_NIGHT = 100
MIN_CHANCE = 1e-9  # below it the larger excess is the likelier cause
MAX_NULLS = 21  # of a series in the last weeks: more are not run
# The figures of a series share its pairs: a run has all of them.
RecordPair = tuple[StoredFigures, StoredFigures]  # of the accepted build and of tonight's


@dataclass(frozen=True)
class GateReport:
    """The findings of a night, the worst first."""

    night: str
    findings: tuple[Finding, ...]
    compared: int  # number of series
    expected: int  # number of series
    trials: int = 0  # runs by hand on the day of the night
    order: str = ""  # as in FindingPage

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not in the findings."""
        subject = "1 run by hand is" if self.trials == 1 else f"{self.trials} runs by hand are"
        return (f"{subject} not in it",) if self.trials else ()

    @property
    def first_line(self) -> str:
        """How much was compared, against what; then the counts of every word that is not `no change`."""
        dates = sorted(f.level_since for f in self.findings if f.level_since)
        against = "with no baseline" if not dates else f"with baselines since {dates[0]}"
        newest = f" (the newest: {dates[-1]})" if dates and dates[-1] != dates[0] else ""
        return f"compared {self.compared} of {self.expected} series of night {self.night} {against}{newest}"


@dataclass(frozen=True)
class Suspect:
    """A figure whose night has to be confirmed by pairs."""

    series: str
    figure: GatedFigure
    chance: float  # the probability of such a night without a cause
    examination: Examination


def judge_night(
    inputs: GateInput,
    pairs: ConfirmingPairs = lambda series, figure: None,
    nulls: NullPairs = lambda series, figure: (),
    most_pairs: int | None = None,
    say: Callable[[Finding], None] = lambda finding: None,
) -> GateReport:
    """Return the findings of the night. pairs: of a series' figure, or why there are none; `suspects` says of which.

    nulls: runs further null pairs of a series, one after another. most_pairs: of the night; after as many no
    confirmation begins. say: takes what a figure's pairs show when they end, before the night is judged as a whole.
    """
    spending = _Spending(inputs, pairs, nulls, most_pairs, say)
    members = _members(inputs)
    # one finding for each node on which many series moved alike, and the figures that it stands for
    # A series without a level under tonight's conditions is held against others, which may be the cause.
    groups = node_groups([(a, night) for a, night in members if night.step is None or not night.are_conditions_new])
    by_group = [(group, finding) for group in groups if (finding := _node_finding(group, spending))]
    grouped = {(context.series, group.figure) for group, _ in by_group for context, _ in group.members}
    findings = [finding for _, finding in by_group]
    for member, _ in _ranked(members):
        if _name(member) not in grouped:
            spending.ruling(member)
    members, of_causes = _judge_condition_changes(members, spending)
    for context, examination in members:
        ruling = spending.rulings.get((context.series, examination.figure))
        has_own = not context.is_covered_by_group or context.is_build_worse or isinstance(ruling, PairRuling)
        if (context.series, examination.figure) not in grouped and has_own:
            findings.append(judge_figure(examination, context, ruling))
    done = {f.series for f in findings if f.series and f.word in COMPARED}
    done |= {series for series, _ in grouped} | {
        context.series for context, _ in members if context.is_covered_by_group
    }
    findings = [*_retain_open_regressions(inputs, members, findings), *of_causes, *spending.findings_about_arms()]
    findings += [*findings_about_machines(inputs), *findings_about_runs(inputs), *missing_findings(inputs)]
    ordered = tuple(f.model_copy(update={"night": inputs.night}) for f in worst_first(findings))
    count = len(expected_series(inputs) | done)
    return GateReport(inputs.night, ordered, len(done), count, inputs.trials, order_of_night(inputs))


def _retain_open_regressions(
    inputs: GateInput, members: Sequence[ExaminedFigure], findings: Iterable[Finding]
) -> Iterator[Finding]:
    """Return the findings, where a regression that was named before keeps its word in a night that does not end it."""
    examined = {_name(member): member[1] for member in members}
    not_ended = {name: entry.open_regression for name, entry in examined.items() if entry.open_regression}
    awaited = awaited_series(inputs) if inputs.named_regressions else ()
    for series, figure in inputs.named_regressions:
        if series in awaited and (series, figure) not in examined:
            baseline = standing_baseline(inputs.events_by_series.get(series, ()), f"{inputs.night}~")
            if open_regression := inputs.open_regression(series, figure, baseline):
                not_ended[series, figure] = open_regression
    for finding in findings:
        name = (finding.series, finding.figure)
        open_regression = not_ended.pop(name, None) if finding.figure else None  # type: ignore[arg-type]
        is_ended = open_regression is not None and open_regression.is_ended_by(finding)
        is_ended = is_ended and (bool(finding.pairs) or examined[name].is_back)  # type: ignore[index]
        if open_regression is not None and finding.word == "regression" and finding.pairs:
            is_same = finding.against == open_regression.last.against  # why a step takes longer is known then
            yield finding.model_copy(update={"explanation": open_regression.last.explanation if is_same else ()})
        elif open_regression is None or finding.word == "regression" or is_ended:
            yield finding
        else:
            yield open_regression.undecided(finding)
    for name, open_regression in not_ended.items():  # the night says nothing about the figure itself
        examination = examined.get(name)
        tonight = examination.tonight if examination else None
        reason = "the finding about its node or its conditions stands for it" if tonight else "no valid run of it"
        silent = Finding(
            series=name[0], label=inputs.label(name[0]), figure=name[1], word="inconclusive", detail=reason,
            run_id=tonight.run_id if tonight else None, node=tonight.node if tonight else None,
        )  # fmt: skip
        yield open_regression.undecided(silent)


def suspects(inputs: GateInput) -> list[Suspect]:
    """Return what pairs should confirm, the likeliest first. judge_night with their values gives the findings."""
    ranked = _ranked(_members(inputs))
    return [Suspect(context.series, night.figure, chance, night) for (context, night), chance in ranked]


def _ranked(members: Sequence[ExaminedFigure]) -> list[tuple[ExaminedFigure, float]]:
    """Return what pairs should confirm, the likeliest first, with its probability by chance."""
    chances = night_chances(members)
    ranked: list[tuple[tuple[float, float], ExaminedFigure, float]] = []
    for context, night in members:
        if needs_pairs(night, context):
            chance = chances.get((context.series, night.figure), 1.0)
            excess = night.tonight.cost - night.level.cost if night.level else 0.0
            order = chance if chance > MIN_CHANCE else min(chance, 0), -excess
            ranked.append((order, (context, night), chance))
    return [(member, chance) for _, member, chance in sorted(ranked, key=lambda entry: entry[0])]


def _name(member: ExaminedFigure) -> tuple[str, GatedFigure]:
    return member[0].series, member[1].figure


def _members(inputs: GateInput) -> list[ExaminedFigure]:
    """Return every figure of the night, with the mark of those that many looks explain."""
    members = without_explained(list(examinations(inputs)))
    if len(members) <= MANY_SERIES:
        return members
    chances = [examination.suspicion.p for _, examination in members if examination.suspicion]
    is_left = iter(within_false_discovery_rate(chances, len(members), FALSE_DISCOVERY_RATE))
    return [
        (replace(context, is_likely_chance=bool(night.suspicion) and not next(is_left)), night)
        for context, night in members
    ]


@dataclass
class _Spending:
    """The pairs of a night, in the order in which they are called for, and what they show."""

    inputs: GateInput
    pairs: ConfirmingPairs
    nulls: NullPairs
    most: int | None
    say: Callable[[Finding], None]
    # of each figure that was called for; the reason where no pairs were run; None where they cannot be
    rulings: dict[tuple[str, GatedFigure], PairRuling | NoPairs | None] = field(default_factory=dict)
    _nulls_run: dict[tuple[str, GatedFigure], list[Pair]] = field(default_factory=dict)

    def ruling(self, member: ExaminedFigure) -> PairRuling | NoPairs | None:
        """Return what pairs show about a figure, or why none were run. The first call runs them."""
        name, (context, examination) = _name(member), member
        if name in self.rulings:
            return self.rulings[name]
        spent: Counter[str] = Counter()  # pairs by series: its figures share them, as a run has all figures
        for (series, figure), ruling in self.rulings.items():
            if isinstance(ruling, PairRuling):
                run = ruling.pairs + len(self._nulls_run.get((series, figure), ()))
                spent[series] = max(spent[series], run)
        if self.most is not None and sum(spent.values()) >= self.most and context.series not in spent:
            reason = f"the night's {self.most} pairs were spent on likelier suspicions"
            self.rulings[name] = NoPairs(reason, is_postponed=True)
            return self.rulings[name]
        pairs = self.pairs(*name)
        if pairs is None or isinstance(pairs, str):
            self.rulings[name] = NoPairs(pairs) if pairs else None
            return self.rulings[name]
        figure, direction, level = examination.figure, examination.direction, examination.expected_level_a
        pair_ruling = judged_pairs(pairs, figure, direction, level, examination.reconfirmation_limit)
        if examination.reconfirmation_limit is not None and not (pair_ruling.is_reconfirmed or pair_ruling.is_decided):
            earlier = self.inputs.pairs_since_reconfirmed(context.series, figure, examination)
            together = pairs_so_far([*earlier, *pairs], figure, direction, level, is_last=True)
            pair_ruling = together if earlier and together.is_decided else pair_ruling
        stored = self.inputs.null_pairs(context.series, examination.tonight.node, examination.figure)
        more, is_open = self._more_nulls(member, MAX_NULLS - len(stored)), examination.open_regression is not None
        ruling = checked_by_nulls(pair_ruling, stored, more, examination.figure, is_open)
        self.rulings[name] = ruling
        self.say(judge_figure(examination, context, ruling))
        return ruling

    def _more_nulls(self, member: ExaminedFigure, most: int) -> Iterator[Pair]:
        """Run null pairs beside those of the last weeks."""
        run = self._nulls_run.setdefault(_name(member), [])
        for pair in islice(self.nulls(*_name(member)), max(MIN_NULLS, min(MAX_NULLS_OF_A_NIGHT, most))):
            run.append(pair)
            yield pair

    def findings_about_arms(self) -> Iterator[Finding]:
        """Return one finding for each node and figure whose arms differ with one build in both: of a series or all."""
        ran = {series for (series, _), pairs in self._nulls_run.items() if pairs}
        points_tonight = self.inputs.points_tonight
        nodes = {point.node for points in points_tonight.values() for point in points}
        nodes &= {node for _, node in self.inputs.null_runs}
        nodes |= {point.node for series in ran for point in points_tonight.get(series, ())}
        for node, figure in product(sorted(nodes), FIGURES):
            by_series: dict[str, list[Pair]] = {}
            for series in self.inputs.points:  # those of the last weeks first
                is_here = any(point.node == node for point in points_tonight.get(series, ()))
                tonight = self._nulls_run.get((series, figure), []) if is_here else []
                by_series[series] = [*self.inputs.null_pairs(series, node, figure), *tonight]
            of_all = [pair for pairs in by_series.values() for pair in pairs]
            biases = [arm_bias(pairs, figure) for pairs in (of_all, *by_series.values())]
            faults = [bias for bias in biases if bias is not None and bias.is_a_fault]
            if not faults:
                continue
            bias = max(faults, key=lambda bias: abs(bias.excess))
            change, low, high = shown_change(bias.excess, bias.half_width, figure)
            detail = (
                f"{bias.pairs} A/A pairs have the same build on both sides: the checkouts or their caches differ, "
                "so pairs show changes that no build has, or hide some"
            )
            yield Finding(
                series="", label=f"pairs on node {short_digest(node)}", figure=figure, word="biased arms",
                change=change, low=low, high=high, detail=detail, node=node,
            )  # fmt: skip


def _node_finding(group: NodeGroup, spending: _Spending) -> Finding | None:
    """Return the finding about the node; None where its build, or an unknown cause, moved the series."""
    ruling = spending.ruling(group.clearest)
    if isinstance(ruling, PairRuling):
        if ruling.word != "bad night":
            return None
        reason = f"the baseline build of {group.clearest[0].label} is off its baseline too, by {ruling.pairs} pairs"
    else:
        if not group.is_only_node:
            return None
        reason = "series on other nodes did not move"
    detail = (
        f"{len(group.members)} of {group.series_count} series on node {short_digest(group.node)} moved alike; {reason}"
    )
    return Finding(
        series="", label=f"node {short_digest(group.node)}", figure=group.figure, word="bad night",
        change=change_of(group.excess, group.figure), detail=detail, node=group.node,
        runs=tuple(member.tonight.run_id for _, member in group.members),
    )  # fmt: skip


def _judge_condition_changes(
    members: Sequence[ExaminedFigure], spending: _Spending
) -> tuple[list[ExaminedFigure], list[Finding]]:
    """Return the series with what their changes of conditions mean for them, and the findings about these changes."""
    steps = [
        (
            context,
            examination.without_build_excess(
                build_excess(context, spending.rulings.get(_name((context, examination))))
            ),
        )
        for context, examination in members
    ]
    groups = [group for family in families(steps).values() for group in moved_series(family)]
    moved_ones = {(m.context.series, m.night.figure): len(group.members) > 1 for group in groups for m in group.members}
    changed = []
    for (context, examination), (_, less) in zip(members, steps, strict=True):
        is_moved, name = _name((context, examination)) in moved_ones, (context.series, examination.figure)
        has_stepped = less.step is not None and less.step.is_beyond
        is_likely_chance = context.is_likely_chance or (has_stepped and not is_moved)
        changed.append(
            (
                replace(context, is_likely_chance=is_likely_chance, is_covered_by_group=moved_ones.get(name, False)),
                examination,
            )
        )
    findings = [group.finding() for group in groups if len(group.members) > 1]
    # one more for each change of conditions under which pairs of some series could not be run tonight
    by_cause: dict[tuple[str, ...], dict[str, str]] = {}
    reached: dict[tuple[str, ...], set[str]] = {}
    for context, examination in members:
        if examination.step is not None:
            reached.setdefault(context.cause, set()).add(context.series)
            ruling = spending.rulings.get((context.series, examination.figure))
            if context.are_pairs_due and isinstance(ruling, NoPairs):
                by_cause.setdefault(context.cause, {})[context.label] = ruling.reason
    names = {context.cause: context.change for context, _ in members}
    for cause, reasons in by_cause.items():
        label, reason = next(iter(reasons.items()))
        which = label if len(reasons) == 1 else f"{len(reasons)} of {len(reached[cause])} series"
        detail = f"a slower build may hide behind it: {which} not compared with the baseline build yet; {reason}"
        findings.append(Finding(series="", label=names[cause], figure=None, word="inconclusive", detail=detail))
    return changed, findings


@dataclass
class PairRuns:
    """Pairs of runs, series by series; each runs once."""

    start: Callable[[str], Iterator[RecordPair] | str]  # returns the pairs of a series, or why there are none
    left: Callable[[str], bool]  # whether the budget holds another pair of the series
    say: Callable[[str], None]
    name: str = "pairs"  # of such pairs
    ended: dict[str, str] = field(default_factory=dict)  # by series, why its pairs ended
    _pairs: dict[str, list[RecordPair]] = field(default_factory=dict)
    _running: dict[str, Iterator[RecordPair]] = field(default_factory=dict)

    def of(self, series: str) -> Iterator[RecordPair]:
        """Yield the pairs that have run, then further ones: until the runs end, one fails, or the budget is used up."""
        pairs = self._pairs.setdefault(series, [])
        yield from list(pairs)
        if series not in self._running and series not in self.ended:
            started = self.start(series)
            if isinstance(started, str):
                self._end(series, started)
            else:
                self._running[series] = started
        while series not in self.ended:
            if not self.left(series):
                self._end(series, "the budget of the night holds no further pair")
                return
            try:
                pair = next(self._running[series], None)
            except RunFailed as error:
                self._end(series, str(error))
                return
            if pair is None:
                return
            pairs.append(pair)
            yield pair

    def _end(self, series: str, reason: str) -> None:
        self.ended[series] = reason
        self.say(f"no {'further ' if self._pairs.get(series) else ''}{self.name}: {reason}")


@dataclass
class Confirmation:
    """The source of pairs for a gate. Call it with a series and a figure."""

    suspects: Mapping[tuple[str, GatedFigure], Suspect]  # what the gate wants to know
    runs: PairRuns

    def __call__(self, series: str, figure: GatedFigure) -> Pairs | str | None:
        """Return the values of both builds, pair by pair, as many as the test needs; or why there are none."""
        suspect = self.suspects.get((series, figure))
        if suspect is None:
            return None
        direction, expected = suspect.examination.direction, suspect.examination.expected_level_a
        limit = suspect.examination.reconfirmation_limit
        values: list[Pair] = []
        for accepted, tonight in self.runs.of(series):
            values.append((getattr(accepted, figure), getattr(tonight, figure)))
            if (
                is_reconfirmed(values, figure, limit)
                or pairs_so_far(values, figure, direction, expected).word != "more pairs"
            ):
                break
        return values or self.runs.ended.get(series, "they gave no figures")


def new_findings(findings: Iterable[Finding], inputs: GateInput) -> Iterator[Finding]:
    """Return the findings that change what the store has: a plain `no change` only where it follows another word."""
    until_now = (finding for finding in inputs.past if (finding.night or "") <= inputs.night)
    ordered = sorted(until_now, key=lambda finding: finding.night or "")
    last = {(finding.series, finding.figure, finding.label): finding for finding in ordered}
    for finding in findings:
        before = last.get((finding.series, finding.figure, finding.label))
        is_calm_still = finding.is_plain and (before is None or before.is_plain)
        if finding != before and not is_calm_still:
            yield finding
