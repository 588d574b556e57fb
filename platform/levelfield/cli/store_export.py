"""`store export`: writes the runs of a store as JSON lines, or as a table."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from levelfield.errors import UsageError
from levelfield.report.escapes import spreadsheet_cell
from levelfield.rundir.directory import write_error
from levelfield.specs.record import RunRecord
from levelfield.store.database import Store
from levelfield.store.record_lines import line_of
from levelfield.store.record_table import row_of


def export_runs(options: argparse.Namespace) -> int:
    with Store.open(options.store, read_only=True) as store, _output(options.output) as file:
        records = store.records(store.run_ids(options.case, options.since))
        if options.format == "csv":
            _write_table(file, records)
        else:
            file.writelines(map(line_of, records))
            file.writelines(map(line_of, store.events()))
    return 0


def _write_table(file: TextIO, records: Iterable[RunRecord]) -> None:
    writer: Any = None
    for record in records:
        row = {name: spreadsheet_cell(value) for name, value in row_of(record).items()}
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Give the file, or standard output. Raises UsageError where the file cannot be written."""
    if path is None:
        yield sys.stdout
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise UsageError(f"--output {write_error(error, path)}") from None
