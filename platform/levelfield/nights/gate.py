"""The gate of a night: compares every expected series with its level, and lets pairs confirm suspicions.

Each series gets a word. The gate takes plain values, so it runs on a store, on a list, and in a simulation alike. What
was not compared never passes: what is missing is a finding of its own, and the first line counts it.
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
from levelfield.series.causes import change_families, drop_explained_pairs, moved_series, night_probabilities
from levelfield.series.examination import Examination, standing_baseline
from levelfield.series.findings import COMPARED_WORDS, FIGURE_NAMES, Finding, worst_first
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
    MAX_NULL_PAIRS_PER_NIGHT,
    MIN_NULL_PAIRS,
    Pair,
    PairRuling,
    arm_bias,
    correct_by_null_pairs,
    is_reconfirmed,
    judge_pairs,
    pairs_so_far,
)
from levelfield.series.segments import change_interval, change_of
from levelfield.series.trigger import FALSE_DISCOVERY_RATE, MANY_SERIES, within_false_discovery_rate
from levelfield.specs.record import GatedFigure, StoredFigures
from levelfield.specs.short_names import short_digest

ConfirmingPairs = Callable[[str, GatedFigure], "Pairs | str | None"]
NullPairs = Callable[[str, GatedFigure], Iterable[Pair]]

MAX_PAIRS_PER_NIGHT = 100
MIN_PROBABILITY = 1e-9  # of smaller probabilities, the one with the larger excess comes first
MAX_RECENT_NULL_PAIRS = 21  # of a series in the last weeks; with as many no more are run
# The figures of a series share its pairs: a run has all of them.
RecordPair = tuple[StoredFigures, StoredFigures]  # of the accepted build and of tonight's


@dataclass(frozen=True)
class GateReport:
    """The findings of a night, the worst first."""

    night: str
    findings: tuple[Finding, ...]
    compared_count: int  # number of series
    expected_count: int  # number of series
    trial_count: int = 0  # number of runs by hand on the day of the night
    order_problem: str = ""  # as in FindingPage

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not in the findings."""
        subject = "1 run by hand is" if self.trial_count == 1 else f"{self.trial_count} runs by hand are"
        return (f"{subject} not in it",) if self.trial_count else ()

    @property
    def first_line(self) -> str:
        """How much was compared, against what; then the counts of every word that is not `no change`."""
        dates = sorted(f.level_since for f in self.findings if f.level_since)
        against = "with no baseline" if not dates else f"with baselines since {dates[0]}"
        newest = f" (the newest: {dates[-1]})" if dates and dates[-1] != dates[0] else ""
        return f"compared {self.compared_count} of {self.expected_count} series of night {self.night} {against}{newest}"


@dataclass(frozen=True)
class Suspect:
    """A figure whose night has to be confirmed by pairs."""

    series: str
    figure: GatedFigure
    probability: float  # the probability of such a night without a cause
    examination: Examination


