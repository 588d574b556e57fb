"""The runs that stand for a series: one rule for `compare`, matrices and pages.

These are the newest run that counts with the other repeats of its command or, where these are too few, with the other
runs of its day. Runs of another tuning, build, node or set of conditions are not joined with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from levelfield.compare.ratios import MIN_RUNS
from levelfield.compare.sides import (
    DIFFERING_VERDICTS,
    disturbance,
    exclusion_reason,
    quiet_runs,
    series_exclusion_reason,
    start_time,
    tuned_fields,
    tuning_of,
)
from levelfield.specs.record import RunRecord

MAX_RUNS_READ = 30  # so many are read to find a quiet run, or one with the defaults alone
_TUNINGS_BY_PREFERENCE = ("base", None, "peak")  # a label means the first that has runs; None: an earlier version


@dataclass(frozen=True)
class ChosenRuns:
    """The runs that stand for a series, in the order of time; also their repeats that do not count."""

    runs: tuple[RunRecord, ...]
    left_out: tuple[tuple[RunRecord, str], ...] = ()  # other runs that were read, with the reason


def recent_runs(newest: Iterable[RunRecord]) -> Iterator[RunRecord]:
    """Yield the runs of a series, the newest first, until those that stand for it are complete.

    Where these are of a peak, it goes on until those of a base are complete as well, at most for MAX_RUNS_READ runs.
    MAX_RUNS_READ disturbed runs end the search for a quiet one.
    """
    # by tuning: the runs that count, the newest first; repeat 1 of the newest command; whether it has enough repeats
    counted: dict[str | None, list[RunRecord]] = {}
    first_repeats: dict[str | None, RunRecord] = {}
    complete: dict[str | None, bool] = {}
    disturbed = 0
    for number, record in enumerate(newest):
        is_done = bool(counted) and (set(counted) != {"peak"} or number >= MAX_RUNS_READ)
        for tuning, runs in counted.items():
            first_repeat = first_repeats.get(tuning)
            if first_repeat and record.began != first_repeat.began:
                complete.setdefault(tuning, len(runs) >= MIN_RUNS)
            is_done &= tuning in complete and (complete[tuning] or not is_within_a_day(record.began, runs[0].began))
        if is_done:
            return
        yield record
        if series_exclusion_reason(record) is not None:
            continue
        if disturbance(record):
            disturbed += 1
            if not counted and disturbed == MAX_RUNS_READ:
                return
            continue
        counted.setdefault(tuning_of(record), []).append(record)
        if record.result.repeat == 1:
            first_repeats.setdefault(tuning_of(record), record)


def choose_runs(records: Sequence[RunRecord]) -> ChosenRuns | None:
    """Return the runs that stand for a series, of its records of one tuning; None where none counts.

    A newer command with too few repeats, under other conditions, hides no complete one of its build, node and day.
    Disturbed runs that are newer are among those that are returned, so that a side names them.
    """
    ordered = sorted(records, key=_time_order)
    eligible = [run for run in ordered if series_exclusion_reason(run) is None]
    if not eligible:
        return None
    quiet = quiet_runs(eligible)
    quiet_ids = {run.run_id for run in quiet}
    newest_quiet = quiet[-1]
    group = newest_group(newest_quiet, ordered)
    if sum(run.run_id in quiet_ids for run in group) < MIN_RUNS:
        same_day = [run for run in quiet if is_within_a_day(run.began, newest_quiet.began)]
        same_build = [run for run in same_day if (run.subject, run.node) == (newest_quiet.subject, newest_quiet.node)]
        by_conditions = {run.conditions.fingerprint(): run for run in same_build}  # the newest of each
        groups = (newest_group(run, ordered) for run in sorted(by_conditions.values(), key=_time_order, reverse=True))
        group = next((runs for runs in groups if sum(run.run_id in quiet_ids for run in runs) >= MIN_RUNS), group)
    representative = next(run for run in reversed(group) if run.run_id in quiet_ids)
    chosen_ids = {run.run_id for run in group if run.verdict not in DIFFERING_VERDICTS}
    newer = ordered[ordered.index(representative) + 1 :]
    chosen_ids |= {
        run.run_id
        for run in newer
        if exclusion_reason(run) or (run.run_id not in quiet_ids and run.verdict not in DIFFERING_VERDICTS)
    }
    left_out = []
    for run in (run for run in ordered if run.run_id not in chosen_ids):
        reason = (
            "an earlier command"
            if _time_order(run) < _time_order(representative)
            else "a newer command with too few repeats"
        )
        left_out.append((run, series_exclusion_reason(run) or reason))
    return ChosenRuns(tuple(run for run in ordered if run.run_id in chosen_ids), tuple(left_out))


def labelled_runs(records: Sequence[RunRecord]) -> ChosenRuns:
    """Return the runs that a label of a series means: of its base, where a run of it counts; else of its peak.

    Where no run of the series counts, they are the newest MAX_RUNS_READ of all.
    """
    for tuning in _TUNINGS_BY_PREFERENCE:
        if chosen := choose_runs([run for run in records if tuning_of(run) == tuning]):
            others = [run for run in records if tuning_of(run) != tuning]
            left_out = [
                (run, series_exclusion_reason(run) or f"{tuning_of(run)}: {tuned_fields(run)}") for run in others
            ]
            return ChosenRuns(chosen.runs, (*chosen.left_out, *left_out))
    return ChosenRuns(tuple(sorted(records, key=_time_order)[-MAX_RUNS_READ:]))


def repeats_around(record: RunRecord, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of the `--repeat` that the run belongs to, in order; the run alone where it has no others.

    The repeats of a plan are numbered from 1 and follow each other, with the same series, tuning, build, node and
    conditions, such as variables. One that does not count may not know its build.
    """
    command = _command_key(record)
    ordered = sorted(
        (
            r
            for r in records
            if _command_key(r) == command or (exclusion_reason(r) and _command_key(r)[0] == command[0])
        ),
        key=_time_order,
    )
    groups: list[list[RunRecord]] = []
    for run in ordered:
        if groups and run.result.repeat == groups[-1][-1].result.repeat + 1:
            groups[-1].append(run)
        else:
            groups.append([run])
    return next((group for group in groups if any(r.run_id == record.run_id for r in group)), [record])


