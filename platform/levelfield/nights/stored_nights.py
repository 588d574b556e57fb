"""Reads plain values for the gate and the histories from a store: points, documents, events and findings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date, timedelta
from functools import cache, partial
from typing import Any

from levelfield.errors import LevelfieldError, UnknownName, UsageError
from levelfield.nights.baselines import LevelEvidence
from levelfield.nights.gate_input import GateInput
from levelfield.series.examination import is_in_force, standing_baseline
from levelfield.series.findings import Finding
from levelfield.series.segments import night_of
from levelfield.specs.base import parse
from levelfield.specs.record import Conditions, Point, branch_of
from levelfield.specs.short_names import refuse_empty_name, short_digest
from levelfield.store.database import Store, StoredSeries

# A gate reads the nights of so many days. A series is read as a whole where older nights may be its level: where nobody
# accepted one, where nights were found changed, and where it has fewer than ENOUGH_NIGHTS in these days.
RECENT_DAYS, ENOUGH_NIGHTS = 75, 61
_DAYS_OF_FINDINGS = 400
_LOOKBACK_DAYS = 14  # entries of earlier nights within them are compared with tonight's
_WHOLE_NUMBER_TOLERANCE = 1e-3  # a sequence length computed from a speed may be off a whole number by so much
_MAX_REASON_CHARACTERS = 400  # characters of the reason why a run is not valid


def gate_input(store: Store, night: str, suite: str | None = None) -> GateInput:
    """Return what a gate needs of the night. suite: only the entries of this suite.

    A night of a branch is compared with the history of the default branch, as if it were the newest. No other night
    has its runs.
    """
    expected = store.expected_entries(night)
    if suite is not None:
        expected = {entry: series for entry, series in expected.items() if entry.startswith(f"{suite}/")}
        if not expected:
            raise UsageError(f"--suite {suite}: found no entry of it in night {night}; see `show suites`")
    # Each entry with the series that the newest night before, within two weeks, ran for it; else with its own: an entry
    # that runs other work tonight is told from a new one.
    since, previous_series, nights = _days_before(night, _LOOKBACK_DAYS) or "", dict[str, str](), store.nights()
    for earlier in sorted(nights) if expected else ():
        if since <= earlier < night:
            previous_series |= {entry: series for entry, series in store.expected_entries(earlier).items() if series}
    expected = {entry: previous_series.get(entry, series) for entry, series in expected.items()}
    stored_series = store.series()
    past, events = past_findings(store, _days_before(night, _DAYS_OF_FINDINGS)), store.events()
    if branch_of(night):
        past += _parse_findings(store.findings(night))
    end_of_night = f"{night}~"  # sorts behind every time of that day
    # the series whose level rests on nights that may be older than the last days
    accepted = {event.series for event in events if event.kind == "baseline" and is_in_force(event, end_of_night)}
    changed = {finding.series for finding in past if finding.word in ("regression", "improvement")}
    read_whole = ({series.digest for series in stored_series} - accepted) | changed
    recent = _recent_points(store, stored_series, night, read_whole)
    all_points = {series: judged_points(series_points, night) for series, series_points in recent.items()}
    points = {series: drop_trials(series_points, nights) for series, series_points in all_points.items()}
    points = {series: series_points for series, series_points in points.items() if series_points}
    counted = {point.run_id for series_points in points.values() for point in series_points}
    trials = (p for series_points in all_points.values() for p in series_points if p.run_id not in counted)
    if suite is not None:
        ran = {
            s
            for s, series_points in points.items()
            if any(p.night == night and p.entry in expected for p in series_points)
        }
        points = {s: series_points for s, series_points in points.items() if s in ran or s in expected.values()}
    return GateInput(
        night,
        points,
        {entry.digest: entry.series for entry in stored_series},
        events,
        expected,
        past,
        conditions_lookup(store),
        partial(_reason, store),
        partial(_workload, store),
        cache(partial(_has_commit, store)),
        sum(point.began[:10] == night[:10] for point in trials),
        () if branch_of(night) else store.nights(suite),
    )


def judged_points(points: Iterable[Point], night: str) -> list[Point]:
    """Return the runs of the default branch, and those of the night. Runs of a branch's night become nightly ones."""
    considered = (p for p in points if p.night == night or branch_of(p.night) is None)
    return [p.model_copy(update={"purpose": "nightly"}) if p.purpose == "branch" else p for p in considered]


def drop_trials(points: Iterable[Point], nights: Iterable[str], named_runs: Collection[str] = ()) -> list[Point]:
    """Return the runs without those by hand on a day that has a nightly run. named_runs: ids of runs that stay."""
    days = {night[:10] for night in nights}
    return [p for p in points if p.night or p.purpose != "manual" or p.began[:10] not in days or p.run_id in named_runs]


def _reason(store: Store, run_id: str) -> str | None:
    """Return why a run is not valid or not sealed, with the evidence."""
    record = store.record(run_id)
    if record.word == "valid":
        return record.evidence_reason
    texts = filter(None, (record.reason, record.result.status.evidence))
    return textwrap.shorten(": ".join(texts), _MAX_REASON_CHARACTERS, placeholder=" ...") or None


