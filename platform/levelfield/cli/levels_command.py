"""`nightly accept`: accept the baseline of a series, with a reason
`nightly accept-step`: accept the newest change of environment, such as of a driver
`nightly note`: add a remark to a series; it changes no baseline
`nightly levels`: list the accepted baselines, steps and remarks
`nightly history`: a series over time: segments, baseline, smallest visible change
"""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from datetime import date, datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option
from levelfield.cli.store_options import add_store_option, open_store
from levelfield.errors import RunFailed, UsageError
from levelfield.report.words import wrapped
from levelfield.rundir.directory import utc_now
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import short_digest
from levelfield.user_folders import user_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from levelfield.specs.record import Point, StoreEvent
    from levelfield.store.database import Store

_ACCEPT_HELP = """\
Accept the baseline of a series: from its unchanged nights, or from --run. A run
that is not valid, was changed since it ended, or is of a bad night does not
count. One night is enough where a finished comparison by pairs judged it.

With --all every series of the last night with enough runs is accepted, for one
reason, and the others are listed with theirs. Series that got worse in that
night are left out, unless --worse is given.

examples:
  run_benchmarks.py nightly accept SERIES --reason "flash kernels, merge 12"
  run_benchmarks.py nightly accept --all --reason "first baselines" --dry-run
  run_benchmarks.py nightly accept SERIES --reason "known" --until 2026-12-31
"""
_STEP_HELP = """\
Accept the newest change of environment of a series, such as of a driver. Then
the series has a new baseline, from the nights after it. With --everywhere the
same change is accepted in every series that has it.

examples:
  run_benchmarks.py nightly accept-step SERIES --reason "driver 560 costs 6 %"
  run_benchmarks.py nightly accept-step SERIES --reason "driver" --everywhere
"""
_NOTE_HELP = """\
Add a remark to a series, for readers of its history. It changes no baseline.

example:
  run_benchmarks.py nightly note SERIES --reason "the rack was moved"
"""
_LEVELS_HELP = """\
List the events of all series, or of one: accepted baselines, steps, remarks.

examples:
  run_benchmarks.py nightly levels
  run_benchmarks.py nightly levels SERIES --json
"""
_HISTORY_HELP = """\
Print the series of a case over time: its segments between changes of
environment, with the step at each; its level and the accepted baseline; and the
smallest change that one night and three nights show.

examples:
  run_benchmarks.py nightly history gpt3_6.7B
  run_benchmarks.py nightly history gpt3_6.7B:torch --chart
  run_benchmarks.py nightly history gpt3_6.7B --json
"""


_DATE_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}")


def _add_reason_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    _add_series_argument(parser, nargs)
    parser.add_argument("--reason", required=True, metavar="TEXT", help="the reason; the event stores it")
    parser.add_argument("--who", metavar="NAME", help="who states it (default: the user's name)")
    add_store_option(parser)


