"""The input of a gate: plain values of a night, the examination of every figure, and findings about what has none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property
from itertools import chain

from levelfield.series.examination import Era, Examination, era_of, examine_figure, nights_before
from levelfield.series.findings import (
    FIGURE_NAMES,
    Finding,
    FindingWord,
    OpenRegression,
    open_regressions,
    set_back_nights,
)
from levelfield.series.judgement import ExaminedFigure, JudgementContext, Pairs
from levelfield.series.pairs import Pair, arm_bias, is_reconfirmed
from levelfield.series.segments import (
    Segment,
    condition_changes,
    days_between,
    differences,
    excess_of,
    is_evidence,
    level_points,
    night_of,
    observations,
    segments_of,
)
from levelfield.specs.record import NULL_PURPOSES, Conditions, GatedFigure, Point, Series, StoreEvent
from levelfield.specs.short_names import short_digest, short_value

_EXPECTED_DAYS = 14  # without expected entries, a series that ran within these days is expected
_REGULAR_NIGHTS = 7  # so many nights had a figure before it counts as missing
HABIT_DAYS = 28  # they show on which days of the week nights run
NULL_PAIR_DAYS = 21  # null pairs show for so long how far the arms differ


@dataclass(frozen=True)
class GateInput:
    """The plain values that a gate works on."""

    night: str
    points: Mapping[str, Sequence[Point]]  # of every series by its digest, all nights, in any order
    series: Mapping[str, Series]
    events: Sequence[StoreEvent] = ()
    # entries of the night, with the digest of their series where it is known
    expected_entries: Mapping[str, str | None] = field(default_factory=dict)
    past_findings: Sequence[Finding] = ()  # of earlier nights, and of this one where it was judged already
    # returns conditions by their digest, for the names of what changed
    find_conditions: Callable[[str], Conditions | None] = lambda digest: None
    invalid_reason: Callable[[str], str | None] = lambda run_id: None  # returns why a run is not valid, by its id
    workload: Callable[[str], Mapping[str, object]] = lambda run_id: {}  # returns the numbers of a run's work
    has_commit: Callable[[str], bool] = lambda subject: True  # whether a commit holds all of a build, by its digest
    trial_count: int = 0  # number of runs by hand on the day of the night, which are in no points
    nights: Sequence[str] = ()  # all of the store; of the suite alone where there is one

    @cached_property
    def points_tonight(self) -> dict[str, list[Point]]:
        """The points of the night by series, without the runs of confirmations."""
        groups = {
            s: [p for p in points if night_of(p) == self.night and p.is_trend_point]
            for s, points in self.points.items()
        }
        return {series: points for series, points in groups.items() if points}

    def stored_pairs(self, series: str, figure: GatedFigure) -> Pairs | None:
        """Return the pairs that the night ran: values of the accepted build and of tonight's. None without any.

        A pair with a run that may stand in no comparison is left out, as by the night itself.
        """
        return self._pairs_of(series, figure, self.night) or None

    def _pairs_of(self, series: str, figure: GatedFigure, night: str) -> list[Pair]:
        runs = sorted((p for p in self.points.get(series, ()) if p.night == night), key=lambda p: p.began)
        first, second = ([p for p in runs if p.purpose == arm] for arm in ("confirm-a", "confirm-b"))
        pairs = [(a, b) for a, b in zip(first, second, strict=False) if a.is_comparable and b.is_comparable]
        return [(getattr(a, figure), getattr(b, figure)) for a, b in pairs]

    def pairs_since_reconfirmed(self, series: str, figure: GatedFigure, examination: Examination) -> list[Pair]:
        """Return the pairs of earlier nights since pairs last showed the named regression of an examination."""
        open_regression, pairs = examination.open_regression, list[Pair]()
        last = (open_regression.last_finding.night or "") if open_regression else ""
        nights = {p.night for p in self.points.get(series, ()) if p.night and last < p.night < self.night}
        for night in sorted(nights):
            ran = self._pairs_of(series, figure, night)
            pairs = [] if is_reconfirmed(ran, figure, examination.reconfirmation_limit) else [*pairs, *ran]
        return pairs

    @cached_property
    def series_by_entry(self) -> dict[str, str]:
        """The series that ran tonight for an entry, where the runs name it."""
        return {p.entry: series for series, points in self.points_tonight.items() for p in points if p.entry}

    @cached_property
    def events_by_series(self) -> dict[str, list[StoreEvent]]:
        groups: dict[str, list[StoreEvent]] = defaultdict(list)
        for event in self.events:
            groups[event.series].append(event)
        return groups

    @cached_property
    def named_regressions(self) -> dict[tuple[str, GatedFigure], OpenRegression]:
        """The regressions that earlier nights named and none found gone, by series and figure."""
        return open_regressions(self.past_findings, self.night)

    def open_regression(self, series: str, figure: GatedFigure, baseline: StoreEvent | None) -> OpenRegression | None:
        """Return the regression of a figure that is still there; None where the baseline accepts its nights too."""
        regression = self.named_regressions.get((series, figure))
        if regression is None or baseline is None:
            return regression
        began = {point.run_id: point.began for point in self.points.get(series, ())}
        first = began.get(regression.first_finding.run_id or "") or regression.first_finding.night or ""
        return None if any(began.get(run, "") >= first for run in baseline.runs) else regression

    def null_pairs(self, series: str, node: str, figure: GatedFigure) -> list[Pair]:
        """Return the figures of the series' null pairs on the node in the last weeks, in order of time."""
        pairs: list[Pair] = []
        waiting: Point | None = None
        for point in self.null_runs.get((series, node), ()):
            if waiting is None or waiting.purpose == point.purpose:  # its other run failed
                waiting = point
            else:
                a, b = sorted((waiting, point), key=lambda run: run.purpose)
                pairs.append((getattr(a, figure), getattr(b, figure)))
                waiting = None
        return pairs

    @cached_property
    def null_runs(self) -> dict[tuple[str, str], list[Point]]:
        """The runs of null pairs that are not too old, by series and node, in order of time."""
        null_runs: dict[tuple[str, str], list[Point]] = defaultdict(list)
        for series, points in self.points.items():
            for point in sorted(points, key=lambda run: run.began):
                age = days_between(night_of(point), self.night)
                if (
                    point.purpose in NULL_PURPOSES
                    and point.is_comparable
                    and age is not None
                    and 0 <= age <= NULL_PAIR_DAYS
                ):
                    null_runs[series, point.node].append(point)
        return null_runs

    def label(self, series: str) -> str:
        return self.series[series].label if series in self.series else short_digest(series)


