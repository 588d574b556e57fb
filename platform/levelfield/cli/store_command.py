"""`store`: puts runs into the store of results, takes them out, and says whether it is whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from levelfield.cli.store_options import store_argument
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, UsageError
from levelfield.report.words import wrapped

_MOST_DAYS = 36_500  # a hundred years

FORMATS = ("jsonl", "csv", "tensorboard", "mllog")


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the actions with their options."""
    _import(actions.add_parser("import", help="add runs, folders of runs, bundles or exports"))
    _export(actions.add_parser("export", help="write runs as JSON lines, CSV, or for other tools"))
    _prune(actions.add_parser("prune", help="remove old runs"))
    for name, text in (("check", "check every row"), ("info", "show where the store is and what it holds")):
        actions.add_parser(name, help=text).add_argument("--json", action="store_true", help="machine-readable output")
    for action in actions.choices.values():
        store_argument(action)


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN|DIR|FILE", help="a run, a folder of runs, a bundle, an export")
    parser.add_argument(
        "--trust-results", action="store_true", help="take result.json as it is; default: compute it from the raw files"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="jsonl", metavar="NAME", help="see above (default: jsonl)")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--since", metavar="DATE", help="only runs from this day on, such as 2026-11-01")
    parser.add_argument(
        "--output", type=Path, metavar="PATH", help="write to this file instead of stdout; tensorboard: to this folder"
    )


def _prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-days", type=int, metavar="N", help="remove runs that began more than N days ago")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--run", metavar="ID", help="only this run, with all contents that were imported for it")
    parser.add_argument("--dry-run", action="store_true", help="remove nothing; print what would be removed")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def execute(options: argparse.Namespace) -> int:
    """Run one action. Return 0, or 4 when `check` finds faults. Raises UsageError for what could not be imported."""
    if options.action == "import":
        from levelfield.cli.store_import import import_runs

        return import_runs(options)
    if options.action == "export":
        from levelfield.cli.store_export import export_runs

        return export_runs(options)
    return {"prune": _pruned, "check": _checked, "info": _shown}[options.action](options)


def _pruned(options: argparse.Namespace) -> int:
    from levelfield.store.address import is_missing
    from levelfield.store.database import Store
    from levelfield.store.pruning import prune

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
    from levelfield.store.store_check import counts, faults

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
    from levelfield.store.store_check import counts, size_bytes

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