def _add_until_options(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    _add_reason_options(parser, nargs)
    parser.add_argument("--until", metavar="DATE", help="the acceptance ends after this day, such as 2026-12-31")


def _add_accept_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", action="append", default=[], metavar="ID", help="evidence; may be repeated")
    _add_until_options(parser, nargs="?")
    many = parser.add_argument_group("many series")
    many.add_argument("--all", action="store_true", help="every series of the night whose evidence suffices")
    many.add_argument("--night", metavar="N", help="with --all: of this night (default: the newest)")
    many.add_argument("--worse", action="store_true", help="with --all: also series that the night found worse")
    many.add_argument("--dry-run", action="store_true", help="with --all: accept nothing; list what would be")
    many.add_argument("--json", action="store_true", help="with --all: print JSON")


def _add_step_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--everywhere", action="store_true", help="the same change in every other series that has it")
    _add_until_options(parser)


def _add_levels_options(parser: argparse.ArgumentParser) -> None:
    _add_series_argument(parser, nargs="?")
    add_json_option(parser)
    add_store_option(parser)


def _add_history_options(parser: argparse.ArgumentParser) -> None:
    _add_series_argument(parser)
    parser.add_argument("--chart", action="store_true", help="draw the last nights with characters")
    add_json_option(parser)
    add_store_option(parser)


def _add_series_argument(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("series", nargs=nargs, metavar="SERIES", help="a case with one series, a label or a digest")


def _add_event(options: argparse.Namespace, kind: str) -> int:
    """Add an event of this kind and print it. Return 0. Raises UsageError where the evidence does not suffice."""
    from levelfield.nights import baselines
    from levelfield.nights.series_history import event_lines
    from levelfield.nights.stored_nights import conditions_lookup, find_one_series, level_evidence

    until = None if kind == "note" else _parse_day(options.until)
    with open_store(options.store) as store:
        series = find_one_series(store, options.series)
        same_step_events: list[StoreEvent] = []
        who, at, points = options.who or user_name(), utc_now(), store.points([series.digest])[series.digest]
        if kind == "level":
            (evidence,) = level_evidence(store, [series.digest], at, options.run)
            event = baselines.baseline_event(evidence, who, options.reason, at, until)
        elif kind == "step":
            event = baselines.step_event(series.digest, points, who, options.reason, at, until)
            same_step_events = (
                baselines.same_step_events(event, store.points(), conditions_lookup(store))
                if options.everywhere
                else []
            )
        else:
            event = baselines.note_event(series.digest, who, options.reason, at)
        for new in (event, *same_step_events):
            store.add_event(new)
        remarks = [*_waiting_lines(points), _keep_build(store, event)] if event.kind == "baseline" else []
    if same_step_events:
        remarks.append(f"and the same change in {len(same_step_events)} other series")
    print("\n".join([series.series.label, *event_lines([event]), *remarks]))
    return 0


def _accept(options: argparse.Namespace) -> int:
    """Accept one series or all. Raises UsageError for options that do not go together."""
    all_only_options = [name for name in ("night", "worse", "dry_run", "json") if getattr(options, name)]
    if options.all and (options.series or options.run):
        raise UsageError("nightly accept --all: found also a series or --run; expected --all alone")
    if not options.all and (all_only_options or not options.series):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in all_only_options) or "no series"
        raise UsageError(f"nightly accept: found {names} without --all; expected a series, or --all")
    return _accept_all(options) if options.all else _add_event(options, "level")


def _accept_all(options: argparse.Namespace) -> int:
    """Accept the series of a night. Return 0, and 2 where none could be accepted."""
    from levelfield.nights import baselines
    from levelfield.nights.gate import judge_night
    from levelfield.nights.series_history import event_lines
    from levelfield.nights.stored_nights import find_night, gate_input, level_evidence
    from levelfield.series.findings import FAILURE_WORDS
    from levelfield.series.level import MIN_LEVEL_NIGHTS
    from levelfield.specs.record import branch_of

    until, who, at, remarks = _parse_day(options.until), options.who or user_name(), utc_now(), list[str]()
    with open_store(options.store) as store:
        night_name = find_night(store, options.night)
        if branch_of(night_name):
            raise UsageError(
                f"nightly accept --night {night_name}: found a night of a branch, expected one of the default branch, "
                "whose levels these are"
            )
        inputs = gate_input(store, night_name)
        series_tonight = sorted(inputs.points_tonight, key=inputs.label)
        series_by_run = {point.run_id: series for series in series_tonight for point in inputs.points_tonight[series]}
        findings = judge_night(inputs, inputs.stored_pairs).findings
        failing = [f for f in findings if f.word in FAILURE_WORDS and not options.worse]
        worse_words = {series_by_run.get(run or "", f.series): f.word for f in failing for run in (f.run_id, *f.runs)}
        accepted = baselines.baseline_events(
            level_evidence(store, series_tonight, at), worse_words, who, options.reason, at, until
        )
        if not options.dry_run:
            for event in accepted.events:
                store.add_event(event)
            # A night has one build for many series.
            remarks += dict.fromkeys(_keep_build(store, event) for event in accepted.events)
        accepted_series = [event.series or "" for event in accepted.events]
        if waiting := [inputs.label(series) for series in accepted_series if _waiting_lines(inputs.points[series])]:
            remarks.append(wrapped(f"compared once there are {MIN_LEVEL_NIGHTS} nights: {', '.join(waiting)}", 2))
    exit_code, refused = 0 if accepted.events else UsageError.exit_code, accepted.refusals.items()
    if options.json:
        refused_rows = [{"series": series, "label": inputs.label(series), "why": why} for series, why in refused]
        events = [event.model_dump(mode="json") for event in accepted.events]
        head = {"schema": "levelfield.accepted/1", "dry_run": options.dry_run}
        print(json_text({**head, "accepted": events, "refused": refused_rows}))
        return exit_code
    for series, event in zip(accepted_series, accepted.events, strict=True):
        print("\n".join([inputs.label(series), *event_lines([event])]))
    for series, reason in refused:
        print("\n".join([inputs.label(series), wrapped(f"  not accepted: {reason}", 4)]))
    verb = "would be accepted" if options.dry_run else "accepted"
    print("\n".join([*remarks, f"{len(accepted.events)} {verb}, {len(refused)} not"]))
    return exit_code


def _keep_build(store: Store, event: StoreEvent) -> str:
    """Check out the accepted build, so that pairs can run it later, and return a sentence about it.

    A repository may lose its commit. The build is the newest of the evidence that a commit holds, as in pairs.
    """
    from levelfield.run.builds import checkout_build

    subjects = (store.record(run).subject for run in reversed(event.runs))
    commit = next((subject.commit for subject in subjects if subject.has_commit), None)
    if commit is None:
        return "no pairs can run this build: it had files that no commit has"
    try:
        build = checkout_build(commit, say=lambda text: None)
    except RunFailed as error:
        return wrapped(f"no pairs can run this build: {error}", 2)
    return f"the build {build} is kept for pairs"


def _list_events(options: argparse.Namespace) -> int:
    from levelfield.nights.series_history import event_lines
    from levelfield.nights.stored_nights import find_one_series

    with open_store(options.store, read_only=True) as store:
        digest = find_one_series(store, options.series).digest if options.series else None
        events = [event for event in store.events(digest) if event.series]
        labels = {s.digest: s.series.label for s in store.series()}
    if options.json:
        print(json_text([{"schema": e.schema_name(), **e.model_dump(mode="json")} for e in events]))
        return 0
    for event in events:
        print("\n".join([labels.get(event.series or "", event.series or ""), *event_lines([event])]))
    if not events:
        print("no events; `nightly accept` makes one")
    return 0


def _parse_day(text: str | None) -> str | None:
    """Return the date of --until. Raises UsageError for one that is past: such an acceptance would never hold."""
    if text is None:
        return None
    today = datetime.now(timezone.utc).date()
    try:
        day = date.fromisoformat(text if _DATE_PATTERN.fullmatch(text) else "")
    except ValueError:
        raise UsageError(f"--until: found '{text}', expected a date such as 2026-12-31") from None
    if day < today:
        raise UsageError(f"--until: found {text}, which is past, expected {today} or later")
    return text


def _waiting_lines(points: Sequence[Point]) -> list[str]:
    """Return from when on nights are compared with a level of fewer nights than the gate needs; else nothing."""
    from levelfield.series.level import MIN_LEVEL_NIGHTS
    from levelfield.series.segments import level_points, night_of

    nights = len({night_of(point) for point in level_points(points)})
    if nights >= MIN_LEVEL_NIGHTS:
        return []
    sentence = (
        f"nights are compared with it once there are {MIN_LEVEL_NIGHTS}, to know how they scatter: {nights} so far"
    )
    return [wrapped(sentence, 2)]


def _history(options: argparse.Namespace) -> int:
    """Return 0. Raises UnknownName for a series that the store does not have."""
    from levelfield.nights.series_history import event_lines, figure_histories, history_lines
    from levelfield.nights.stored_nights import find_series, history_input

    rows, lines = [], []
    with open_store(options.store, read_only=True) as store:
        matches, when = find_series(store, options.series), utc_now()
        history = history_input(store, matches)
        for stored in matches:
            histories = figure_histories(history, stored.digest, when)
            events = [event for event in history.events if event.series == stored.digest]
            rows.append(
                {
                    "schema": "levelfield.history/1",
                    "series": stored.digest,
                    "label": stored.series.label,
                    "figures": list(map(asdict, histories)),
                    "events": [event.model_dump(mode="json") for event in events],
                }
            )
            lines += [wrapped(f"{stored.series.label}  ({short_digest(stored.digest)})", 2)]
            lines += [line for figure in histories for line in history_lines(figure, options.chart)]
            lines += (["events", *event_lines(events)] if events else []) + [""]
    print(json_text(rows) if options.json else "\n".join(lines[:-1]))
    return 0


COMMANDS = {
    "nightly accept": Command(_ACCEPT_HELP, _add_accept_options, _accept),
    "nightly accept-step": Command(_STEP_HELP, _add_step_options, partial(_add_event, kind="step")),
    "nightly note": Command(_NOTE_HELP, _add_reason_options, partial(_add_event, kind="note")),
    "nightly levels": Command(_LEVELS_HELP, _add_levels_options, _list_events),
    "nightly history": Command(_HISTORY_HELP, _add_history_options, _history),
}
