"""Connections to a store, and its two kinds of transactions: those that read, and those that may write.

One transaction writes at a time. On SQLite it begins with BEGIN IMMEDIATE: a plain BEGIN that reads first fails with
`database is locked` as soon as two write. On PostgreSQL it takes an advisory lock, so that no two wait for each other.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from levelfield.errors import UsageError
from levelfield.store.address import StoreAddress, refuse_network_file_system, without_password

BUSY_SECONDS = 30.0
PAGE_BYTES = 8192  # a compressed result fits into a page with others; with 4096 bytes much of each page is empty
WRITER_LOCK = 0x6C6576656C  # of PostgreSQL: any number that nobody else uses
STORE_TABLES = {"series", "condition", "subject", "run", "raw"}  # a database without one of them is foreign
PSYCOPG = "psycopg[binary]==3.3.9"


_DAMAGED = "is damaged"
_UNCHANGED = "nothing of this transaction was stored"
# By a part of the database's message in lower case: the sentence that follows the store's name.
_SENTENCES_BY_MESSAGE = {
    "not a database": "is no store: {}. Name another file, or move it aside",
    "malformed": f"{_DAMAGED}: {{}}. Move it aside; `store import` makes it again: all of it from an export, from "
    "run directories the runs without their nights, levels and remarks",
    "readonly": "cannot be written: {}. Change its rights or its folder's, or name another with --store",
    "read-only": "cannot be written: {}. Use a user that may write, or name another store with --store",
    "permission denied": "may not be used: {}. Grant the rights, or name another store with --store",
    "locked": f"is locked by another process: {{}}; {_UNCHANGED}. Try again when that process has ended",
    "lock timeout": f"is locked by another process: {{}}; {_UNCHANGED}. Try again when that process has ended",
    "disk is full": f"has no space left: {{}}; {_UNCHANGED}. Free some space, then import again",
    "no space left": f"has no space left: {{}}; {_UNCHANGED}. Free some space, then import again",
    "unable to open": "cannot be opened: {}. Check that its folder exists and may be written",
    "no such table": "is no store, or lacks a part: {}. `store check` says more",
    "does not exist": "is not there, or lacks a part: {}. Check the name of the database, and its tables",
    "disk i/o error": f"cannot be read or written: {{}}; {_UNCHANGED}. Check the disk",
    "connection": "cannot be reached: {}. Check that the server runs, the address and the rights",
}


class DamagedStore(UsageError):
    """The database itself says that its file is damaged."""


def make_engine(address: StoreAddress, read_only: bool) -> Engine:
    """Return the engine of a store. SQLite's file and its folder are made, unless it is opened to read.

    Raises UsageError where there is nothing to read, on a network file system, and without PostgreSQL's client.
    """
    if address.path:
        return _sqlite_engine(address.path, read_only)
    options = f"-c lock_timeout={BUSY_SECONDS:.0f}s" + (" -c default_transaction_read_only=on" if read_only else "")
    try:
        return create_engine(make_url(address.url), connect_args={"connect_timeout": 10, "options": options})
    except ModuleNotFoundError:
        raise UsageError(
            f"store {address.text}: PostgreSQL needs the package psycopg: pip install '{PSYCOPG}' into the Python that "
            "runs this command"
        ) from None
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"store {without_password(address.url)}: {error}") from None


@contextmanager
def read_transaction(engine: Engine, address: StoreAddress) -> Iterator[Connection]:
    """Give a connection whose queries all see the same state of the store, and write nothing."""
    with explaining_errors(address), engine.connect() as connection:
        connection.execution_options(levelfield_begin="BEGIN")
        with connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            yield connection


@contextmanager
def write_transaction(engine: Engine, address: StoreAddress) -> Iterator[Connection]:
    """Give the connection of the one transaction that writes. All of it is committed at the end, or nothing."""
    with explaining_errors(address), engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITER_LOCK})
        yield connection


def _sqlite_engine(path: Path, read_only: bool) -> Engine:
    refuse_network_file_system(path)
    if read_only and not path.exists():
        raise UsageError(f"store {path}: found no file; a run makes it, or `store import RUNS`")
    refuse_foreign_database(path)
    if not read_only:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"store: the folder {path.parent} cannot be made: {error.strerror}; name one with --store"
            ) from None
    # In a text SQLAlchemy would decode the name once more: of `a%41` it would open `aA`, of `a?b` it would open `a`.
    address = URL.create(
        "sqlite", database=f"file:{quote(str(path))}?{_uri_options(path, read_only)}", query={"uri": "true"}
    )
    engine = create_engine(
        address,
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False},
    )

    def configure(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            cursor.execute(f"PRAGMA page_size={PAGE_BYTES}")
            cursor.execute("PRAGMA synchronous=NORMAL")
            # SQLite does not wait for another process that turns the write-ahead log on at the same time.
            deadline = time.monotonic() + BUSY_SECONDS
            while True:
                try:
                    cursor.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
        cursor.close()

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("levelfield_begin", "BEGIN IMMEDIATE"))

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def refuse_foreign_database(path: Path) -> None:
    """Raise UsageError for a database of another program, before anything is written to it, its journal mode too.

    An empty file is a new store. The first query reports a file that is no database.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{_uri_options(path, True)}", uri=True)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error:
        return
    table_names = sorted(name for name in names if not name.startswith("sqlite_"))
    if (table_names and not names >= STORE_TABLES) or application_id:
        raise UsageError(
            f"store {path}: found a database of another program (tables {', '.join(table_names[:5]) or 'none'}), "
            "expected a store of Levelfield or no file. Nothing was written to it; name another file with --store or "
            "LEVELFIELD_STORE"
        )


def _uri_options(path: Path, read_only: bool) -> str:
    """Return the URI options with which SQLite opens the file.

    A folder that may not be written cannot have the shared memory of a write-ahead log, so that the file is opened as
    one that nobody changes.
    """
    if not read_only:
        return "mode=rwc"
    is_immutable = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    return "mode=ro&immutable=1" if is_immutable else "mode=ro"


@contextmanager
def explaining_errors(address: StoreAddress) -> Iterator[None]:
    """Turn an error of the database in the block into a UsageError that names the store and what to do."""
    try:
        yield
    except IntegrityError:
        raise  # a fault of this code: it checks before it writes
    except (DBAPIError, sqlite3.Error) as error:
        original = error.orig if isinstance(error, DBAPIError) else error
        message = " ".join(str(original).split())
        sentences = (text for part, text in _SENTENCES_BY_MESSAGE.items() if part in message.lower())
        sentence = next(sentences, "cannot be used: {}").format(message.rstrip("."))
        raise (DamagedStore if sentence.startswith(_DAMAGED) else UsageError)(
            f"store {address.text} {sentence}"
        ) from None
