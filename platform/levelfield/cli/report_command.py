"""`report` (compare chips): results of one run or several: table, markdown, csv, pages
`report explain` (compare chips): where the time of a step goes; of two runs, why one is slower
`report pages`: write pages of this checkout's runs, of a store, or of the named runs
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.options import RUN_HELP, add_format_options, registry_of, runs_folder, usage_error_if_unwritable
from levelfield.cli.store_options import (
    add_prices_option,
    add_store_option,
    last_night_findings,
    load_prices,
    open_store,
    results_for_pages,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.escapes import printable
from levelfield.report.sheets import Sheet, format_markdown, format_sheets, format_text
from levelfield.report.words import wrapped
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.pages.page_building import BuiltPages
    from levelfield.pages.series_history import StoredResults
    from levelfield.series.ticket import Tickets
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.prices import Prices
    from levelfield.specs.result import Result
    from levelfield.specs.step_parts import StepParts

_REPORT_HELP = """\
Report results: one run in full, or several side by side.
RUN is a path, a run id, a part of an id, or `latest`, or of a bundle:
FILE.zip, or FILE.zip:RUN, a part of an id or a pattern of several. What does
not follow from its raw files is refused.

examples:
  run_benchmarks.py report latest
  run_benchmarks.py report h100.zip
  run_benchmarks.py report RUN1 RUN2 --format markdown --output table.md
  run_benchmarks.py report latest --with-published
  run_benchmarks.py report RUN1 RUN2 --hide chip --format markdown
  run_benchmarks.py report pages site
"""
_EXPLAIN_HELP = """\
Show where the time of a training step goes, part by part. The run needs
steps that were recorded: `run --explain-step`. Of two runs of the same work:
which parts make B's step longer than A's, adding up to the difference.

examples:
  run_benchmarks.py report explain latest
  run_benchmarks.py report explain RUN_A RUN_B
  run_benchmarks.py report explain RUN --format json
"""
_PAGES_HELP = """\
Write pages of this checkout's runs, of all runs of a store that you name, or of
the named runs: static files. Open index.html, or publish the folder by any web
server. docs/pages.md has more.

--overlay writes the named runs and those of the store, into a folder that is
private: git ignores it, and other users cannot read it. The store, and every
other folder of pages, stay as they are.

examples:
  run_benchmarks.py report pages site
  run_benchmarks.py report pages site RUN1 RUN2
  run_benchmarks.py report pages site --prices prices.yaml
  run_benchmarks.py report pages private RUN --overlay --store public.sqlite
"""
FOREIGN_FORMATS = ("flagperf", "oneflow", "osdi")
_MAX_NAMED_RUNS = 5  # in a message


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", nargs="+", metavar="RUN", help=RUN_HELP)
    forms = ("table", "markdown", "csv", "json")
    add_format_options(
        parser,
        (*forms, *FOREIGN_FORMATS),
        f"{', '.join(forms)}; {', '.join(FOREIGN_FORMATS)}: the columns of these reports",
    )
    option("--log-interval", type=int, metavar="N", help="with --format oneflow: its table of every N batches, too")
    option("--with-published", action="store_true", help="add published rows of the same case, by one convention")
    add_prices_option(parser)
    option("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    option("--hide", metavar="COLUMN", action="append", help="print * in this column, and in those that give it away")


def _report(options: argparse.Namespace) -> int:
    """Compute the results from the raw files, so that an edited result.json changes no report. Return 0.

    Raises the error of a run that goes on or is damaged, after the report of the others. A table with hidden columns is
    for others, and is not made without such a run.
    """
    from levelfield.compare.published_rows import format_figure_rows
    from levelfield.report.tables import format_with_hidden, hidden_columns

    _refuse_conflicting_options(options)
    form, registry, selected = options.format, registry_of(options), NamedRuns(runs_folder(options), options.run)
    hidden = hidden_columns(options.hide or ())
    runs: dict[tuple[str, str | None], tuple[RunPaths, Result]] = {}  # a run that is named twice counts once
    with ExitStack() as bundle_files:
        for paths, result in selected.results(registry, bundle_files):
            with selected.collecting_errors():
                files_digest = result.seal.digest if result.seal else None
                runs.setdefault((result.run_id, files_digest), (paths, _refuse_pretended(result)))
        run_paths, results = [paths for paths, _ in runs.values()], [result for _, result in runs.values()]
        if not results or hidden:
            selected.raise_errors()
        if hidden:
            text = format_with_hidden(form, results, hidden)
        elif form in FOREIGN_FORMATS:
            text = _foreign_text(form, options.log_interval, run_paths, results, registry)
        elif options.with_published:
            text = format_figure_rows(form, results, registry)
        else:
            text = _results_text(form, run_paths, results, load_prices(options.prices, registry))
    if options.output is None:
        print(printable(text), end="")
    else:
        with usage_error_if_unwritable(options.output):
            write_atomically(options.output, printable(text), through_link=True)
    selected.raise_errors()
    return 0


def _refuse_pretended(result: Result) -> Result:
    """Return the result. Raises UsageError for one of pretended devices: there is nothing to report."""
    from levelfield.specs.result import PRETENDED

    if result.status.failure == PRETENDED:
        raise UsageError(
            f"{result.run_id}: found pretended devices, expected real ones; `evidence collect` shows its words"
        )
    return result


def _refuse_conflicting_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options that need different tables."""
    foreign_options = [f"--format {options.format}"] if options.format in FOREIGN_FORMATS else []
    conflicting = [
        f"--{name}" for name in ("hide", "with-published", "prices") if getattr(options, name.replace("-", "_"))
    ]
    if options.log_interval is not None and (options.format != "oneflow" or options.log_interval < 1):
        raise UsageError(
            f"--log-interval: found {options.log_interval} with --format {options.format}, expected a number from 1 "
            "with --format oneflow"
        )
    if len(foreign_options) + len(conflicting) > 1:
        raise UsageError(
            f"report: {', '.join([*foreign_options, *conflicting])} need different tables; give only one of them"
        )


