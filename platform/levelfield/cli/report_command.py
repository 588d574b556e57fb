"""`report` (compare chips): results of one run or several: table, markdown, csv, pages
`report explain`: where the time of a step goes; of two runs, why one is slower
`report pages`: write pages of the store's runs, or of the named runs
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.cli.command_line import Command
from levelfield.cli.named_runs import RUN_NAME, NamedRuns, finished_run
from levelfield.cli.options import format_options, registry_of, writing
from levelfield.cli.store_options import opened_store, prices_of, prices_option, store_option
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.escapes import printable
from levelfield.report.sheets import Sheet, as_form, as_markdown, as_text
from levelfield.report.words import wrapped
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.pages.page_building import BuiltPages
    from levelfield.pages.series_history import StoredResults
    from levelfield.specs.paths import RunPaths
    from levelfield.specs.plan import Plan
    from levelfield.specs.record import RunRecord
    from levelfield.specs.result import Result
    from levelfield.specs.step_parts import StepParts

REPORT = """\
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
EXPLAIN = """\
Show where the time of a training step goes, part by part. The run needs
steps that were recorded: `run --explain-step`. Of two runs of the same work:
which parts make B's step longer than A's, adding up to the difference.

examples:
  run_benchmarks.py report explain latest
  run_benchmarks.py report explain RUN_A RUN_B
  run_benchmarks.py report explain RUN --format json
"""
PAGES = """\
Write pages of all runs of the store, or of the named runs: static files. Open
index.html, or publish the folder by any web server. docs/pages.md has more.

--beside writes the named runs and those of the store, into a folder that is
private: git ignores it, and other users cannot read it. The store, and every
other folder of pages, stay as they are.

examples:
  run_benchmarks.py report pages site
  run_benchmarks.py report pages site RUN1 RUN2
  run_benchmarks.py report pages site --prices prices.yaml
  run_benchmarks.py report pages private RUN --beside --store public.sqlite
"""
FOREIGN = ("flagperf", "oneflow", "osdi")
_NAMED = 5  # runs of a message


def _report_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("run", nargs="+", metavar="RUN", help=RUN_NAME)
    own = ("table", "markdown", "csv", "json")
    format_options(parser, (*own, *FOREIGN), f"{', '.join(own)}; {', '.join(FOREIGN)}: the columns of these reports")
    option("--log-interval", type=int, metavar="N", help="with --format oneflow: its table of every N batches, too")
    option("--with-published", action="store_true", help="add published rows of the same case, by one convention")
    prices_option(parser)
    option("--output", type=Path, metavar="FILE", help="write to this file instead of stdout")
    option("--hide", metavar="COLUMN", action="append", help="print * in this column, and in those that give it away")


def _report(options: argparse.Namespace) -> int:
    """Compute the results from the raw files, so that an edited result.json changes no report. Return 0.

    Raises the error of a run that goes on or is damaged, after the report of the others. A table with hidden columns is
    for others, and is not made without such a run.
    """
    from levelfield.report.tables import hidden_columns, with_hidden

    _refuse_together(options)
    named = NamedRuns(options)
    hidden = hidden_columns(options.hide or ())
    found: dict[tuple[str, str | None], tuple[RunPaths, Result]] = {}  # a run that is named twice counts once
    with ExitStack() as opened:
        for each, result in _collected(options, named, opened):
            with named.kept_error():
                files = result.seal.digest if result.seal else None
                found.setdefault((result.run_id, files), (each, _real(result)))
        paths, results = [each for each, _ in found.values()], [result for _, result in found.values()]
        if not results or hidden:
            named.raise_error()
        text = with_hidden(options.format, results, hidden) if hidden else _text(options, paths, results)
    if options.output is None:
        print(printable(text), end="")
    else:
        with writing(options.output):
            write_atomically(options.output, printable(text), through_link=True)
    named.raise_error()
    return 0


def _collected(options: argparse.Namespace, named: NamedRuns, opened: ExitStack) -> Iterator[tuple[RunPaths, Result]]:
    """Yield each named run and its result. Those of bundles have their files until `opened` ends."""
    from levelfield.judge.collector import collect
    from levelfield.studies.compared_runs import bundle_and_run, opened_runs

    for name in options.run:
        with named.kept_error():
            if bundle := bundle_and_run(name):
                yield from opened_runs(*bundle, registry_of(options), opened)
            else:
                paths = finished_run(options, name)
                yield paths, collect(paths)