def judge_night(
    inputs: GateInput,
    run_pairs: ConfirmingPairs = lambda series, figure: None,
    run_null_pairs: NullPairs = lambda series, figure: (),
    max_pairs: int | None = None,
    report_finding: Callable[[Finding], None] = lambda finding: None,
) -> GateReport:
    """Return the findings of the night. run_pairs: runs those of a series' figure, or returns why there are none.

    `suspects` returns the figures that need pairs. run_null_pairs: runs further null pairs of a series, one after
    another. max_pairs: of the night; after as many no confirmation begins. report_finding: takes the finding on a
    figure when its pairs end, before the night is judged as a whole.
    """
    spending = _PairSpending(inputs, run_pairs, run_null_pairs, max_pairs, report_finding)
    members = _examined_figures(inputs)
    # one finding for each node on which many series moved alike, and the figures that it stands for
    # Not of series without a level under tonight's conditions: the new conditions may have moved those.
    groups = node_groups(
        [member for member in members if member.examination.step is None or not member.examination.are_conditions_new]
    )
    group_findings = [(group, finding) for group in groups if (finding := _node_finding(group, spending))]
    grouped = {(context.series, group.figure) for group, _ in group_findings for context, _ in group.members}
    findings = [finding for _, finding in group_findings]
    for member, _ in _ranked_suspicions(members):
        if _figure_key(member) not in grouped:
            spending.ruling(member)
    members, cause_findings = _judge_condition_changes(members, spending)
    for context, examination in members:
        ruling = spending.rulings.get((context.series, examination.figure))
        has_own_finding = not context.is_covered_by_group or context.is_build_worse or isinstance(ruling, PairRuling)
        if (context.series, examination.figure) not in grouped and has_own_finding:
            findings.append(judge_figure(examination, context, ruling))
    judged_series = {f.series for f in findings if f.series and f.word in COMPARED_WORDS}
    judged_series |= {series for series, _ in grouped} | {
        context.series for context, _ in members if context.is_covered_by_group
    }
    findings = [*_retain_open_regressions(inputs, members, findings), *cause_findings, *spending.findings_about_arms()]
    findings += [*findings_about_machines(inputs), *findings_about_runs(inputs), *missing_findings(inputs)]
    ordered = tuple(f.model_copy(update={"night": inputs.night}) for f in worst_first(findings))
    expected_count = len(expected_series(inputs) | judged_series)
    return GateReport(
        inputs.night, ordered, len(judged_series), expected_count, inputs.trial_count, order_of_night(inputs)
    )


def _retain_open_regressions(
    inputs: GateInput, members: Sequence[ExaminedFigure], findings: Iterable[Finding]
) -> Iterator[Finding]:
    """Yield the findings. A regression that was named before keeps its word in a night that does not end it."""
    examined = {_figure_key(member): member.examination for member in members}
    not_ended = {name: entry.open_regression for name, entry in examined.items() if entry.open_regression}
    awaited = awaited_series(inputs) if inputs.named_regressions else ()
    for series, figure in inputs.named_regressions:
        if series in awaited and (series, figure) not in examined:
            baseline = standing_baseline(inputs.events_by_series.get(series, ()), f"{inputs.night}~")
            if open_regression := inputs.open_regression(series, figure, baseline):
                not_ended[series, figure] = open_regression
    for finding in findings:
        key = (finding.series, finding.figure)
        open_regression = not_ended.pop(key, None) if finding.figure else None  # type: ignore[arg-type]
        is_ended = open_regression is not None and open_regression.is_ended_by(finding)
        is_ended = is_ended and (bool(finding.pairs) or examined[key].is_regression_gone)  # type: ignore[index]
        if open_regression is not None and finding.word == "regression" and finding.pairs:
            is_same = finding.against == open_regression.last_finding.against  # why a step takes longer is known then
            yield finding.model_copy(
                update={"explanation": open_regression.last_finding.explanation if is_same else ()}
            )
        elif open_regression is None or finding.word == "regression" or is_ended:
            yield finding
        else:
            yield open_regression.undecided_finding(finding)
    for key, open_regression in not_ended.items():  # the night says nothing about the figure itself
        examination = examined.get(key)
        tonight = examination.tonight if examination else None
        reason = "the finding about its node or its conditions stands for it" if tonight else "no valid run of it"
        silent = Finding(
            series=key[0], label=inputs.label(key[0]), figure=key[1], word="inconclusive", detail=reason,
            run_id=tonight.run_id if tonight else None, node=tonight.node if tonight else None,
        )  # fmt: skip
        yield open_regression.undecided_finding(silent)


def suspects(inputs: GateInput) -> list[Suspect]:
    """Return the figures that pairs should confirm, the most suspicious first."""
    ranked = _ranked_suspicions(_examined_figures(inputs))
    return [
        Suspect(context.series, examination.figure, probability, examination)
        for (context, examination), probability in ranked
    ]


