"""The tables of a store, as this version of the code uses them. migrations/ makes them, in one transaction;
docs/store.md explains them.

A run's row is narrow, so that a history reads few pages. Its steps, losses and result are in `raw`. Digests are texts
such as `sha256:...`; rows refer to each other by small numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from levelfield.errors import UsageError
from levelfield.specs.run_figures import STORED
from levelfield.store.address import StoreAddress
from levelfield.store.connections import reading, writing

REVISION = "0004"  # of the newest migration
METADATA = MetaData()


def _filled(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    """Return columns of this type in which nothing may be null."""
    return [Column(name, kind, nullable=False) for name in names]


def _named_by_digest() -> tuple[Column[Any], ...]:
    """Return the small number by which rows refer to a row, and the digest of what it holds."""
    return Column("id", Integer, primary_key=True), Column("digest", Text, nullable=False, unique=True)


SERIES = Table(
    "series",
    METADATA,
    *_named_by_digest(),
    *_filled(Text, "label", "case_name", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is"),
    *_filled(Text, "precision", "layout", "runtime"),
    *_filled(Integer, "nodes", "devices", "micro_batch", "accumulation"),
    *_filled(Text, "recompute", "document"),
    *_filled(LargeBinary, "sample"),
)
CONDITION = Table("condition", METADATA, *_named_by_digest(), *_filled(Text, "document"))
SUBJECT = Table(
    "subject",
    METADATA,
    *_named_by_digest(),
    *_filled(Text, "framework_version", "platform_version"),
    Column("commit_hash", Text),
    *_filled(Text, "document"),
)
NODE = Table("node", METADATA, *_named_by_digest())

RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False, unique=True),
    *_filled(Text, "content"),
    *_filled(LargeBinary, "row_digest"),
    *_filled(Integer, "is_aside"),
    *_filled(Text, "began", "purpose"),
    Column("night", Text),
    Column("entry", Text),
    *_filled(Text, "evidence"),
    Column("evidence_reason", Text),
    *(
        Column(f"{table}_id", Integer, ForeignKey(f"{table}.id"), nullable=False)
        for table in ("series", "condition", "subject", "node")
    ),
    *_filled(Text, "word"),
    Column("failure", Text),
    Column("reason", Text),
    *_filled(Text, "verdict"),
    *(Column(name, Double) for name in STORED),
    *_filled(Integer, "window_first", "window_last"),
    Index("run_of_series", "series_id", "is_aside", "began"),
    Index("run_of_night", "night"),
    Index("run_began", "began"),
)

RAW = Table(
    "raw",
    METADATA,
    Column("run_id", Integer, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    *_filled(LargeBinary, "steps", "losses", "documents"),
)

ASIDE = Table(
    "aside",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_filled(Text, "run_id", "content"),
    *_filled(LargeBinary, "document"),
    Index("aside_once", "run_id", "content", unique=True),
)

EVENT = Table(
    "event",
    METADATA,
    Column("id", Text, primary_key=True),
    *_filled(Text, "kind"),
    Column("series", Text, index=True),
    Column("node", Text),
    *_filled(Text, "at", "who", "why"),
    Column("until", Text),
    *_filled(Text, "document"),
)

EXPECTATION = Table(
    "expectation",
    METADATA,
    Column("night", Text, primary_key=True),
    Column("suite", Text, primary_key=True),
    Column("entry", Text, primary_key=True),
    Column("series", Text),
)

FINDING = Table(
    "finding",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("night", Text, nullable=False, index=True),
    *_filled(Text, "document"),
)


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