def _foreign_text(
    form: str, log_interval: int | None, run_paths: Sequence[RunPaths], results: Sequence[Result], registry: Registry
) -> str:
    """Return the columns of another report, and its table of every `log_interval` batches where one is given."""
    from levelfield.publish.foreign_columns import format_report, interval_table
    from levelfield.publish.foreign_tables import exported_runs
    from levelfield.rundir.raw_files import read_raw

    plans = [read_plan(paths) for paths in run_paths]
    tables = [format_report(form, exported_runs(results, plans, registry))]
    if log_interval is not None:
        runs = zip(results, plans, map(read_raw, run_paths), strict=True)
        tables += [interval_table(result, plan, raw, log_interval) for result, plan, raw in runs]
    return "\n".join(tables)


def _results_text(form: str, run_paths: Sequence[RunPaths], results: Sequence[Result], prices: Prices | None) -> str:
    from levelfield.report.costs import RunCosts, format_results
    from levelfield.report.one_run import result_lines, run_report

    costs = RunCosts(prices) if prices else None
    if len(results) > 1 or form in ("csv", "json"):
        return format_results(form, results, [read_plan(paths).repeats_digest for paths in run_paths], costs)
    rows = [("cost", *costs.explain(results[0]))] if costs else []
    if form == "markdown":
        return run_report(results[0], read_plan(run_paths[0]), rows)
    return "\n".join([*result_lines(results[0], rows), ""])


def _add_explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=f"one run or two; {RUN_HELP}")
    add_format_options(parser)


def _explain(options: argparse.Namespace) -> int:
    """Print the parts of a run's step, or how the steps of two runs differ. Return 0."""
    from levelfield.catalog.registry import Registry
    from levelfield.explain.explanation import load_step_parts, predict_step
    from levelfield.explain.step_tables import step_sheets
    from levelfield.run.measurement import load_host_rates
    from levelfield.specs.base import dump

    if len(options.run) > 2:
        raise UsageError(f"report explain: found {len(options.run)} runs, expected one or two")
    selected = NamedRuns(runs_folder(options), options.run)
    run_paths = list(selected.finished_runs())
    selected.raise_errors()
    parts = [load_step_parts(paths) for paths in run_paths]
    if len(parts) == 2:
        print(_difference_text(options.format, run_paths, parts), end="")
        return 0
    plan, registry = read_plan(run_paths[0]), Registry()
    host = load_host_rates(registry) if plan.hardware.is_host else None
    step = parts[0].model_copy(update={"planned": predict_step(plan, parts[0], registry, host)})
    print(dump(step) if options.format == "json" else format_sheets(options.format, step_sheets(step)), end="")
    return 0


def _difference_text(form: str, run_paths: Sequence[RunPaths], parts: Sequence[StepParts]) -> str:
    """Return the difference of two runs as text. Raises GateFailed where their work is not equal."""
    from levelfield.explain.step_difference import difference_json, step_difference
    from levelfield.explain.step_tables import difference_lines, difference_sheet, waterfall

    first, second = (read_plan(paths) for paths in run_paths)
    if first.work_digest != second.work_digest:
        raise GateFailed(
            f"{first.run_id} and {second.run_id}: found different work ({first.case} at {first.scale} scale, "
            f"{second.case} at {second.scale}), expected equal work; run both with the same case, scale and precision"
        )
    difference = step_difference(*parts)
    ids = parts[0].run_id, parts[1].run_id
    if form == "json":
        values = {"a": ids[0], "b": ids[1], **difference_json(difference)}
        return json_text(values) + "\n"
    whole, rows = difference.whole.row, [change.row for change in difference.changes]
    sheet = difference_sheet([*rows, whole])
    warnings = [f"{side}: {warning}" for side, step in zip("AB", parts, strict=True) for warning in step.warnings]
    if form == "markdown":
        return format_markdown(
            [Sheet(f"{ids[0]} (A) to {ids[1]} (B)", notes=(*difference.sentences, *warnings)), sheet]
        )
    lines = difference_lines(*ids, whole, difference.sentences, difference.explained_share, warnings)
    return "\n".join([*lines, "", *waterfall(whole, rows), "", format_text([sheet])])