def _real(result: Result) -> Result:
    """Return the result. Raises UsageError for one of pretended devices, which has nothing to report."""
    from levelfield.specs.result import PRETENDED

    if result.status.failure == PRETENDED:
        raise UsageError(
            f"{result.run_id}: found pretended devices, expected real ones; `evidence collect` shows its words"
        )
    return result


def _refuse_together(options: argparse.Namespace) -> None:
    """Raises UsageError for options that need different tables."""
    columns = [f"--format {options.format}"] if options.format in FOREIGN else []
    others = [f"--{name}" for name in ("hide", "with-published", "prices") if getattr(options, name.replace("-", "_"))]
    if options.log_interval is not None and (options.format != "oneflow" or options.log_interval < 1):
        raise UsageError(
            f"--log-interval: found {options.log_interval} with --format {options.format}, expected a number from 1 "
            "with --format oneflow"
        )
    if len(columns) + len(others) > 1:
        raise UsageError(f"report: {', '.join([*columns, *others])} need different tables; give only one of them")


def _logs(interval: int, paths: Sequence[RunPaths], results: Sequence[Result], plans: Sequence[Plan]) -> list[str]:
    from levelfield.publish.foreign_columns import interval_table
    from levelfield.rundir.raw_files import read_raw

    runs = zip(results, plans, map(read_raw, paths), strict=True)
    return [interval_table(result, plan, raw, interval) for result, plan, raw in runs]


def _text(options: argparse.Namespace, paths: Sequence[RunPaths], results: Sequence[Result]) -> str:
    from levelfield.publish.foreign_columns import as_report
    from levelfield.publish.foreign_tables import runs_of
    from levelfield.publish.published_rows import beside_published
    from levelfield.report.costs import RunCosts, listed
    from levelfield.report.one_run import result_lines, run_report

    if options.format in FOREIGN:
        plans = [read_plan(p) for p in paths]
        logs = _logs(options.log_interval, paths, results, plans) if options.log_interval is not None else []
        return "\n".join([as_report(options.format, runs_of(results, plans, registry_of(options))), *logs])
    if options.with_published:
        return beside_published(options.format, results, registry_of(options))
    prices = prices_of(options)
    costs = RunCosts(prices) if prices else None
    if len(results) > 1 or options.format in ("csv", "json"):
        return listed(options.format, results, [read_plan(each).repeats_digest for each in paths], costs)
    rows = [("cost", *costs.explained(results[0]))] if costs else []
    if options.format == "markdown":
        return run_report(results[0], read_plan(paths[0]), rows)
    return "\n".join([*result_lines(results[0], rows), ""])


def _explain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN", help=f"one run or two; {RUN_NAME}")
    format_options(parser)


def _explain(options: argparse.Namespace) -> int:
    """Print the parts of a run's step, or the way from one run's step to another's. Return 0."""
    from levelfield.catalog.registry import Registry
    from levelfield.explain.explanation import planned, step_parts
    from levelfield.explain.step_tables import step_sheets
    from levelfield.run.measurement import known_host_rates
    from levelfield.specs.base import dump

    if len(options.run) > 2:
        raise UsageError(f"report explain: found {len(options.run)} runs, expected one or two")
    named = NamedRuns(options)
    paths = list(named.over())
    named.raise_error()
    parts = [step_parts(each) for each in paths]
    if len(parts) == 2:
        print(_why_slower(options.format, paths, parts), end="")
        return 0
    plan, registry = read_plan(paths[0]), Registry()
    host = known_host_rates(registry) if plan.hardware.is_host else None
    found = parts[0].model_copy(update={"planned": planned(plan, parts[0], registry, host)})
    print(dump(found) if options.format == "json" else as_form(options.format, step_sheets(found)), end="")
    return 0


