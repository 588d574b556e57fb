"""`history`: a series over time, with its segments, its level and its events."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from levelfield.cli.store_options import store_argument
from levelfield.report.words import wrapped

_HELP = """\
Print the series of a case over time: its segments between changes of
conditions, with the step at each; its level and the accepted level; and the
smallest change that one night and three nights show.

examples:
  run_benchmarks.py history gpt3_6.7B
  run_benchmarks.py history gpt3_6.7B:torch --chart
  run_benchmarks.py history gpt3_6.7B --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    parser.add_argument("series", metavar="CASE|SERIES", help="a case, a part of a label, or the start of a digest")
    parser.add_argument("--chart", action="store_true", help="draw the last nights with characters")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    store_argument(parser)


def execute(options: argparse.Namespace) -> int:
    """Return 0. Raises UnknownName for a series that the store does not have."""
    from levelfield.nights.series_history import event_lines, figure_histories, history_lines
    from levelfield.nights.stored_nights import history_input, named_series, now
    from levelfield.store.database import Store

    rows, lines = [], []
    with Store.open(options.store, read_only=True) as store:
        found, when = named_series(store, options.series), now()
        given = history_input(store, found)
        for stored in found:
            histories = figure_histories(given, stored.digest, when)
            events = [event for event in given.events if event.series == stored.digest]
            rows.append(
                {
                    "schema": "levelfield.history/1",
                    "series": stored.digest,
                    "label": stored.series.label,
                    "figures": [asdict(history) for history in histories],
                    "events": [event.model_dump(mode="json") for event in events],
                }
            )
            lines += [wrapped(f"{stored.series.label}  ({stored.digest.removeprefix('sha256:')[:10]})", 2)]
            lines += [line for history in histories for line in history_lines(history, options.chart)]
            lines += (["events", *event_lines(events)] if events else []) + [""]
    print(json.dumps(rows, indent=2) if options.json else "\n".join(lines[:-1]))
    return 0
