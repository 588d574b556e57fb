"""`report --html`: pages of the store's runs, or of the named runs alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from levelfield.catalog.registry import Registry
from levelfield.cli.named_runs import NamedRuns
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.nights.gate import compared
from levelfield.nights.stored_nights import gate_input
from levelfield.pages.page_building import BuiltPages, build_pages
from levelfield.pages.results import GivenRuns, StoredResults
from levelfield.report.words import wrapped
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from levelfield.store.run_record import record_of

_NAMED = 5  # runs of a message


def write_pages(options: argparse.Namespace) -> int:
    """Write the site and print what it has. Return 0. Raises the error of a named run that is not over, at the end."""
    _refuse_others(options)
    named, terminal = NamedRuns(options), Terminal(quiet=False)
    registry = Registry(options.plugins, case_files=options.case_file)
    with _results(options, named) as results, terminal.bytes_progress("writing pages") as progress:
        built = build_pages(results, options.html, registry, _judged(results), progress)
    print("\n".join(_said(built, options)))
    named.raise_error()
    return 0


@contextmanager
def _results(options: argparse.Namespace, named: NamedRuns) -> Iterator[StoredResults]:
    """Give the named runs, else the store, which is only read."""
    if options.run:
        records = list(_records(named))
        if not records:
            named.raise_error()
        yield GivenRuns(records)
        return
    with Store.open(options.store, read_only=True) as store:
        yield store


def _judged(results: StoredResults) -> list[dict[str, Any]]:
    """Return the findings of the store's last night by the gate, which runs nothing here; none of named runs."""
    if not isinstance(results, Store) or not (nights := results.nights()):
        return []
    report = compared(gate_input(results, nights[-1], None))
    return [finding.model_dump(mode="json") for finding in report.findings]


def _records(named: NamedRuns) -> Iterator[RunRecord]:
    for paths in named.over():
        with named.kept_error():
            yield _record(paths)


def _record(paths: RunPaths) -> RunRecord:
    raw = read_raw(paths)  # figures come from the raw files: an edited result.json changes no page
    return record_of(paths, result=collect(paths, raw), raw=raw)


def _refuse_others(options: argparse.Namespace) -> None:
    """Raises UsageError for options of the other forms of a report, and for a store beside named runs."""
    names = ("output", "with_published", "withhold", "bundle", "reveal")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    given += [f"--format {options.format}"] if options.format != "table" else []
    given += ["--store"] if options.store and options.run else []
    if given:
        raise UsageError(f"report --html: found {', '.join(given)}, which pages do not have; leave it out")


def _said(built: BuiltPages, options: argparse.Namespace) -> Iterator[str]:
    yield f"pages    {options.html}: {built.runs:,} run(s) in {built.series:,} series, {built.files:,} files"
    if built.rebuilt < built.series:
        yield f"series   {built.rebuilt:,} written again; the others did not change"
    if built.unreadable:
        shown = ", ".join(built.unreadable[:_NAMED])
        yield wrapped(f"left out {len(built.unreadable):,} run(s) whose time cannot be read: {shown}", 9)
    yield f"look     open {options.html / 'index.html'}, or run: run_benchmarks.py serve {options.html}"