def _ranked_suspicions(members: Sequence[ExaminedFigure]) -> list[tuple[ExaminedFigure, float]]:
    """Return the figures that pairs should confirm, the most suspicious first, with their probability by chance."""
    probabilities = night_probabilities(members)
    ranked: list[tuple[tuple[float, float], ExaminedFigure, float]] = []
    for member in members:
        context, examination = member
        if needs_pairs(examination, context):
            probability = probabilities.get((context.series, examination.figure), 1.0)
            excess = examination.tonight.cost - examination.level.cost if examination.level else 0.0
            order = probability if probability > MIN_PROBABILITY else min(probability, 0), -excess
            ranked.append((order, member, probability))
    return [(member, probability) for _, member, probability in sorted(ranked, key=lambda entry: entry[0])]


def _figure_key(member: ExaminedFigure) -> tuple[str, GatedFigure]:
    return member.context.series, member.examination.figure


def _examined_figures(inputs: GateInput) -> list[ExaminedFigure]:
    """Return every figure of the night. Among many series, it marks suspicions that chance explains."""
    members = drop_explained_pairs(list(examinations(inputs)))
    if len(members) <= MANY_SERIES:
        return members
    probabilities = [examination.suspicion.probability for _, examination in members if examination.suspicion]
    remaining_flags = iter(within_false_discovery_rate(probabilities, len(members), FALSE_DISCOVERY_RATE))
    marked_contexts = (
        replace(context, is_likely_chance=bool(examination.suspicion) and not next(remaining_flags))
        for context, examination in members
    )
    return [
        ExaminedFigure(context, member.examination) for context, member in zip(marked_contexts, members, strict=True)
    ]


