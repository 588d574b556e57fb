"""`store` (every night): results over time: import, export, prune, check, backup
`store import`: add runs, folders of runs, bundles or exports
`store export`: write runs as JSON lines or CSV
`store prune`: remove old runs
`store check`: check the database, and every row against its digest
`store backup`: write the whole store into one file
`store restore`: make a new store what a backup is
`store info`: show where the store is and what it holds
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from zipfile import is_zipfile

from levelfield.cli.command_line import Command
from levelfield.cli.options import add_json_option, runs_folder, usage_error_if_unwritable
from levelfield.cli.store_options import add_store_option, open_store
from levelfield.cli.terminal import Terminal
from levelfield.errors import GateFailed, LevelfieldError, UsageError
from levelfield.node.regular_files import read_first
from levelfield.report.escapes import spreadsheet_cell
from levelfield.report.sheets import labelled_line
from levelfield.report.words import wrapped
from levelfield.rundir.directory import PAIRS_FOLDER, find_run, replacement_file
from levelfield.specs.paths import RunPaths
from levelfield.specs.readable_json import json_text

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.record import RunRecord
    from levelfield.store.database import Store
    from levelfield.store.statements import Statement

_STORE_HELP = """\
Keep results over time in a database. Every run is recorded unless --no-store.
The store is a file in your data folder; LEVELFIELD_STORE or --store names
another, or PostgreSQL. docs/store.md describes it.

examples:
  run_benchmarks.py store info
  run_benchmarks.py store import runs/
  run_benchmarks.py store export --format csv --case gpt3_6.7B
"""
_IMPORT_HELP = """\
Add runs, folders of runs, bundles or exports (JSON lines) to the store. A run
that is there already changes nothing. A run of the same id with other content
is kept aside, and so is the one that was there; exit code 2 then names it.

examples:
  run_benchmarks.py store import latest
  run_benchmarks.py store import runs/ run.zip export.jsonl
"""
_EXPORT_HELP = """\
Write the runs of the store.

  jsonl  everything; `store import` reads it
  csv    a row of metrics for each run

examples:
  run_benchmarks.py store export --output results.jsonl
  run_benchmarks.py store export --format csv --case llama3_8b
"""
_PRUNE_HELP = """\
Remove runs from the store. A run that an accepted baseline or another event
names stays. The run directories are not touched.

examples:
  run_benchmarks.py store prune --keep-days 365 --dry-run
  run_benchmarks.py store prune --keep-days 90 --case gpt3_6.7B
  run_benchmarks.py store prune --run ID
"""
_CHECK_HELP = """\
Check the database, and every row against its digest. Exit code 4 when something
is wrong.

example:
  run_benchmarks.py store check
"""
_BACKUP_HELP = """\
Write the whole store into one file, with all history, while others use it. A
file that is there is never replaced. For PostgreSQL: exit code 2 and the
command of pg_dump.

example:
  run_benchmarks.py store backup /mnt/nas/results-2026-11-30.sqlite
"""
_RESTORE_HELP = """\
Make a store what a backup is. A store that holds anything is refused. For
PostgreSQL: exit code 2 and the command of pg_restore.

example:
  run_benchmarks.py store restore results-2026-11-30.sqlite --store new.sqlite
"""
_INFO_HELP = """\
Show where the store is, how large it is, and what it holds. An older store is
brought up to date.

example:
  run_benchmarks.py store info --json