def newest_group(record: RunRecord, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return a run, the newest that counts, with its repeats, in order.

    Where fewer than MIN_RUNS of these count: all runs of its series, tuning, build, node and conditions that began
    within a day of it, so that one more run hides no earlier ones.
    """
    group = repeats_around(record, records)
    if sum(series_exclusion_reason(run) is None for run in group) >= MIN_RUNS:
        return group
    same_day = [
        run
        for run in records
        if run.series.fingerprint() == record.series.fingerprint()
        and is_within_a_day(run.began, record.began)
        # one that does not count may not know its build
        and (is_same_build(run, record) or (exclusion_reason(run) is not None and tuning_of(run) == tuning_of(record)))
    ]
    return sorted({run.run_id: run for run in (*group, *same_day)}.values(), key=_time_order)


def is_same_build(first: RunRecord, second: RunRecord) -> bool:
    """Return whether two runs of a series are of one tuning, build, node and set of conditions."""
    return all(
        read(first) == read(second) for read in (tuning_of, attrgetter("subject"), attrgetter("conditions", "node"))
    )


def is_within_a_day(first: str, second: str) -> bool:
    """Return whether two runs began within a day; False where a date cannot be read."""
    try:
        return abs(datetime.fromisoformat(first) - datetime.fromisoformat(second)) <= timedelta(days=1)
    except (TypeError, ValueError):
        return False


def _command_key(record: RunRecord) -> tuple[tuple[str, str | None], str, str, str, str | None]:
    return (
        (record.series.fingerprint(), tuning_of(record)),
        record.subject.fingerprint(),
        record.conditions.fingerprint(),
        record.node,
        record.entry,
    )


def _time_order(record: RunRecord) -> tuple[str, int, str]:
    """Return a sort key by time; repeats that began in the same second are sorted by their numbers."""
    return str(start_time(record) or ""), record.result.repeat, record.run_id
