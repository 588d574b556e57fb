"""`baseline`: accepts levels and steps as events, lists them, and notes remarks."""

from __future__ import annotations

import argparse
import getpass
import json
import re
from typing import TYPE_CHECKING

from levelfield.cli.store_options import store_argument
from levelfield.errors import RunFailed, UsageError
from levelfield.nights.series_history import event_lines
from levelfield.report.words import wrapped
from levelfield.specs.record import StoreEvent

if TYPE_CHECKING:
    from levelfield.store.database import Store

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the actions with their options."""
    accept = actions.add_parser("accept", help="accept the level of the unchanged nights, or of --run")
    accept.add_argument("--run", action="append", default=[], metavar="ID", help="evidence; may be repeated")
    step = actions.add_parser("accept-step", help="accept the newest change of conditions, such as of a driver")
    step.add_argument("--everywhere", action="store_true", help="the same change in every other series that has it")
    note = actions.add_parser("note", help="add a remark; it changes no level")
    listing = actions.add_parser("list", help="list the events of all series, or of one")
    for action in (accept, step, note):
        action.add_argument("series", metavar="SERIES", help="a case with one series, a label or a digest")
        action.add_argument("--why", required=True, metavar="TEXT", help="the reason; the event stores it")
        action.add_argument("--who", metavar="NAME", help="who states it (default: the user's name)")
    for action in (accept, step):
        action.add_argument("--until", metavar="DATE", help="the acceptance ends after this day, such as 2026-12-31")
    listing.add_argument("series", nargs="?", metavar="SERIES", help="a case with one series, a label or a digest")
    listing.add_argument("--json", action="store_true", help="machine-readable output")
    for action in (accept, step, note, listing):
        store_argument(action)


def execute(options: argparse.Namespace) -> int:
    """Return 0. Raises UsageError where the evidence accepts nothing."""
    return _list(options) if options.action == "list" else _state(options)


def _state(options: argparse.Namespace) -> int:
    from levelfield.nights import baselines
    from levelfield.nights.stored_nights import now, one_series, past_findings
    from levelfield.series.eras import held
    from levelfield.store.database import Store

    until = None if options.action == "note" else _day(options.until)
    with Store.open(options.store) as store:
        found = one_series(store, options.series)
        others: list[StoreEvent] = []
        who, at, points = options.who or getpass.getuser(), now(), store.points([found.digest])[found.digest]
        if options.action == "accept":
            past = [f for f in past_findings(store) if f.series in ("", found.digest)]
            baseline = held(store.events(found.digest), at)
            evidence = baselines.LevelEvidence(found.digest, tuple(points), tuple(past), tuple(options.run), baseline)
            event = baselines.accepted_baseline(evidence, who, options.why, at, until)
        elif options.action == "accept-step":
            event = baselines.accepted_step(found.digest, points, who, options.why, at, until)
            others = baselines.same_steps(event, store.points()) if options.everywhere else []
        else:
            event = baselines.note(found.digest, who, options.why, at)
        for each in (event, *others):
            store.add_event(each)
        kept = _kept_build(store, event) if event.kind == "baseline" else []
    more = [*kept, *([f"and the same change in {len(others)} other series"] if others else [])]
    print("\n".join([found.series.label, *event_lines([event]), *more]))
    return 0


def _kept_build(store: Store, event: StoreEvent) -> list[str]:
    """Check the accepted build out, so that pairs can run it later, and say so. A repository may lose its commit."""
    from levelfield.run.builds import build_of

    subject = store.record(event.runs[-1]).subject
    if subject.commit is None or subject.is_dirty is not False:
        return ["no pairs can run this build: it had files that no commit has"]
    try:
        build = build_of(subject.commit, say=lambda text: None)
    except RunFailed as error:
        return [wrapped(f"no pairs can run this build: {error}", 2)]
    return [f"the build {build} is kept for pairs"]


def _list(options: argparse.Namespace) -> int:
    from levelfield.nights.stored_nights import one_series
    from levelfield.store.database import Store

    with Store.open(options.store) as store:
        chosen = one_series(store, options.series).digest if options.series else None
        events, labels = store.events(chosen), {s.digest: s.series.label for s in store.series()}
    if options.json:
        print(json.dumps([{"schema": e.schema_name(), **e.model_dump(mode="json")} for e in events], indent=2))
        return 0
    print("\n".join(_listed(events, labels)) or "no events; `baseline accept` makes one")
    return 0


def _listed(events: list[StoreEvent], labels: dict[str, str]) -> list[str]:
    lines: list[str] = []
    for event in events:
        lines += [labels.get(event.series or "", event.series or f"node {event.node}"), *event_lines([event])]
    return lines


def _day(text: str | None) -> str | None:
    if text is not None and not DATE.fullmatch(text):
        raise UsageError(f"--until: found '{text}', expected a date such as 2026-12-31")
    return text