def _workload(store: Store, run_id: str) -> dict[str, object]:
    """Return the numbers of a run's work that its result has, also of a run that an earlier version stored."""
    try:
        result = store.record(run_id).result
    except LevelfieldError:
        return {}
    batch = result.layout.data * result.micro_batch * result.accumulation
    numbers: dict[str, object] = {"global_batch": batch, "steps": result.steps_planned}
    speed, (first, last) = result.throughput, result.window
    if speed:  # tokens of a step over its sequences
        length = speed.tokens_per_second * speed.wall_seconds / (last - first + 1) / batch
        numbers |= {"sequence_length": round(length)} if abs(length - round(length)) < _WHOLE_NUMBER_TOLERANCE else {}
    return numbers | {"parameters": result.parameters, "window": f"{first}..{last}"}


def history_input(store: Store, stored_series: Sequence[StoredSeries]) -> GateInput:
    """Return the gate's input for the histories of some series; no night is set."""
    series = {stored.digest: stored.series for stored in stored_series}
    nights = store.nights()
    points = {digest: drop_trials(points, nights) for digest, points in store.points(list(series)).items()}
    return GateInput("", points, series, store.events(), {}, (), conditions_lookup(store))


def past_findings(store: Store, since: str | None = None) -> list[Finding]:
    """Return the stored findings without repeated `no change`, in order of the nights. since: the first night."""
    return _parse_findings(store.changed_findings(since or ""))


def _parse_findings(rows: Iterable[dict[str, Any]]) -> list[Finding]:
    return [parse(Finding, {**row, "schema": Finding.schema_name()}, "the store") for row in rows]


def find_night(store: Store, name: str | None) -> str:
    """Return the night of this name, by default the newest of the default branch.

    A day with runs by hand counts as a night, too. Raises UnknownName or UsageError.
    """
    nights = store.nights(include_branches=name is not None)
    if name is not None:
        since = _days_before(name, 1)
        points = store.points(since=since) if since and name not in nights else {}
        if name in nights or any(
            night_of(point) == name for series_points in points.values() for point in series_points
        ):
            return name
        raise UnknownName("night", name, nights)
    newest = nights[-1:] or sorted(stored.last_began[:10] for stored in store.series())[-1:]
    if not newest:
        raise UsageError(
            f"the store {store.address.text} has no run; `nightly run` makes some, and `store import` brings recorded "
            "ones"
        )
    return newest[0]


def find_series(store: Store, name: str) -> list[StoredSeries]:
    """Return the series of a case, or those whose digest begins with the name or whose label contains it.

    Raises UnknownName, and UsageError for a text that every label has.
    """
    refuse_empty_name("series", name.removeprefix("sha256:"))
    stored = store.series()
    exact = [s for s in stored if name in (s.series.case, s.series.label, s.digest)]
    bare = name.removeprefix("sha256:")
    near = [s for s in stored if s.digest.removeprefix("sha256:").startswith(bare) or name in s.series.label]
    if matches := exact or near:
        return matches
    raise UnknownName("series", name, {s.series.label for s in stored})


def find_one_series(store: Store, name: str) -> StoredSeries:
    """Return the only series of this name. Raises UsageError where several match."""
    matches = find_series(store, name)
    if len(matches) > 1:
        choices = "; ".join(f"{short_digest(s.digest)} {s.series.label}" for s in matches[:6])
        raise UsageError(f"series '{name}': found {len(matches)}, expected one; give its digest: {choices}")
    return matches[0]


def level_evidence(store: Store, series: Sequence[str], time: str, runs: Sequence[str] = ()) -> list[LevelEvidence]:
    """Return what the levels of series are accepted on, at a time. runs: those that were named."""
    points, past, events, nights = store.points(list(series)), past_findings(store), store.events(), store.nights()
    return [
        LevelEvidence(
            digest,
            tuple(drop_trials(points[digest], nights, runs)),
            tuple(finding for finding in past if finding.series in ("", digest)),
            tuple(runs),
            baseline=standing_baseline([event for event in events if event.series == digest], time),
        )
        for digest in series
    ]


def conditions_lookup(store: Store) -> Callable[[str], Conditions | None]:
    """Return a function that looks up conditions by their digest; None for those that the store does not have."""
    return cache(partial(_conditions, store))


def _conditions(store: Store, digest: str) -> Conditions | None:
    try:
        return store.conditions(digest)
    except UnknownName:
        return None


def _has_commit(store: Store, digest: str) -> bool:
    try:
        return store.subject(digest).has_commit
    except UnknownName:
        return False


def _recent_points(
    store: Store, stored: Sequence[StoredSeries], night: str, read_whole: Collection[str]
) -> dict[str, list[Point]]:
    """Return the points of the last days, by series.

    A series in `read_whole` that ran since, or one that ran tonight and has few points, has all of them.
    """
    whole = sorted(s.digest for s in stored if s.digest in read_whole and s.last_began[:10] >= night[:10])
    others = sorted({s.digest for s in stored}.difference(whole))
    recent = store.points(others, since=_days_before(night, RECENT_DAYS)) if others else {}
    tonight = {series for series, points in recent.items() if any(night_of(point) == night for point in points)}
    trend_points = {series: sum(point.is_trend_point for point in points) for series, points in recent.items()}
    few = {s.digest for s in stored if trend_points.get(s.digest, 0) < min(s.run_count, ENOUGH_NIGHTS)} & tonight
    if unread := sorted(few.union(whole)):
        recent |= store.points(unread)
    return {series: points for series, points in recent.items() if points}


def _days_before(night: str, days: int) -> str | None:
    try:
        return (date.fromisoformat(night[:10]) - timedelta(days=days)).isoformat()
    except ValueError:
        return None
