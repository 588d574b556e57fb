"""`report summary`: one page for a decision: two sides, or the chips of a case"""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import print_or_write, registry_of, runs_of
from levelfield.cli.store_options import prices_of, prices_option, store_option
from levelfield.errors import GateFailed, UsageError
from levelfield.report.escapes import printable
from levelfield.report.sheets import as_markdown

_HELP = """\
Write one page for a decision: a sentence that says which side is faster, by
how much and how surely, or why that is not known; the figures of each side
with their intervals; and what asks for caution.

SIDE is what `compare` takes: a run, a bundle, a pattern of run ids in quotes,
or a series. --case takes the newest runs of each chip and framework instead,
from the folder of runs or else from the store: those that did the work of
the fastest one, at most 6.

The HTML has no script and prints to one sheet of A4. Exit code 4 where the
sides are not comparable; the page then says why.

examples:
  run_benchmarks.py report summary A B --output one.html
  run_benchmarks.py report summary --case gpt3_6.7B --format markdown
  run_benchmarks.py report summary A B --language zh --output one.html
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("side", nargs="*", metavar="SIDE", help="the runs of one side, 2 to 6 sides; the first is the base")
    option("--case", metavar="CASE", help="the chips and frameworks of this case, the fastest first")
    option("--repeats", action="store_true", help="each named run stands for all repeats of its command")
    option("--format", choices=("html", "markdown"), default="html", metavar="FORMAT", help="html (default), markdown")
    option("--language", choices=("en", "zh"), default="en", metavar="LANGUAGE", help="en (default), zh: Chinese")
    option("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    prices_option(parser)
    store_option(parser, "look only in ")


def _execute(options: argparse.Namespace) -> int:
    """Print or write the page. Return 0 when the sides were compared, 4 when they are not comparable."""
    from levelfield.compare.comparison import compare
    from levelfield.compare.sides import side_of
    from levelfield.pages.summary_page import sides_of_case, summary
    from levelfield.studies.compared_runs import RunPlaces

    if bool(options.case) == bool(options.side):
        raise UsageError("report summary: found sides and --case, or neither; give SIDE SIDE, or --case CASE")
    if options.case and options.repeats:
        raise UsageError("report summary: found --repeats with --case, which takes all runs of the newest builds")
    prices = prices_of(options)
    with RunPlaces(runs_of(options), options.store, registry_of(options)) as places:
        if options.case:
            case = registry_of(options).spelled(options.case)
            sides, left_out = sides_of_case(places.newest_builds(case))
        else:
            found = [places.runs(text, options.repeats) for text in options.side]
            sides, left_out = [side_of(chr(ord("A") + i), runs) for i, runs in enumerate(found)], 0
        histories = places.histories([side.first for side in sides])
    compared = compare(sides, histories, prices=prices)
    page = summary(compared, histories, left_out, options.language)
    now = datetime.now(timezone.utc)
    text = as_markdown(page.sheets()) if options.format == "markdown" else page.html(now)
    print_or_write(printable(text), options.output)
    if options.output:
        print(f"summary  {options.output}")
    return 0 if compared.comparability.holds else GateFailed.exit_code


COMMANDS = {"report summary": Command(_HELP, _arguments, _execute)}