def examinations(inputs: GateInput) -> Iterator[ExaminedFigure]:
    """Return every figure of every series that has valid runs tonight."""
    # the last finding about each run of each figure, from nights before this one
    last_findings = {
        (f.series, f.figure, f.run_id or f.night, f.node): f for f in inputs.past_findings if f.night != inputs.night
    }
    findings_by_series: dict[str, list[Finding]] = defaultdict(list)
    for finding in last_findings.values():
        findings_by_series[finding.series].append(finding)
    node_findings = findings_by_series.get("", [])
    set_back = set_back_nights(inputs.past_findings) - {inputs.night}
    for series in inputs.points:
        tonight = [p for p in inputs.points_tonight.get(series, []) if is_evidence(p)]
        if not tonight:
            continue
        tonight.sort(key=lambda point: point.began)
        earlier = (p for p in inputs.points[series] if p.began <= tonight[-1].began)
        history = level_points(p for p in earlier if night_of(p) not in set_back)
        run_findings = [
            finding for finding in (*findings_by_series.get(series, ()), *node_findings) if finding.figure is None
        ]
        nights = _SeriesNights(series, tonight, history, {run for finding in run_findings for run in finding.bad_runs})
        for figure in FIGURE_NAMES:
            findings = [
                finding for finding in (*findings_by_series.get(series, ()), *node_findings) if finding.figure == figure
            ]
            if entry := _examine(inputs, nights, figure, findings):
                yield entry


@dataclass(frozen=True)
class _SeriesNights:
    """The nights of one series."""

    series: str
    tonight: Sequence[Point]  # in order of time
    history: Sequence[Point]  # tonight's, and all before that may be evidence
    bad_machine_runs: Collection[str]  # ids of runs of nights in which the control found their machine slow

    @cached_property
    def segments(self) -> list[Segment]:
        return segments_of(self.history)