@dataclass
class _PairSpending:
    """The pairs of a night, in the order in which they are asked for, and what they show."""

    inputs: GateInput
    run_pairs: ConfirmingPairs
    run_null_pairs: NullPairs
    max_pairs: int | None
    report_finding: Callable[[Finding], None]
    # of each figure that was asked for; NoPairs where none were run; None where no pairs can be run
    rulings: dict[tuple[str, GatedFigure], PairRuling | NoPairs | None] = field(default_factory=dict)
    _null_pairs_run: dict[tuple[str, GatedFigure], list[Pair]] = field(default_factory=dict)

    def ruling(self, member: ExaminedFigure) -> PairRuling | NoPairs | None:
        """Return what pairs show about a figure, or why none were run. The first call runs them."""
        key, (context, examination) = _figure_key(member), member
        if key in self.rulings:
            return self.rulings[key]
        spent: Counter[str] = Counter()  # pairs by series: its figures share them, as a run has all figures
        for (series, figure), ruling in self.rulings.items():
            if isinstance(ruling, PairRuling):
                run = ruling.pairs + len(self._null_pairs_run.get((series, figure), ()))
                spent[series] = max(spent[series], run)
        if self.max_pairs is not None and sum(spent.values()) >= self.max_pairs and context.series not in spent:
            reason = f"the night's {self.max_pairs} pairs were spent on likelier suspicions"
            self.rulings[key] = NoPairs(reason, is_postponed=True)
            return self.rulings[key]
        pairs = self.run_pairs(*key)
        if pairs is None or isinstance(pairs, str):
            self.rulings[key] = NoPairs(pairs) if pairs else None
            return self.rulings[key]
        figure, direction, level = examination.figure, examination.direction, examination.expected_level_a
        pair_ruling = judge_pairs(pairs, figure, direction, level, examination.reconfirmation_limit)
        if examination.reconfirmation_limit is not None and not (pair_ruling.is_reconfirmed or pair_ruling.is_decided):
            earlier = self.inputs.pairs_since_reconfirmed(context.series, figure, examination)
            joint_ruling = pairs_so_far([*earlier, *pairs], figure, direction, level, is_last=True)
            pair_ruling = joint_ruling if earlier and joint_ruling.is_decided else pair_ruling
        stored_null_pairs = self.inputs.null_pairs(context.series, examination.tonight.node, examination.figure)
        more_null_pairs, is_open = (
            self._more_null_pairs(member, MAX_RECENT_NULL_PAIRS - len(stored_null_pairs)),
            examination.open_regression is not None,
        )
        ruling = correct_by_null_pairs(pair_ruling, stored_null_pairs, more_null_pairs, examination.figure, is_open)
        self.rulings[key] = ruling
        self.report_finding(judge_figure(examination, context, ruling))
        return ruling

    def _more_null_pairs(self, member: ExaminedFigure, max_pairs: int) -> Iterator[Pair]:
        """Run null pairs beside those of the last weeks."""
        pairs_run = self._null_pairs_run.setdefault(_figure_key(member), [])
        for pair in islice(
            self.run_null_pairs(*_figure_key(member)), max(MIN_NULL_PAIRS, min(MAX_NULL_PAIRS_PER_NIGHT, max_pairs))
        ):
            pairs_run.append(pair)
            yield pair

    def findings_about_arms(self) -> Iterator[Finding]:
        """Yield a finding for each node and figure whose arms differ with one build in both, in a series or in all."""
        ran = {series for (series, _), pairs in self._null_pairs_run.items() if pairs}
        points_tonight = self.inputs.points_tonight
        nodes = {point.node for points in points_tonight.values() for point in points}
        nodes &= {node for _, node in self.inputs.null_runs}
        nodes |= {point.node for series in ran for point in points_tonight.get(series, ())}
        for node, figure in product(sorted(nodes), FIGURE_NAMES):
            by_series: dict[str, list[Pair]] = {}
            for series in self.inputs.points:  # those of the last weeks first
                is_here = any(point.node == node for point in points_tonight.get(series, ()))
                tonight = self._null_pairs_run.get((series, figure), []) if is_here else []
                by_series[series] = [*self.inputs.null_pairs(series, node, figure), *tonight]
            all_pairs = [pair for pairs in by_series.values() for pair in pairs]
            biases = [arm_bias(pairs, figure) for pairs in (all_pairs, *by_series.values())]
            faults = [bias for bias in biases if bias is not None and bias.is_a_fault]
            if not faults:
                continue
            bias = max(faults, key=lambda bias: abs(bias.excess))
            change, low, high = change_interval(bias.excess, bias.half_width, figure)
            detail = (
                f"{bias.pairs} A/A pairs have the same build on both sides: the checkouts or their caches differ, "
                "so pairs show changes that no build has, or hide some"
            )
            yield Finding(
                series="", label=f"pairs on node {short_digest(node)}", figure=figure, word="biased arms",
                change=change, low=low, high=high, detail=detail, node=node,
            )  # fmt: skip


def _node_finding(group: NodeGroup, spending: _PairSpending) -> Finding | None:
    """Return the finding about the node; None where the build, or an unknown cause, moved its series."""
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
    members: Sequence[ExaminedFigure], spending: _PairSpending
) -> tuple[list[ExaminedFigure], list[Finding]]:
    """Return the figures, marked by what the changes of conditions explain, and the findings about these changes."""
    steps = []
    for member in members:
        excess = build_excess(member.context, spending.rulings.get(_figure_key(member)))
        steps.append(ExaminedFigure(member.context, member.examination.without_build_excess(excess)))
    groups = [group for family in change_families(steps).values() for group in moved_series(family)]
    is_group_by_key = {
        (m.context.series, m.examination.figure): len(group.members) > 1 for group in groups for m in group.members
    }
    marked_figures = []
    for member, (_, reduced) in zip(members, steps, strict=True):
        key = _figure_key(member)
        has_stepped = reduced.step is not None and reduced.step.is_beyond
        is_likely_chance = member.context.is_likely_chance or (has_stepped and key not in is_group_by_key)
        is_covered = is_group_by_key.get(key, False)
        context = replace(member.context, is_likely_chance=is_likely_chance, is_covered_by_group=is_covered)
        marked_figures.append(ExaminedFigure(context, member.examination))
    findings = [group.finding() for group in groups if len(group.members) > 1]
    # one more for each change of conditions under which pairs of some series could not be run tonight
    reasons_by_cause: dict[tuple[str, ...], dict[str, str]] = {}
    series_by_cause: dict[tuple[str, ...], set[str]] = {}
    for context, examination in members:
        if examination.step is not None:
            series_by_cause.setdefault(context.cause, set()).add(context.series)
            ruling = spending.rulings.get((context.series, examination.figure))
            if context.are_pairs_due and isinstance(ruling, NoPairs):
                reasons_by_cause.setdefault(context.cause, {})[context.label] = ruling.reason
    names = {context.cause: context.change for context, _ in members}
    for cause, reasons in reasons_by_cause.items():
        label, reason = next(iter(reasons.items()))
        which = label if len(reasons) == 1 else f"{len(reasons)} of {len(series_by_cause[cause])} series"
        detail = f"a slower build may hide behind it: {which} not compared with the baseline build yet; {reason}"
        findings.append(Finding(series="", label=names[cause], figure=None, word="inconclusive", detail=detail))
    return marked_figures, findings


