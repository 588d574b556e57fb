"""`store export`: writes the runs of a store as JSON lines or a table, or as what other tools read."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from levelfield.errors import UsageError
from levelfield.publish.tool_logs import mllog_lines, write_scalars
from levelfield.report.escapes import spreadsheet_cell
from levelfield.rundir.directory import replacing, room_left
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from levelfield.store.record_lines import line_of, row_of
from levelfield.store.statements import statements_of

Records = Iterator[RunRecord]


def export_runs(options: argparse.Namespace) -> int:
    """Write the chosen runs. Raises UsageError for a place that cannot be written."""
    with Store.open(options.store, read_only=True) as store:
        records = store.records(store.run_ids(options.case, options.since))
        if options.format == "tensorboard":
            return _write_folders(options.output, records)
        with _output(options.output) as file:
            _write(options.format, file, records, store)
    return 0


def _write(form: str, file: TextIO, records: Records, store: Store) -> None:
    if form == "jsonl":
        file.writelines(map(line_of, records))
        file.writelines(map(line_of, statements_of(store)))
    elif form == "mllog":
        file.writelines(line for record in records for line in mllog_lines(record))
    else:
        _write_table(file, records)


def _write_table(file: TextIO, records: Iterable[RunRecord]) -> None:
    writer: Any = None
    for record in records:
        row = {name: spreadsheet_cell(value) for name, value in row_of(record).items()}
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


def _write_folders(folder: Path | None, records: Records) -> int:
    """Write a folder for every run, and say how many were new there."""
    if folder is None:
        raise UsageError("--format tensorboard: found no folder to write; give --output DIR")
    new = known = 0
    try:
        for record in records:
            is_new = bool(write_scalars(folder, record))
            new, known = new + is_new, known + (not is_new)
    except OSError as error:
        raise UsageError(f"--output {_unwritten(error, folder)}") from None
    print(f"wrote {new:,} run(s)" + (f", {known:,} were there already" if known else ""))
    return 0


def _unwritten(error: OSError, place: Path) -> str:
    return f"{error.filename or place}: cannot be written: {error.strerror}{room_left(error, place)}"


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Give the file, or standard output. Raises UsageError where the file cannot be written."""
    if path is None:
        yield sys.stdout
        return
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise UsageError(f"--output {_unwritten(error, path)}") from None
