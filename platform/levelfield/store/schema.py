"""The tables of a store, as this version of the code uses them. migrations/ makes them, in one transaction;
docs/store.md explains them.

A run's row is narrow, so that a history reads few pages. Its steps, losses and result are in `raw`. Digests are texts
such as `sha256:...`; rows refer to each other by small numbers.
"""

from __future__ import annotations

from pathlib import Path

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

from levelfield.errors import UsageError
from levelfield.store.address import StoreAddress
from levelfield.store.connections import reading, writing

REVISION = "0004"  # of the newest migration
METADATA = MetaData()

SERIES = Table(
    "series",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    *(Column(name, Text, nullable=False) for name in ("label", "case_name", "work", "corpus", "scale", "framework")),
    *(Column(name, Text, nullable=False) for name in ("vendor", "chip", "device_is", "precision", "layout", "runtime")),
    *(Column(name, Integer, nullable=False) for name in ("nodes", "devices", "micro_batch", "accumulation")),
    Column("recompute", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("sample", LargeBinary, nullable=False),
)

CONDITION = Table(
    "condition",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("document", Text, nullable=False),
)

SUBJECT = Table(
    "subject",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("framework_version", Text, nullable=False),
    Column("platform_version", Text, nullable=False),
    Column("commit_hash", Text),
    Column("document", Text, nullable=False),
)

NODE = Table(
    "node",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
)

FIGURES = ("tokens_per_second_per_device", "memory_bytes", "joules_per_token", "mfu", "loss_tail")

RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False, unique=True),
    Column("content", Text, nullable=False),
    Column("row_digest", LargeBinary, nullable=False),
    Column("is_aside", Integer, nullable=False),
    Column("began", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("night", Text),
    Column("entry", Text),
    Column("evidence", Text, nullable=False),
    Column("evidence_reason", Text),
    *(
        Column(f"{table}_id", Integer, ForeignKey(f"{table}.id"), nullable=False)
        for table in ("series", "condition", "subject", "node")
    ),
    Column("word", Text, nullable=False),
    Column("failure", Text),
    Column("reason", Text),
    Column("verdict", Text, nullable=False),
    *(Column(name, Double) for name in FIGURES),
    Column("window_first", Integer, nullable=False),
    Column("window_last", Integer, nullable=False),
    Index("run_of_series", "series_id", "is_aside", "began"),
    Index("run_of_night", "night"),
    Index("run_began", "began"),
)

RAW = Table(
    "raw",
    METADATA,
    Column("run_id", Integer, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("steps", LargeBinary, nullable=False),
    Column("losses", LargeBinary, nullable=False),
    Column("documents", LargeBinary, nullable=False),
)

ASIDE = Table(
    "aside",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("document", LargeBinary, nullable=False),
    Index("aside_once", "run_id", "content", unique=True),
)

EVENT = Table(
    "event",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("series", Text, index=True),
    Column("node", Text),
    Column("at", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("until", Text),
    Column("document", Text, nullable=False),
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
    Column("document", Text, nullable=False),
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