@dataclass
class PairRuns:
    """Pairs of runs, series by series; each runs once."""

    start_pairs: Callable[[str], Iterator[RecordPair] | str]  # returns the pairs of a series, or why there are none
    has_budget: Callable[[str], bool]  # whether the budget holds another pair of the series
    say: Callable[[str], None]
    name: str = "pairs"  # in messages
    end_reasons: dict[str, str] = field(default_factory=dict)  # by series, why its pairs ended
    _pairs: dict[str, list[RecordPair]] = field(default_factory=dict)
    _running: dict[str, Iterator[RecordPair]] = field(default_factory=dict)

    def pairs(self, series: str) -> Iterator[RecordPair]:
        """Yield the pairs that have run, then further ones: until the runs end, one fails, or the budget is used up."""
        pairs = self._pairs.setdefault(series, [])
        yield from list(pairs)
        if series not in self._running and series not in self.end_reasons:
            started = self.start_pairs(series)
            if isinstance(started, str):
                self._end(series, started)
            else:
                self._running[series] = started
        while series not in self.end_reasons:
            if not self.has_budget(series):
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
        self.end_reasons[series] = reason
        self.say(f"no {'further ' if self._pairs.get(series) else ''}{self.name}: {reason}")


@dataclass
class Confirmation:
    """The source of pairs for a gate. Call it with a series and a figure."""

    suspects: Mapping[tuple[str, GatedFigure], Suspect]  # by series and figure
    runs: PairRuns

    def __call__(self, series: str, figure: GatedFigure) -> Pairs | str | None:
        """Return the values of both builds, pair by pair, as many as the test needs; or why there are none."""
        suspect = self.suspects.get((series, figure))
        if suspect is None:
            return None
        direction, expected = suspect.examination.direction, suspect.examination.expected_level_a
        limit = suspect.examination.reconfirmation_limit
        values: list[Pair] = []
        for accepted, tonight in self.runs.pairs(series):
            values.append((getattr(accepted, figure), getattr(tonight, figure)))
            if (
                is_reconfirmed(values, figure, limit)
                or pairs_so_far(values, figure, direction, expected).word != "more pairs"
            ):
                break
        return values or self.runs.end_reasons.get(series, "they gave no figures")


def new_findings(findings: Iterable[Finding], inputs: GateInput) -> Iterator[Finding]:
    """Return the findings that change what the store has: a plain `no change` only where it follows another word."""
    past_findings = (finding for finding in inputs.past_findings if (finding.night or "") <= inputs.night)
    ordered = sorted(past_findings, key=lambda finding: finding.night or "")
    last = {(finding.series, finding.figure, finding.label): finding for finding in ordered}
    for finding in findings:
        before = last.get((finding.series, finding.figure, finding.label))
        is_still_plain = finding.is_plain and (before is None or before.is_plain)
        if finding != before and not is_still_plain:
            yield finding