def _pages(options: argparse.Namespace) -> int:
    """Write the site and print what it has. Return 0. Raises the error of a named run that is not over, at the end."""
    from levelfield.pages.page_building import build_pages

    if options.store and options.run and not options.overlay:
        raise UsageError(
            "report pages: found --store and runs; runs are read from their own files: leave one out, or give --overlay"
        )
    if options.overlay and not options.run:
        raise UsageError(
            "report pages: found --overlay without a run, expected the runs to put beside those of the store"
        )
    selected, registry = NamedRuns(runs_folder(options), options.run), registry_of(options)
    prices = load_prices(options.prices, registry)
    with (
        _page_results(selected, options.store, options.overlay) as (results, findings, tickets),
        Terminal().bytes_progress("writing pages") as progress,
    ):
        built = build_pages(results, options.folder, registry, findings, progress, options.overlay, prices, tickets)
    print("\n".join(_page_lines(built, options.folder)))
    selected.raise_errors()
    return 0


@contextmanager
def _page_results(
    selected: NamedRuns, address: str | None, overlay: bool
) -> Iterator[tuple[StoredResults, list[dict[str, object]], Tickets]]:
    """Yield the named runs, with `overlay` also those of the store, and no findings.

    Without names: the store's results, and the findings and tickets of its last night. The store is only read.
    """
    from levelfield.catalog.registry import Registry
    from levelfield.evidence.verification import recomputed_record
    from levelfield.explain.explanation import step_parts_or_none
    from levelfield.pages.series_history import InMemoryStore
    from levelfield.studies.compared_runs import RunSources

    records, registry = [], Registry()
    for paths in selected.finished_runs():
        with selected.collecting_errors():  # with the figures of its raw files: an edited result.json changes no page
            records.append(recomputed_record(paths, registry, step_parts_or_none(paths)))
    if selected.names and not records:
        selected.raise_errors()
    if selected.names and not overlay:
        with RunSources(selected.runs_folder, None, registry) as sources:
            duels = sources.duel_events()
        yield InMemoryStore(records, duels), [], {}
        return
    with open_store(address, read_only=True) as store:
        if selected.names:
            nights = store.nights()
            findings_by_night = {night: store.findings(night) for night in nights}
            expected_series_by_night = {night: store.expected_entries(night) for night in nights}
            records = [*store.records(store.run_ids()), *records]
            yield InMemoryStore(records, store.events(), findings_by_night, expected_series_by_night), [], {}
            return
        results = results_for_pages(store, address, selected.runs_folder)
        # The empty text: findings about a node, or about a change of conditions, have no series.
        series = {"", *results.points()}
        findings, tickets = last_night_findings(store, results.nights(), selected.runs_folder, series)
        yield results, [finding.model_dump(mode="json") for finding in findings], tickets


def _page_lines(built: BuiltPages, folder: Path) -> Iterator[str]:
    from levelfield.store.address import parse_address

    yield f"pages    {folder}: {built.run_count:,} run(s) in {built.series_count:,} series, {built.file_count:,} files"
    if built.rebuilt_count < built.series_count:
        yield f"series   {built.rebuilt_count:,} written again; the others did not change"
    if built.unreadable_ids:
        names = ", ".join(built.unreadable_ids[:_MAX_NAMED_RUNS])
        yield wrapped(f"left out {len(built.unreadable_ids):,} run(s) whose time cannot be read: {names}", 9)
    yield wrapped(f"look     open {folder / 'index.html'}", 9)
    if built.left_out_count:
        all_runs = f"report pages {folder} --store {parse_address(None).text}"
        yield wrapped(f"left out {built.left_out_count:,} run(s) of other checkouts; all runs: {all_runs}", 9)


def _add_pages_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="write the pages into this folder")
    parser.add_argument(
        "run", nargs="*", metavar="RUN", help=f"{RUN_HELP}; none: those of this checkout, or of --store"
    )
    parser.add_argument("--overlay", action="store_true", help="the named runs beside those of the store, in private")
    add_prices_option(parser)
    add_store_option(parser)


COMMANDS = {
    "report": Command(_REPORT_HELP, _add_report_options, _report),
    "report explain": Command(_EXPLAIN_HELP, _add_explain_options, _explain),
    "report pages": Command(_PAGES_HELP, _add_pages_options, _pages),
}
