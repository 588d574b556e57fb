"""Backs up a SQLite store into one file and restores it, with all history: runs, runs put aside, and statements.

SQLite's backup copies one state of the store while others read and write.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from levelfield.errors import UsageError
from levelfield.store.address import StoreAddress
from levelfield.store.connections import DamagedStore, explaining_errors, refuse_foreign_database
from levelfield.store.database import Store
from levelfield.store.schema import FORMER_SCHEMA_VERSION, SCHEMA_VERSION, make_tables
from levelfield.store.upkeep import row_counts

# The place of two bytes of SQLite's file format: the versions that write and read. 1: no write-ahead log; 2: with one.
_VERSION_BYTES_OFFSET = 18


def back_up(store: Store, path: Path) -> None:
    """Write the store into a new file. The name appears when the file is whole.

    Raises UsageError for PostgreSQL, and where the file is there or cannot be written; DamagedStore where the store is.
    """
    address = store.address
    if address.path is None:
        _refuse_postgresql(address, f"pg_dump --format=custom --file={shlex.quote(str(path))}")
    if path.exists():
        raise UsageError(f"{path}: is there already, expected a new file; a backup replaces none")
    try:
        with TemporaryDirectory(prefix=".backup-", dir=path.parent) as folder:
            unfinished, backup_address = Path(folder) / path.name, StoreAddress("sqlite", str(path), path)
            with (
                explaining_errors(backup_address),
                closing(_connect(unfinished, "mode=rwc&nolock=1")) as target,
                closing(store.engine.raw_connection()) as source,
            ):
                source.driver_connection.backup(target)  # type: ignore[union-attr]
            with unfinished.open("r+b") as file:
                file.seek(_VERSION_BYTES_OFFSET)
                file.write(b"\x01\x01")
                file.flush()
                os.fsync(file.fileno())
            with explaining_errors(backup_address), closing(_connect(unfinished, "mode=ro&immutable=1")) as backup:
                (state,) = backup.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise DamagedStore(f"store {address.text}: is damaged: {state}; no backup was made, see `store check`")
            unfinished.rename(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def restore(store: Store, path: Path) -> None:
    """Make the store what the backup is, in one transaction.

    Raises UsageError for PostgreSQL, for a file that is no backup of this version, and for a store that holds anything.
    """
    if store.address.path is None:
        _refuse_postgresql(store.address, f"pg_restore {shlex.quote(str(path))} --dbname")
    if filled_tables := {name: count for name, count in row_counts(store).items() if count}:
        rows = ", ".join(f"{count:,} {name}" for name, count in filled_tables.items())
        raise UsageError(f"store {store.address.text}: holds {rows}, expected none; name a new one with --store FILE")
    if not path.is_file():
        raise UsageError(f"{path}: no such file, expected one of `store backup`")
    refuse_foreign_database(path)
    with (
        explaining_errors(StoreAddress("sqlite", str(path), path)),
        closing(_connect(path, "mode=ro&immutable=1")) as source,
    ):
        (version,) = source.execute("SELECT version FROM store_version").fetchone() or ("unknown",)
        if version not in (SCHEMA_VERSION, FORMER_SCHEMA_VERSION):
            raise UsageError(f"{path}: has the tables of version {version}, expected {SCHEMA_VERSION}")
        with explaining_errors(store.address), closing(store.engine.raw_connection()) as target:
            source.backup(target.driver_connection)  # type: ignore[arg-type]
    make_tables(store.engine, store.address, read_only=False)  # of a backup of the former version


def _connect(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True)


def _refuse_postgresql(address: StoreAddress, command: str) -> None:
    """Raise UsageError with PostgreSQL's own command for the task."""
    url = address.text.replace("postgresql+psycopg://", "postgresql://", 1)
    raise UsageError(f"store {url}: PostgreSQL has its own command: {command} {shlex.quote(url)}")
