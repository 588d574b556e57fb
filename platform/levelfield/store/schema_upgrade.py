"""Brings a store to the schema of this code, in one transaction. A store of newer code is refused."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, text

from levelfield.errors import UsageError
from levelfield.store.address import StoreAddress
from levelfield.store.connections import reading, writing
from levelfield.store.schema import REVISION

MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(engine: Engine, address: StoreAddress, read_only: bool) -> None:
    """Make or upgrade the tables. Raises UsageError for a store of newer code, and for an older one opened to read."""
    found = revision_of(engine, address)
    if found == REVISION:
        return
    if found is not None and not found < REVISION:
        raise UsageError(
            f"store {address.text}: has schema {found}, and this version of Levelfield knows {REVISION}; use a newer "
            "Levelfield, or name another store with --store"
        )
    if read_only:
        has = "no tables" if found is None else f"schema {found}"
        raise UsageError(
            f"store {address.text}: has {has}, expected schema {REVISION}; `store info` brings it up to date"
        )
    with writing(engine, address) as connection:  # another process may have been first: alembic looks again
        _run_migrations(connection)


def revision_of(engine: Engine, address: StoreAddress) -> str | None:
    """Return the schema of a store; None for an empty database."""
    with reading(engine, address) as connection:
        if not engine.dialect.has_table(connection, "alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _run_migrations(connection: Connection) -> None:
    from alembic import command  # half a second to import, and only a new or an old store needs it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
