"""`store` (every night): results over time: import, export, prune, check
`store import`: add runs, folders of runs, bundles or exports
`store export`: write runs as JSON lines, CSV, or for other tools
`store prune`: remove old runs
`store check`: check the database, and every row against its digest
`store info`: show where the store is and what it holds
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from levelfield.cli.command_line import Command
from levelfield.cli.options import json_option, store_option
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.words import wrapped

STORE = """\
Keep results over time in a database. Every run is recorded unless --no-store.
The store is a file in your data folder; LEVELFIELD_STORE or --store names
another, or PostgreSQL. docs/store.md describes it.

examples:
  run_benchmarks.py store info
  run_benchmarks.py store import runs/
  run_benchmarks.py store export --format csv --case gpt3_6.7B
"""
IMPORT = """\
Add runs, folders of runs, bundles or exports (JSON lines) to the store. A run
that is there already changes nothing. A run of the same id with other content
is kept aside, and so is the one that was there; exit code 2 then names it.

examples:
  run_benchmarks.py store import latest
  run_benchmarks.py store import runs/ run.zip export.jsonl
"""
EXPORT = """\
Write the runs of the store.

  jsonl        everything; `store import` reads it
  csv          a row of figures for each run
  tensorboard  an event file for each run, below the folder --output
  mllog        lines of MLPerf's logging format; not a submission

examples:
  run_benchmarks.py store export --output results.jsonl
  run_benchmarks.py store export --format csv --case llama3_8b
  run_benchmarks.py store export --format tensorboard --output DIR
"""
PRUNE = """\
Remove runs from the store. A run that an accepted baseline or another event
names stays. The run directories are not touched.

examples:
  run_benchmarks.py store prune --keep-days 365 --dry-run
  run_benchmarks.py store prune --keep-days 90 --case gpt3_6.7B
  run_benchmarks.py store prune --run ID
"""
CHECK = """\
Check the database, and every row against its digest. Exit code 4 when something
is wrong.

example:
  run_benchmarks.py store check
"""
INFO = """\
Show where the store is, how large it is, and what it holds. An older store is
brought up to date.

example:
  run_benchmarks.py store info --json
"""

_MOST_DAYS = 36_500  # a hundred years

FORMATS = ("jsonl", "csv", "tensorboard", "mllog")


def _import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN|DIR|FILE", help="a run, a folder of runs, a bundle, an export")
    parser.add_argument(
        "--trust-results", action="store_true", help="take result.json as it is; default: compute it from the raw files"
    )
    json_option(parser)
    store_option(parser)


def _export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="jsonl", metavar="NAME", help="see above (default: jsonl)")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--since", metavar="DATE", help="only runs from this day on, such as 2026-11-01")
    parser.add_argument(
        "--output", type=Path, metavar="PATH", help="write to this file instead of stdout; tensorboard: to this folder"
    )
    store_option(parser)


def _prune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-days", type=int, metavar="N", help="remove runs that began more than N days ago")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--run", metavar="ID", help="only this run, with all contents that were imported for it")
    parser.add_argument("--dry-run", action="store_true", help="remove nothing; print what would be removed")
    json_option(parser)
    store_option(parser)


def _json_and_store(parser: argparse.ArgumentParser) -> None:
    json_option(parser)
    store_option(parser)


def _import(options: argparse.Namespace) -> int:
    from levelfield.cli.store_import import import_runs

    return import_runs(options)


def _export(options: argparse.Namespace) -> int:
    from levelfield.cli.store_export import export_runs

    return export_runs(options)


def _pruned(options: argparse.Namespace) -> int:
    from levelfield.store.address import is_missing
    from levelfield.store.database import Store
    from levelfield.store.upkeep import prune

    if options.keep_days is None and not options.case and not options.run:
        raise UsageError("store prune: found nothing to choose by; give --keep-days N, --case NAME or --run ID")
    if options.keep_days is not None and not 0 <= options.keep_days <= _MOST_DAYS:
        raise UsageError(f"--keep-days: found {options.keep_days}, expected 0 to {_MOST_DAYS}")
    with Store.open(options.store, is_missing(options.store)) as store:
        found = prune(store, options.keep_days, options.case, options.run, options.dry_run)
    if options.json:
        print(json.dumps({"removed": found.removed, "kept": found.kept, "dry_run": options.dry_run}, indent=2))
        return 0
    for run_id in found.removed if options.dry_run else ():
        print(run_id)
    print(f"{'would remove' if options.dry_run else 'removed'} {len(found.removed)} run(s)")
    if found.kept:
        print(wrapped(f"{len(found.kept)} run(s) stay because an event names them: {', '.join(found.kept[:4])}", 2))
    return 0


def _checked(options: argparse.Namespace) -> int:
    from levelfield.store.database import Store
    from levelfield.store.upkeep import counts, faults

    terminal = Terminal(quiet=options.json)
    with Store.open(options.store, read_only=True) as store:
        with terminal.bytes_progress("checking") as progress:
            found = faults(store, progress)
        rows = counts(store)
        where = store.address.text
    if options.json:
        print(json.dumps({"store": where, "rows": rows, "faults": found}, indent=2))
    else:
        print(wrapped(", ".join(f"{count:,} {name}" for name, count in rows.items()), 2))
        print("\n".join(wrapped(fault, 2) for fault in found) or "every row is what its digest says")
    return GateFailed.exit_code if found else 0


def _shown(options: argparse.Namespace) -> int:
    from levelfield.store.address import is_missing
    from levelfield.store.database import Store
    from levelfield.store.schema import REVISION
    from levelfield.store.upkeep import counts, size_bytes

    with Store.open(options.store, is_missing(options.store)) as store:
        rows, size, where, nights = counts(store), size_bytes(store), store.address.text, store.nights()
        listed = store.series()
    facts = {
        "store": where,
        "schema": REVISION,
        "bytes": size,
        "rows": rows,
        "first": min((found.first for found in listed), default=None),
        "last": max((found.last for found in listed), default=None),
        "nights": len(nights),
    }
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(f"store    {where}")
    print(f"schema   {REVISION}, {size / 2**20:,.1f} MiB")
    print(wrapped(f"rows     {', '.join(f'{count:,} {name}' for name, count in rows.items())}", 9))
    print(f"runs     from {facts['first'] or '-'} to {facts['last'] or '-'}, {len(nights)} night(s)")
    return 0


COMMANDS = {
    "store": Command(STORE),
    "store import": Command(IMPORT, _import_options, _import),
    "store export": Command(EXPORT, _export_options, _export),
    "store prune": Command(PRUNE, _prune_options, _pruned),
    "store check": Command(CHECK, _json_and_store, _checked),
    "store info": Command(INFO, _json_and_store, _shown),
}
