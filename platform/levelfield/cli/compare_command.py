"""`compare` (compare chips): ratios of runs with intervals; scaling; matrices"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_format_options, registry_of, runs_folder, usage_error_if_unwritable
from levelfield.cli.store_options import add_prices_option, add_store_option, load_prices
from levelfield.cli.terminal import print_sheets
from levelfield.errors import GateFailed, UsageError
from levelfield.rundir.directory import write_atomically

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.compare.matrix import Dimension
    from levelfield.compare.ratio_requirements import RatioRequirement
    from levelfield.compare.series_runs import ChosenRuns
    from levelfield.report.sheets import Sheet
    from levelfield.specs.prices import Prices
    from levelfield.specs.record import RunRecord
    from levelfield.studies.compared_runs import RunSources

    # Tables, their JSON object, and whether the exit code is 0.
    Tables = tuple[list[Sheet], dict[str, Any], bool]

_HELP = """\
Compare runs: first what makes them comparable, then the metrics with their
ratio to the first side. A 95 % interval and a verdict on noise need at least
3 runs of each side, or a stored history of their series.

A SIDE is one of these, or several joined by commas:
  a path, a run id, a part of an id, or latest; --repeats adds the other
  repeats of its command
  a pattern of run ids in quotes, such as '20261122*_torch_cpu_*'
  a series, CASE:FRAMEWORK[:CHIP[:NODES[:DEVICES]]]: the repeats of its newest
  command; of base, where it has runs of it
  a bundle, FILE.zip, or FILE.zip:NAME, where NAME is a run, pattern or series
Runs are looked for in the folder of runs, then in the store.

--require 'METRIC>=RATIO' (or <=) is met where the whole 95 % interval of the
ratio to the first side is within it, and missed where none of it is; else it is
undecided. 'aligned' requires that verdict of every run. A METRIC is named as in
--json, or by a beginning that no other has.

Exit code 4 where the sides are not comparable; then no ratio is printed. Also 4
where a requirement is missed or undecided.

examples:
  run_benchmarks.py compare RUN1 RUN2
  run_benchmarks.py compare --repeats RUN1 RUN2 RUN3 --format markdown
  run_benchmarks.py compare gpt3_6.7B:torch gpt3_6.7B:paddle
  run_benchmarks.py compare h100.zip:gpt3_6.7B:torch h200.zip:gpt3_6.7B:torch
  run_benchmarks.py compare BASE NEW --require 'tokens_per_second>=0.95'
  run_benchmarks.py compare RUN1 RUN2 --html comparison.html
  run_benchmarks.py compare --scaling RUN1 RUN2 RUN3
  run_benchmarks.py compare --matrix framework --case gpt3_6.7B
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("side", nargs="*", metavar="SIDE", help="the runs of one side; the first is the base")
    option("--repeats", action="store_true", help="each named run stands for all repeats of its command")
    option(
        "--across",
        choices=("precision",),
        metavar="FIELD",
        help="precision: it differs on purpose, all else of the workload is equal",
    )
    option(
        "--require",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help="'tokens_per_second>=0.95', 'memory<=1.05' or 'aligned'; repeatable",
    )
    table = parser.add_argument_group("other tables").add_argument
    table("--scaling", action="store_true", help="speed-up and efficiency over numbers of devices")
    table("--matrix", choices=("vendor", "framework"), help="the latest result of each case by vendor or framework")
    table("--case", metavar="CASE", help="with --matrix: only this case")
    table("--suite", metavar="NAME", help="with --matrix: only the cases of this suite")
    output = parser.add_argument_group("where from and how")
    add_prices_option(output)
    add_store_option(output, "look only in ")
    add_format_options(output)
    output.add_argument("--html", type=Path, metavar="FILE", help="write the same tables as one static page, too")


def execute(options: argparse.Namespace) -> int:
    """Print a comparison. Return 4 for sides that are not comparable, and for a requirement that is not met; else 0."""
    from levelfield.compare.ratio_requirements import parse_requirement
    from levelfield.pages.page_rendering import comparison_page
    from levelfield.studies.compared_runs import RunSources

    _refuse_conflicts(options)
    registry = registry_of(options)
    with RunSources(runs_folder(options), options.store, registry) as sources:
        if options.matrix:
            title = f"Matrix by {options.matrix}"
            cases, frameworks = _cases_and_frameworks(registry, options.case, options.suite)
            sheets, values, passes = _matrix_tables(options.matrix, cases, frameworks, sources)
        elif options.scaling:
            title = "Scaling"
            sheets, values, passes = _scaling_tables(
                [sources.runs_of_side(side, options.repeats).runs for side in options.side]
            )
        else:
            title, prices = "Comparison", load_prices(options.prices, registry)
            requirements = [parse_requirement(text, prices is not None) for text in options.require]
            sides = [sources.runs_of_side(side, options.repeats) for side in options.side]
            sheets, values, passes = _comparison_tables(
                sides, requirements, options.across == "precision", prices, sources
            )
    if options.html:
        text = comparison_page(title, sheets, datetime.now(timezone.utc))
        with usage_error_if_unwritable(options.html, "--html "):
            write_atomically(options.html, text, through_link=True)
    print_sheets(options.format, sheets, values)
    return 0 if passes else GateFailed.exit_code


