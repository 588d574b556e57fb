"""`report`: reports one run in full, or several side by side."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.publishing import publish
from levelfield.cli.terminal import result_lines
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.publish.foreign_columns import FORMATS as FOREIGN
from levelfield.publish.foreign_columns import as_report
from levelfield.publish.foreign_tables import runs_of
from levelfield.publish.published_tables import beside_published
from levelfield.report import repeats
from levelfield.report.escapes import printable
from levelfield.report.markdown import run_report
from levelfield.report.tables import as_csv, as_json, as_markdown, as_text
from levelfield.rundir.directory import read_plan, room_left, write_atomically
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import PRETENDED, Result


def execute(options: argparse.Namespace) -> int:
    """Compute the results from the raw files, so that an edited result.json changes no report. Return 0.

    Raises the error of a run that goes on or is damaged, after the report of the others. Private tables are not made
    without it: which rows they have is part of what they commit to.
    """
    if options.html:
        from levelfield.cli.html_report import write_pages

        return write_pages(options)
    _refuse_together(options)
    named = NamedRuns(options)
    collected = []
    for each in named.over():
        with named.kept_error():
            collected.append((each, _real(collect(each))))
    if not collected or options.withhold or options.bundle or options.reveal:
        named.raise_error()
    paths, results = [each for each, _ in collected], [result for _, result in collected]
    _print(options, paths, results)
    named.raise_error()
    return 0


def _real(result: Result) -> Result:
    """Return the result. Raises UsageError for one of pretended devices, which has nothing to report."""
    if result.status.failure == PRETENDED:
        raise UsageError(f"{result.run_id}: found pretended devices, expected real ones; `collect` shows its words")
    return result


def _print(options: argparse.Namespace, paths: list[RunPaths], results: list[Result]) -> None:
    if options.withhold or options.bundle or options.reveal:
        print(publish(options, results, [read_plan(p) for p in paths]), end="")
        return
    text = _text(options, paths, results)
    if options.output:
        _write(options.output, text)
    else:
        print(text, end="")


def _refuse_together(options: argparse.Namespace) -> None:
    """Raises UsageError for options that need different tables, and for a report of no run."""
    if not options.run:
        raise UsageError("report: found no RUN; name one, or give --html DIR for pages of all runs of the store")
    if options.store:
        raise UsageError("report --store: needs --html DIR; a report of named runs reads their own files")
    private = [f"--{name}" for name in ("withhold", "bundle", "reveal") if getattr(options, name)]
    columns = [f"--format {options.format}"] if options.format in FOREIGN else []
    beside = ["--with-published"] if options.with_published else []
    if sum(map(bool, (private, columns, beside))) > 1:
        given = ", ".join([*private, *columns, *beside])
        raise UsageError(f"report: {given} need different tables; give only one of them")


def _text(options: argparse.Namespace, paths: Sequence[RunPaths], results: Sequence[Result]) -> str:
    if options.format in FOREIGN:
        registry = Registry(options.plugins, case_files=options.case_file)
        return as_report(options.format, runs_of(results, [read_plan(p) for p in paths], registry))
    if options.with_published:
        return beside_published(options.format, results, Registry(options.plugins, case_files=options.case_file))
    if len(results) == 1:
        table, markdown = _one_run(paths[0], results[0])
    else:
        table, markdown = as_text(results), as_markdown(results) + repeats.as_markdown(results)
        table += "".join(f"{line}\n" for line in repeats.as_lines(results))
    return {"table": table, "markdown": markdown, "csv": as_csv(results), "json": as_json(results)}[options.format]


def _one_run(paths: RunPaths, result: Result) -> tuple[str, str]:
    """Return the result of one run in full, as text and as Markdown."""
    return "\n".join(result_lines(result)) + "\n", run_report(result, read_plan(paths))


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, printable(text))
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}{room_left(error, path)}") from None