"""

FORMATS = ("jsonl", "csv")
_MAX_DAYS = 36_500  # a hundred years
_MAX_LISTED = 20  # messages about what could not be imported
# Why a record is `reported`: anybody can edit a line of an export, or a result.json, and no seal would show it.
_EXPORT_REASON = "it came from an export, without its raw files; import the run or its bundle"
_TRUSTED_RESULT_REASON = "result.json was taken as it is (--trust-results); import the run without it"


def _add_import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="+", metavar="RUN|DIR|FILE", help="a run, a folder of runs, a bundle, an export")
    parser.add_argument(
        "--trust-results", action="store_true", help="take result.json as it is; default: compute it from the raw files"
    )
    add_json_option(parser)
    add_store_option(parser)


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="jsonl", metavar="NAME", help="see above (default: jsonl)")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--since", metavar="DATE", help="only runs from this day on, such as 2026-11-01")
    parser.add_argument("--pairs", action="store_true", help="also the runs of pairs of builds, which jsonl always has")
    parser.add_argument("--output", type=Path, metavar="PATH", help="write to this file instead of stdout")
    add_store_option(parser)


def _add_prune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep-days", type=int, metavar="N", help="remove runs that began more than N days ago")
    parser.add_argument("--case", metavar="NAME", help="only runs of this case")
    parser.add_argument("--run", metavar="ID", help="only this run, with all contents that were imported for it")
    parser.add_argument("--dry-run", action="store_true", help="remove nothing; print what would be removed")
    add_json_option(parser)
    add_store_option(parser)


def _add_json_and_store_options(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    add_store_option(parser)


def _import(options: argparse.Namespace) -> int:
    """Import everything that can be imported. Raises UsageError with what could not, after the rest."""
    from levelfield.store.statements import add_statements

    source = _ImportSource(runs_folder(options), options.trust_results, Terminal(quiet=options.json))
    with open_store(options.store) as store:
        added = store.add(source.records(options.run))
        add_statements(store, source.statements)
    statement_count, not_sealed, problems = len(source.statements), source.not_sealed, source.problems
    if options.json:
        counts = {
            "new": added.new_count,
            "known": added.existing_count,
            "conflicts": list(added.conflicting_runs),
            "statements": statement_count,
        }
        print(json_text({**counts, "not_sealed": not_sealed, "problems": problems}))
    else:
        statements = f", {statement_count:,} event(s), expectation(s) or finding(s)" if statement_count else ""
        print(f"{added.new_count:,} new, {added.existing_count:,} known already{statements}")
        for reason, count in Counter(not_sealed.values()).most_common(_MAX_LISTED):
            first = next(run_id for run_id, other in not_sealed.items() if other == reason)
            runs = first if count == 1 else f"{count:,} runs, such as {first}"
            print(wrapped(f"in no comparison: {runs}: {reason}", 2))
    conflict_message = (
        "run {0}: the store has other content for this id; both are kept aside and are in no history. Find out which "
        "is right, then `store prune --run {0}` and import that one"
    )
    if problems := [*problems, *map(conflict_message.format, added.conflicting_runs)]:
        more = [f"and {len(problems) - _MAX_LISTED} more"] if len(problems) > _MAX_LISTED else []
        raise UsageError("\n".join([*problems[:_MAX_LISTED], *more]))
    return 0


class _ImportSource:
    """Reads records by paths and names, and collects the statements and problems that came with them."""

    def __init__(self, runs: Path, trusts_results: bool, terminal: Terminal) -> None:
        self._runs, self._trusts_results, self._terminal = runs, trusts_results, terminal
        self._nights: dict[Path, dict[str, str]] = {}  # by folder of runs and by run id, the name of its night
        self.statements: list[Statement] = []
        self.problems: list[str] = []
        self.not_sealed: dict[str, str] = {}  # by run, why it counts in no comparison

    @cached_property
    def _registry(self) -> Registry:
        from levelfield.catalog.registry import Registry

        return Registry()

    def records(self, names: Sequence[str]) -> Iterator[RunRecord]:
        """Yield every record that can be made. The errors of the others are added to `problems`."""
        for path in map(Path, names):
            read_records = (
                self._run_records
                if not path.is_file()
                else self._bundle_records
                if is_zipfile(path)
                else self._export_records
            )
            with self._errors_as_problems():
                for record in read_records(path):
                    if record.evidence != "sealed":
                        reason = f": {record.evidence_reason}" if record.evidence_reason else ""
                        self.not_sealed[record.run_id] = f"{record.evidence}{reason}"
                    yield record

    @contextmanager
    def _errors_as_problems(self) -> Iterator[None]:
        try:
            yield
        except LevelfieldError as error:
            self.problems.append(str(error))

    def _export_records(self, path: Path) -> Iterator[RunRecord]:
        from levelfield.specs.record import RunRecord
        from levelfield.store.record_lines import read_lines

        with suppress(OSError):  # read_lines names it
            first_bytes = read_first(path, 2)
            if first_bytes == b"PK":
                raise UsageError(
                    f"{path}: found the beginning of a zip without its end, expected a whole bundle; copy it again"
                )
            if first_bytes[:1] not in (b"{", b""):
                advice = "`evidence read` reads the logs of other tools"
                raise UsageError(f"{path}: found no line of an export; {advice}")
        with self._terminal.bytes_progress(f"importing {path.name}") as progress:
            for document in read_lines(path, lambda error: self.problems.append(str(error)), progress):
                if isinstance(document, RunRecord):
                    yield document.mark_reported(_EXPORT_REASON)
                else:
                    self.statements.append(document)

    def _bundle_records(self, path: Path) -> Iterator[RunRecord]:
        from levelfield.studies.compared_runs import bundle_records

        for run in bundle_records(path, self._registry):
            if isinstance(run, LevelfieldError):
                self.problems.append(f"{path}: {run}")
            else:
                yield run

    def _run_records(self, path: Path) -> Iterator[RunRecord]:
        """Yield the run of a name, or all runs of a folder. Raises UsageError for a folder without runs."""
        if not path.is_dir() or (path / "plan.json").is_file():
            folders = [find_run(self._runs, str(path)).root]
        else:
            folders = sorted(plan.parent.resolve() for plan in path.glob("*/plan.json"))
        if not folders:
            raise UsageError(f"{path}: found no run there, expected folders with a plan.json")
        with self._terminal.bytes_progress(f"importing {len(folders)} run(s)") as progress:
            for number, folder in enumerate(folders, 1):
                with self._errors_as_problems():
                    yield self._record(RunPaths(folder))
                progress(number, len(folders))

    def _record(self, paths: RunPaths) -> RunRecord:
        from levelfield.evidence.verification import recomputed_record
        from levelfield.explain.explanation import step_parts_or_none
        from levelfield.nights.nightly import nights_by_run
        from levelfield.rundir.run_state import refuse_running
        from levelfield.specs.record import purpose_of
        from levelfield.store.run_record import record_of, require_storable

        refuse_running(paths)
        folder = paths.root.parent
        if folder.name == PAIRS_FOLDER:
            raise UsageError(
                f"{paths.root}: found a run of a pair of builds, which is no point of its series; expected another. A "
                "nightly stores its pairs itself"
            )
        if self._trusts_results and paths.result.exists():
            record = record_of(paths).mark_reported(_TRUSTED_RESULT_REASON)
        else:
            record = recomputed_record(paths, self._registry, step_parts_or_none(paths))
        if folder not in self._nights:  # the states of nightlies lie beside the runs
            self._nights[folder] = {}
            with self._errors_as_problems():
                self._nights[folder] = nights_by_run(folder)
        if night := self._nights[folder].get(record.run_id):
            record = record.model_copy(update={"purpose": purpose_of(night), "night": night})
        return require_storable(record, str(paths.root))


def _export(options: argparse.Namespace) -> int:
    """Write the chosen runs. Raises UsageError for a place that cannot be written."""
    with open_store(options.store, read_only=True) as store:
        includes_pairs = options.format == "jsonl" or options.pairs
        records = store.records(store.run_ids(options.case, options.since, trend_only=not includes_pairs))
        if options.output is None:
            _write_records(options.format, sys.stdout, records, store)
        else:
            with usage_error_if_unwritable(options.output), replacement_file(options.output, through_link=True) as file:
                _write_records(options.format, file, records, store)
    return 0


def _write_records(form: str, file: TextIO, records: Iterator[RunRecord], store: Store) -> None:
    from levelfield.store.record_lines import format_line, table_row
    from levelfield.store.statements import stored_statements

    if form == "jsonl":
        file.writelines(map(format_line, records))
        file.writelines(map(format_line, stored_statements(store)))
        return
    writer: Any = None
    for record in records:
        row = {name: spreadsheet_cell(value) for name, value in table_row(record).items()}
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


def _prune(options: argparse.Namespace) -> int:
    from levelfield.store.address import is_missing
    from levelfield.store.upkeep import prune

    if options.keep_days is None and not options.case and not options.run:
        raise UsageError("store prune: found nothing to choose by; give --keep-days N, --case NAME or --run ID")
    if options.keep_days is not None and not 0 <= options.keep_days <= _MAX_DAYS:
        raise UsageError(f"--keep-days: found {options.keep_days}, expected 0 to {_MAX_DAYS}")
    with open_store(options.store, read_only=is_missing(options.store)) as store:
        pruned = prune(store, options.keep_days, options.case, options.run, options.dry_run)
    if options.json:
        print(json_text({"removed": pruned.removed, "kept": pruned.remaining, "dry_run": options.dry_run}))
        return 0
    for run_id in pruned.removed if options.dry_run else ():
        print(run_id)
    print(f"{'would remove' if options.dry_run else 'removed'} {len(pruned.removed)} run(s)")
    if ids := pruned.remaining:
        print(wrapped(f"{len(ids)} run(s) stay because an event names them: {', '.join(ids[:4])}", 2))
    return 0


def _check(options: argparse.Namespace) -> int:
    from levelfield.store.connections import DamagedStore
    from levelfield.store.upkeep import find_faults, row_counts

    terminal = Terminal(quiet=options.json)
    try:
        with open_store(options.store, read_only=True) as store:
            with terminal.bytes_progress("checking") as progress:
                problems = find_faults(store, progress)
            rows = row_counts(store)
            address = store.address.text
    except DamagedStore as error:
        raise GateFailed(str(error)) from None
    if options.json:
        print(json_text({"store": address, "rows": rows, "faults": problems}))
    else:
        print(wrapped(", ".join(f"{count:,} {name}" for name, count in rows.items()), 2))
        print("\n".join(wrapped(fault, 2) for fault in problems) or "every row is what its digest says")
    return GateFailed.exit_code if problems else 0


def _add_backup_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the file of the backup")
    add_store_option(parser)


def _backup(options: argparse.Namespace) -> int:
    from levelfield.store.backup import back_up

    with open_store(options.store, read_only=True) as store:
        back_up(store, options.file)
    print(f"backup   {options.file}: {options.file.stat().st_size / 2**20:,.1f} MiB")
    return 0


def _restore(options: argparse.Namespace) -> int:
    from levelfield.store.backup import restore
    from levelfield.store.upkeep import row_counts

    with open_store(options.store) as store:
        restore(store, options.file)
        print(labelled_line("restored", ", ".join(f"{count:,} {name}" for name, count in row_counts(store).items()), 9))
    return 0


def _info(options: argparse.Namespace) -> int:
    from levelfield.store.address import is_missing
    from levelfield.store.schema import SCHEMA_VERSION
    from levelfield.store.upkeep import row_counts, size_bytes

    with open_store(options.store, read_only=is_missing(options.store)) as store:
        rows, size, address, nights, series = (
            row_counts(store), size_bytes(store), store.address.text, len(store.nights()), store.series()
        )  # fmt: skip
    first, last = (
        min((entry.first_began for entry in series), default=None),
        max((entry.last_began for entry in series), default=None),
    )
    if options.json:
        facts = {"store": address, "schema": SCHEMA_VERSION, "bytes": size, "rows": rows, "first": first, "last": last}
        print(json_text({**facts, "nights": nights}))
        return 0
    print(f"store    {address}")
    print(f"schema   {SCHEMA_VERSION}, {size / 2**20:,.1f} MiB")
    print(labelled_line("rows", ", ".join(f"{count:,} {name}" for name, count in rows.items()), 9))
    print(f"runs     from {first or '-'} to {last or '-'}, {nights} night(s)")
    return 0


COMMANDS = {
    "store": Command(_STORE_HELP),
    "store import": Command(_IMPORT_HELP, _add_import_options, _import),
    "store export": Command(_EXPORT_HELP, _add_export_options, _export),
    "store prune": Command(_PRUNE_HELP, _add_prune_options, _prune),
    "store check": Command(_CHECK_HELP, _add_json_and_store_options, _check),
    "store backup": Command(_BACKUP_HELP, _add_backup_options, _backup),
    "store restore": Command(_RESTORE_HELP, _add_backup_options, _restore),
    "store info": Command(_INFO_HELP, _add_json_and_store_options, _info),
}