def _examine(
    inputs: GateInput, nights: _SeriesNights, figure: GatedFigure, past: Sequence[Finding]
) -> ExaminedFigure | None:
    tonight = observations(nights.tonight, figure)
    if not tonight:
        return None
    events = inputs.events_by_series.get(nights.series, [])
    evidence = {run for event in events if event.kind == "baseline" for run in event.runs}
    bad_runs = {run for finding in past for run in finding.bad_runs}.union(nights.bad_machine_runs)
    left_out = bad_runs - evidence - {point.run_id for point in nights.tonight}
    segments = segments_of([p for p in nights.history if p.run_id not in left_out]) if left_out else nights.segments
    # Findings about a node are left out: there all series were slow, not this one alone.
    lone_bad_runs = {run for finding in past if finding.series for run in finding.bad_runs} - evidence
    lone_bad_points = [point for point in nights.history if point.run_id in lone_bad_runs]
    better_runs, worse_runs = (_changed_runs(past, word) - evidence for word in ("improvement", "regression"))
    cleared_runs = {f.run_id for f in past if f.pairs and f.word == "no change" and f.run_id}
    subjects = {point.run_id: point.subject for point in nights.history}
    examined_nights: list[tuple[Era, Examination]] = []

    def can_run_again(run_id: str) -> bool:
        return run_id not in subjects or inputs.has_commit(subjects[run_id])

    for night in tonight:
        index = segment_index(segments, night.run_id)
        era = era_of(segments, index, events, night.began, night.run_id)
        open_regression, changed = inputs.open_regression(nights.series, figure, era.baseline), better_runs | worse_runs
        before = nights_before(
            era, figure, night, cleared_runs, changed, lone_bad_points, better_runs, open_regression, can_run_again
        )
        examined_nights.append((era, examine_figure(figure, night, before)))
    # Of several nodes in a night the worst one is judged: the one farthest above its level.
    excesses = (
        examination.tonight.cost - examination.level.cost if examination.level else float("-inf")
        for _, examination in examined_nights
    )
    _, (era, worst) = max(zip(excesses, examined_nights, strict=True), key=lambda pair: pair[0])
    if worst.open_regression:
        # of tonight's node; where it has too few null pairs, of all
        by_node = {
            node: inputs.null_pairs(series, node, figure)
            for series, node in inputs.null_runs
            if series == nights.series
        }
        here = by_node.get(worst.tonight.node, [])
        bias = arm_bias(here, figure) or arm_bias(chain.from_iterable(by_node.values()), figure)
        worst = replace(worst, arm_bias=bias.excess if bias else 0.0)
    return ExaminedFigure(_judgement_context(inputs, nights, era, worst, past), worst)


def _changed_runs(past: Sequence[Finding], word: FindingWord) -> set[str]:
    """Return the runs that were found changed, and inconclusive ones right before them that moved alike."""
    changed: set[str] = set()
    for i, finding in enumerate(past):
        if finding.word != word or finding.fields:
            continue
        runs = [finding.run_id]
        for before in reversed(past[:i]):
            is_alike = (before.change or 0) * (finding.change or 0) > 0
            if before.word != "inconclusive" or before.pairs or not is_alike:
                break
            runs.append(before.run_id)
        changed |= {run for run in runs if run}
    return changed


def segment_index(segments: Sequence[Segment], run_id: str) -> int:
    """Return the index of the segment that has the run."""
    return next(i for i in reversed(range(len(segments))) if any(p.run_id == run_id for p in segments[i].points))


def _judgement_context(
    inputs: GateInput, nights: _SeriesNights, era: Era, examination: Examination, past: Sequence[Finding]
) -> JudgementContext:
    plain = JudgementContext(nights.series, inputs.label(nights.series))
    if len(era.segments) == 1:
        return plain
    digests = tuple(segment.conditions for segment in era.segments[-2:])
    fields = condition_changes(*(inputs.find_conditions(digest) for digest in digests))
    run_ids = {point.run_id for point in era.segments[-1].points}
    by_pairs = [f for f in past if f.pairs and f.run_id in run_ids]
    decided = next((f for f in reversed(by_pairs) if f.build_change is not None), None)
    is_worse = decided is not None and decided.word == "regression"
    builds = {point.run_id: point.subject for point in nights.history}
    is_other = builds.get(examination.baseline_run) != builds[examination.tonight.run_id]
    return replace(
        plain,
        fields=fields,
        cause=fields or digests,
        are_pairs_due=examination.step is not None and is_other and (not by_pairs or is_worse),
        is_build_worse=is_worse,
        is_build_cleared=decided is not None and not is_worse,
        build_excess=excess_of(decided.build_change or 0.0, examination.figure) if decided else 0.0,
    )


