"""`report pages`: write pages of the store's runs, or of the named runs
`report serve`: show these pages on this machine
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from levelfield.cli.command_line import Command
from levelfield.cli.options import RUN_NAME, NamedRuns, registry_of, store_option
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

PAGES = """\
Write pages of all runs of the store, or of the named runs: static files, which
`report serve` shows, and any web server. docs/pages.md describes them.

examples:
  run_benchmarks.py report pages site
  run_benchmarks.py report pages site RUN1 RUN2
"""
SERVE = """\
Serve the pages that `report pages DIR` wrote. Only the files of these pages
are given out, only to GET and HEAD, and only on this machine by default.
Pages that are made again while it runs are served as they are then.
Ctrl-C ends it.

examples:
  run_benchmarks.py report serve site
  run_benchmarks.py report serve site --port 8080
"""

_PORT = 8730
_NAMED = 5  # runs of a message


def _pages(options: argparse.Namespace) -> int:
    """Write the site and print what it has. Return 0. Raises the error of a named run that is not over, at the end."""
    if options.store and options.run:
        raise UsageError("report pages: found --store and runs; runs are read from their own files, leave one out")
    named, terminal = NamedRuns(options), Terminal(quiet=False)
    registry = registry_of(options)
    with _results(options, named) as results, terminal.bytes_progress("writing pages") as progress:
        built = build_pages(results, options.folder, registry, _judged(results), progress)
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


def _said(built: BuiltPages, options: argparse.Namespace) -> Iterator[str]:
    yield f"pages    {options.folder}: {built.runs:,} run(s) in {built.series:,} series, {built.files:,} files"
    if built.rebuilt < built.series:
        yield f"series   {built.rebuilt:,} written again; the others did not change"
    if built.unreadable:
        shown = ", ".join(built.unreadable[:_NAMED])
        yield wrapped(f"left out {len(built.unreadable):,} run(s) whose time cannot be read: {shown}", 9)
    yield f"look     open {options.folder / 'index.html'}, or run: run_benchmarks.py report serve {options.folder}"


def _pages_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="write the pages into this folder")
    parser.add_argument("run", nargs="*", metavar="RUN", help=f"{RUN_NAME}; none: all runs of the store")
    store_option(parser)


def _serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("site"), metavar="DIR", help="the folder of the pages (site)"
    )
    parser.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"the port (default: {_PORT}; 0: any)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="an address of this machine that others may reach (default: 127.0.0.1, this machine alone)",
    )


def _serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Return 0. Raises UsageError for a folder without pages, and for the address."""
    from levelfield.pages.page_server import opened_server

    server = opened_server(options.folder, options.host, options.port)
    print(f"serving {options.folder} at {server.url} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
    return 0


COMMANDS = {
    "report pages": Command(PAGES, _pages_options, _pages),
    "report serve": Command(SERVE, _serve_options, _serve),
}