def _why_slower(form: str, paths: Sequence[RunPaths], parts: Sequence[StepParts]) -> str:
    """Return the difference of two runs as text. Raises GateFailed where their work is not equal."""
    from levelfield.explain.step_difference import as_values, step_difference
    from levelfield.explain.step_tables import difference_lines, difference_sheet, waterfall

    first, second = (read_plan(each) for each in paths)
    if first.work_digest != second.work_digest:
        raise GateFailed(
            f"{first.run_id} and {second.run_id}: found different work ({first.case} at {first.scale} scale, "
            f"{second.case} at {second.scale}), expected equal work; run both with the same case, scale and precision"
        )
    found = step_difference(*parts)
    ids = parts[0].run_id, parts[1].run_id
    if form == "json":
        values = {"a": ids[0], "b": ids[1], **as_values(found)}
        return json_text(values) + "\n"
    whole, rows = found.whole.row, [each.row for each in found.changes]
    sheet = difference_sheet([*rows, whole])
    warnings = [f"{side}: {each}" for side, step in zip("AB", parts, strict=True) for each in step.warnings]
    if form == "markdown":
        return as_markdown([Sheet(f"{ids[0]} (A) to {ids[1]} (B)", notes=(*found.sentences, *warnings)), sheet])
    lines = difference_lines(*ids, whole, found.sentences, found.explained, warnings)
    return "\n".join([*lines, "", *waterfall(whole, rows), "", as_text([sheet])])


def _pages(options: argparse.Namespace) -> int:
    """Write the site and print what it has. Return 0. Raises the error of a named run that is not over, at the end."""
    from levelfield.pages.page_building import build_pages

    if options.store and options.run and not options.beside:
        raise UsageError(
            "report pages: found --store and runs; runs are read from their own files: leave one out, or give --beside"
        )
    if options.beside and not options.run:
        raise UsageError(
            "report pages: found --beside without a run, expected the runs to put beside those of the store"
        )
    named, registry = NamedRuns(options), registry_of(options)
    with _results(options, named) as (results, findings), Terminal().bytes_progress("writing pages") as progress:
        built = build_pages(results, options.folder, registry, findings, progress, options.beside, prices_of(options))
    print("\n".join(_said(built, options)))
    named.raise_error()
    return 0


@contextmanager
def _results(options: argparse.Namespace, named: NamedRuns) -> Iterator[tuple[StoredResults, list[dict[str, object]]]]:
    """Give the named runs, with --beside those of the store too; else the store, with findings of its last night.

    The store is only read.
    """
    from levelfield.nights.gate import compared
    from levelfield.nights.stored_nights import gate_input
    from levelfield.pages.series_history import GivenRuns

    if options.run:
        records = list(_records(named))
        if not records:
            named.raise_error()
        if not options.beside:
            yield GivenRuns(records), []
            return
        with opened_store(options, read_only=True) as store:
            nights = store.nights()
            found = {night: store.findings(night) for night in nights}
            expected = {night: store.expected(night) for night in nights}
            both = [*store.records(store.run_ids()), *records]
            yield GivenRuns(both, store.events(), found, expected), []
        return
    with opened_store(options, read_only=True) as store:
        nights = store.nights()
        given = gate_input(store, nights[-1], None) if nights else None
        findings = compared(given, given.stored_pairs).findings if given else ()
        yield store, [finding.model_dump(mode="json") for finding in findings]


def _records(named: NamedRuns) -> Iterator[RunRecord]:
    """Return the record of each run, with the figures of its raw files: an edited result.json changes no page."""
    from levelfield.catalog.registry import Registry
    from levelfield.evidence.verification import record_of_files
    from levelfield.explain.explanation import recomputed

    known = Registry()
    for paths in named.over():
        with named.kept_error():
            yield record_of_files(paths, known, recomputed(paths))


def _said(built: BuiltPages, options: argparse.Namespace) -> Iterator[str]:
    yield f"pages    {options.folder}: {built.runs:,} run(s) in {built.series:,} series, {built.files:,} files"
    if built.rebuilt < built.series:
        yield f"series   {built.rebuilt:,} written again; the others did not change"
    if built.unreadable:
        shown = ", ".join(built.unreadable[:_NAMED])
        yield wrapped(f"left out {len(built.unreadable):,} run(s) whose time cannot be read: {shown}", 9)
    yield wrapped(f"look     open {options.folder / 'index.html'}", 9)


def _pages_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="write the pages into this folder")
    parser.add_argument("run", nargs="*", metavar="RUN", help=f"{RUN_NAME}; none: all runs of the store")
    parser.add_argument("--beside", action="store_true", help="the named runs beside those of the store, in private")
    prices_option(parser)
    store_option(parser)


COMMANDS = {
    "report": Command(REPORT, _report_options, _report),
    "report explain": Command(EXPLAIN, _explain_options, _explain),
    "report pages": Command(PAGES, _pages_options, _pages),
}