def expected_series(inputs: GateInput) -> set[str]:
    """Return the series of the expected entries, else every series that ran lately.

    An entry whose series is not known stands for itself.
    """
    if inputs.expected_entries:
        return {_series_of(inputs, entry, series) or entry for entry, series in inputs.expected_entries.items()}
    expected = set()
    for series, points in inputs.points.items():  # runs by hand are not expected again
        nights = [p.began[:10] for p in points if p.purpose == "nightly" and night_of(p) < inputs.night]
        age = days_between(max(nights, default=""), inputs.night)
        if inputs.points_tonight.get(series, []) or (age is not None and age <= _EXPECTED_DAYS):
            expected.add(series)
    return expected


def awaited_series(inputs: GateInput) -> set[str]:
    """Return the known series of the night's entries, also of entries that did not run, but not of those with other
    work.
    """
    if not inputs.expected_entries:
        return expected_series(inputs)
    entries = ((entry, series) for entry, series in inputs.expected_entries.items() if series)
    return {series for entry, series in entries if _series_of(inputs, entry, series) in (series, None)}


def findings_about_runs(inputs: GateInput) -> Iterator[Finding]:
    """Yield the findings about tonight's runs as a whole: training differs, invalid run."""
    for series in inputs.points:
        tonight = inputs.points_tonight.get(series, [])
        for point in tonight:
            if point.verdict in ("different", "diverged"):
                yield _run_finding(inputs, series, "training differs", f"alignment: {point.verdict}", point)
        for point in tonight[-1:]:
            if not any(map(is_evidence, tonight)) and point.verdict not in ("different", "diverged"):
                word = point.evidence if point.word == "valid" else point.word
                reason = ": ".join(filter(None, (word, inputs.invalid_reason(point.run_id))))
                yield _run_finding(inputs, series, "invalid run", reason, point)


def findings_about_machines(inputs: GateInput) -> Iterator[Finding]:
    """Yield the findings about tonight's machines from before the gate: a wrong clock, and slow machines with runs.

    No level rests on them.
    """
    tonight = [f for f in inputs.past_findings if f.night == inputs.night and not f.series]
    yield from [f for f in tonight if f.is_set_back][-1:]
    slow = {f.node: f for f in tonight if f.word == "bad night" and f.figure is None}
    for node, finding in slow.items():
        points = (point for points in inputs.points_tonight.values() for point in points if point.node == node)
        yield finding.model_copy(update={"runs": tuple(point.run_id for point in points)})


def set_back_finding(night: str, newest: str) -> Finding:
    """Return the finding about a night that is dated before the newest one that the store had when it began."""
    detail = f"dated before night {newest}, which the store had already: is the clock wrong? No baseline rests on it"
    return Finding(
        series="", label=f"night {night}", figure=None, word="incomparable", detail=detail, night=night,
        fields=(f"night {newest} -> {night}",),
    )  # fmt: skip


def order_of_night(inputs: GateInput) -> str:
    """Return what is wrong with the night's place among the others, for the first line; empty where nothing is."""
    for finding in inputs.past_findings:
        if finding.is_set_back and finding.night == inputs.night:
            return f"dated before night {finding.fields[0].split()[1]}"
    last, count = nights_not_run(inputs.nights, inputs.night)
    return f"{count} night{'s' * (count > 1)} after {last} did not run" if count else ""


