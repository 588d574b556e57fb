"""What a database's own error means, in words and with what to do. One place for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError

from levelfield.errors import UsageError
from levelfield.store.address import StoreAddress

_KEPT = "nothing of this transaction was stored"
# By a part of the database's message, in lower case.
_MEANINGS = {
    "not a database": "is no store: {}. Name another file, or move it aside",
    "malformed": "is damaged: {}. Move it aside; `store import` makes it again from run directories or an export",
    "readonly": "cannot be written: {}. Change its rights or its folder's, or name another with --store",
    "read-only": "cannot be written: {}. Use a user that may write, or name another store with --store",
    "permission denied": "may not be used: {}. Grant the rights, or name another store with --store",
    "locked": f"is locked by another process: {{}}; {_KEPT}. Try again when that process has ended",
    "lock timeout": f"is locked by another process: {{}}; {_KEPT}. Try again when that process has ended",
    "disk is full": f"has no space left: {{}}; {_KEPT}. Free some space, then import again",
    "no space left": f"has no space left: {{}}; {_KEPT}. Free some space, then import again",
    "unable to open": "cannot be opened: {}. Check that its folder exists and may be written",
    "no such table": "is no store, or lacks a part: {}. `store check` says more",
    "does not exist": "is not there, or lacks a part: {}. Check the name of the database, and its tables",
    "disk i/o error": f"cannot be read or written: {{}}; {_KEPT}. Check the disk",
    "connection": "cannot be reached: {}. Check that the server runs, the address and the rights",
}


@contextmanager
def explained(address: StoreAddress) -> Iterator[None]:
    """Turn an error of the database in the block into a UsageError that names the store and what to do."""
    try:
        yield
    except IntegrityError:
        raise  # a fault of this code: it checks before it writes
    except (DBAPIError, sqlite3.Error) as error:
        raise UsageError(f"store {address.text} {_meaning(error)}") from None


def _meaning(error: Exception) -> str:
    original = error.orig if isinstance(error, DBAPIError) else error
    said = " ".join(str(original).split())
    texts = (text for part, text in _MEANINGS.items() if part in said.lower())
    return next(texts, "cannot be used: {}").format(said.rstrip("."))