def _refuse_conflicts(options: argparse.Namespace) -> None:
    """Raise UsageError for options that belong to different tables, for a missing side, and for sides of a matrix."""
    if options.matrix and (options.side or options.scaling):
        raise UsageError("compare --matrix: found sides or --scaling; a matrix takes the latest run of every series")
    if not options.matrix and (options.case or options.suite):
        raise UsageError("compare: found --case or --suite without --matrix; give sides instead")
    if options.prices and (options.matrix or options.scaling):
        raise UsageError("compare: found --prices with --matrix or --scaling; costs are compared between sides")
    if options.require and (options.matrix or options.scaling):
        raise UsageError("compare: found --require with --matrix or --scaling; give two sides: compare A B")
    if options.case and options.suite:
        raise UsageError("compare --matrix: found --case and --suite; give one of them")
    if not options.matrix and not options.side:
        raise UsageError("compare: found no side, expected at least 2: compare A B")


def _scaling_tables(sides: Sequence[Sequence[RunRecord]]) -> Tables:
    from levelfield.compare import scaling

    table = scaling.compute_scaling(list({run.run_id: run for runs in sides for run in runs}.values()))
    return list(scaling.scaling_sheets(table)), scaling.scaling_json(table), not table.unequal


def _comparison_tables(
    chosen_sides: Sequence[ChosenRuns],
    requirements: Sequence[RatioRequirement],
    across_precisions: bool,
    prices: Prices | None,
    sources: RunSources,
) -> Tables:
    """Return the tables, the JSON object, and whether everything is comparable and every requirement met."""
    from levelfield.compare import comparison
    from levelfield.compare.ratio_requirements import judge_requirements, requirement_sheet
    from levelfield.compare.ratios import MIN_RUNS
    from levelfield.compare.sides import side_of

    sides = [
        side_of(_side_letter(number), chosen.runs, left_out=chosen.left_out)
        for number, chosen in enumerate(chosen_sides)
    ]
    records_needing_history = [
        side.first for side in sides if len(side.counted) < MIN_RUNS
    ]  # too few to show their noise
    histories = sources.histories(records_needing_history) if records_needing_history else {}
    result = comparison.compare(sides, histories, across_precisions, prices, sources.duels())
    sheets, values = list(comparison.comparison_sheets(result)), comparison.comparison_json(result)
    if not requirements:
        return sheets, values, result.comparability.is_comparable
    findings = judge_requirements(requirements, result)
    values["requirements"] = list(map(asdict, findings))
    return [*sheets, requirement_sheet(findings)], values, all(finding.word == "met" for finding in findings)


def _side_letter(number: int) -> str:
    """Return A to Z, then S27 and so on."""
    return chr(ord("A") + number) if number < 26 else f"S{number + 1}"


def _matrix_tables(axis: Dimension, cases: list[str] | None, frameworks: list[str], sources: RunSources) -> Tables:
    from levelfield.compare import matrix

    records = [record for record in sources.latest_runs() if cases is None or record.series.case in cases]
    columns = frameworks if axis == "framework" else ()
    table = matrix.make_matrix(records, axis, columns, cases or (), sources.histories(records), sources.duels())
    return list(matrix.matrix_sheets(table)), matrix.matrix_json(table), True


def _cases_and_frameworks(
    registry: Registry, case: str | None, suite: str | None
) -> tuple[list[str] | None, list[str]]:
    """Return the cases and frameworks of --case or of --suite; None for every case."""
    from levelfield.specs.selector import parse_selector

    if case:
        return [registry.canonical_case(case)], []
    if not suite:
        return None, []
    entries = [parse_selector(entry.case) for entry in registry.suite(suite).entries]
    cases = dict.fromkeys(registry.canonical_case(entry.case) for entry in entries)
    return list(cases), sorted({registry.implementation(entry.framework, entry.version)[0].label for entry in entries})


COMMANDS = {"compare": Command(_HELP, add_options, execute)}