def nights_not_run(nights: Iterable[str], night: str) -> tuple[str, int]:
    """Return the date of the last night before this one, and how many between them did not run.

    A day is due where at least half of the same days of the week had a night in the four weeks that end with the last
    one; in the first week, where half of all days had one. With fewer than two nights nothing is due.
    """
    dates = sorted({day for name in nights if (day := _date(name)) and name[:10] < night[:10]})
    tonight = _date(night)
    if tonight is None or len(dates) < 2:
        return "", 0
    last = dates[-1]
    first = max(dates[0], last - timedelta(days=HABIT_DAYS - 1))
    days = [first + timedelta(days=i) for i in range((last - first).days + 1)]
    count = 0
    for between in range(1, (tonight - last).days):
        weekday = (last + timedelta(days=between)).weekday()
        alike = [day for day in days if day.weekday() == weekday] or days
        count += 2 * sum(day in dates for day in alike) >= len(alike)
    return last.isoformat(), count


def _date(night: str) -> date | None:
    try:
        return date.fromisoformat(night[:10])
    except ValueError:
        return None


def missing_findings(inputs: GateInput) -> Iterator[Finding]:
    """Yield a finding for each expected entry that did not run, and for each figure that its series always had."""
    for entry, planned in inputs.expected_entries.items():
        series = _series_of(inputs, entry, planned)
        if series is None:
            yield Finding(series=planned or "", label=entry, figure=None, word="missing", detail="expected, not run")
        elif planned and series != planned and planned in inputs.series and series in inputs.series:
            fields = _workload_changes(inputs, planned, series)
            detail = f"tonight's run is of another series: {', '.join(fields)}"
            yield Finding(series=planned, label=entry, figure=None, word="incomparable", detail=detail, fields=fields)
    if not inputs.expected_entries:
        for series in sorted(expected_series(inputs)):
            if not inputs.points_tonight.get(series, []):
                last = max((p.began[:10] for p in inputs.points[series]), default="never")
                yield _run_finding(inputs, series, "missing", f"expected, not run; last run {last}", None)
    for series, points in inputs.points.items():
        tonight = [p for p in inputs.points_tonight.get(series, []) if is_evidence(p)]
        absent = [figure for figure in FIGURE_NAMES if all(getattr(point, figure) is None for point in tonight)]
        history = level_points(points) if tonight and absent else []
        began = min((p.began for p in tonight), default="")
        earlier = [p for p in history if night_of(p) != inputs.night and p.began < began][-_REGULAR_NIGHTS:]
        for figure in absent:
            if len(earlier) == _REGULAR_NIGHTS and all(getattr(point, figure) is not None for point in earlier):
                reason = "not measured tonight, as it was in the last 7 runs"
                finding = _run_finding(inputs, series, "missing", reason, tonight[-1])
                yield finding.model_copy(update={"figure": figure})


def _workload_changes(inputs: GateInput, planned: str, series: str) -> tuple[str, ...]:
    """Return the fields in which an entry's series differ, the numbers of the work first: `global_batch 8 -> 16`.

    Digests of work and corpus say nothing to a reader: they stand only where no number differs.
    """
    last = max((p for p in inputs.points.get(planned, ()) if p.is_trend_point), key=lambda p: p.began, default=None)
    old = inputs.workload(last.run_id) if last else {}
    new = inputs.workload(inputs.points_tonight[series][-1].run_id)
    numbers = differences(*({name: one[name] for name in one if name in old and name in new} for one in (old, new)))
    before, after = (
        {name: short_value(value) if isinstance(value, str) else value for name, value in inputs.series[digest]}
        for digest in (planned, series)
    )
    implied = {"work", "corpus"} if numbers else set()
    implied |= {"accumulation"} if old.get("global_batch") != new.get("global_batch") else set()
    others = [{name: value for name, value in one.items() if name not in implied} for one in (before, after)]
    return (*numbers, *differences(*others))


def _series_of(inputs: GateInput, entry: str, planned: str | None) -> str | None:
    """Return the series that ran for the entry tonight: the planned one if it ran; None where none did."""
    if planned and inputs.points_tonight.get(planned, []):
        return planned
    return inputs.series_by_entry.get(entry)


def _run_finding(inputs: GateInput, series: str, word: FindingWord, detail: str, point: Point | None) -> Finding:
    return Finding(
        series=series, label=inputs.label(series), figure=None, word=word, detail=detail,
        run_id=point.run_id if point else None, node=point.node if point else None,
    )  # fmt: skip
