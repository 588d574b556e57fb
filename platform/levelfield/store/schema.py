"""The tables and views of a store, made in one transaction; docs/store.md explains them.

A run's row is narrow, so that a history reads few pages. Its steps, losses and result are in `raw`. Digests are texts
such as `sha256:...`; rows refer to each other by small numbers.
"""

from __future__ import annotations

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
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from levelfield.errors import UsageError
from levelfield.specs.run_figures import FORMER_COLUMNS, STORED_FIGURES
from levelfield.store.address import StoreAddress
from levelfield.store.connections import read_transaction, write_transaction

SCHEMA_VERSION = "1.1.0"  # of these tables
FORMER_SCHEMA_VERSION = "1.0.0"  # its tables become these when the store is opened for writing
METADATA = MetaData()


def _required_columns(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    """Return columns of this type that are never null."""
    return [Column(name, kind, nullable=False) for name in names]


def _digest_columns() -> tuple[Column[Any], ...]:
    """Return the columns of a row's number, by which other rows refer to it, and of the digest of its content."""
    return Column("id", Integer, primary_key=True), Column("digest", Text, nullable=False, unique=True)


SERIES = Table(
    "series",
    METADATA,
    *_digest_columns(),
    *_required_columns(
        Text, "label", "case_name", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is"
    ),
    *_required_columns(Text, "precision", "layout", "runtime"),
    *_required_columns(Integer, "nodes", "devices", "micro_batch", "accumulation"),
    *_required_columns(Text, "recompute", "document"),
    *_required_columns(LargeBinary, "sample"),
)
CONDITION = Table("condition", METADATA, *_digest_columns(), *_required_columns(Text, "document"))
SUBJECT = Table(
    "subject",
    METADATA,
    *_digest_columns(),
    *_required_columns(Text, "framework_version", "platform_version"),
    Column("commit_hash", Text),
    *_required_columns(Text, "document"),
)
NODE = Table("node", METADATA, *_digest_columns())

RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False, unique=True),
    *_required_columns(Text, "content"),
    *_required_columns(LargeBinary, "row_digest"),
    *_required_columns(Integer, "is_aside"),
    *_required_columns(Text, "began", "purpose"),
    Column("night", Text),
    Column("entry", Text),
    *_required_columns(Text, "evidence"),
    Column("evidence_reason", Text),
    *(
        Column(f"{table}_id", Integer, ForeignKey(f"{table}.id"), nullable=False)
        for table in ("series", "condition", "subject", "node")
    ),
    *_required_columns(Text, "word"),
    Column("failure", Text),
    Column("reason", Text),
    *_required_columns(Text, "verdict"),
    *(Column(name, Double) for name in STORED_FIGURES),
    Column("disturbance", Text),
    *_required_columns(Integer, "window_first", "window_last"),
    Index("run_of_series", "series_id", "is_aside", "began"),
    Index("run_of_night", "night"),
    Index("run_began", "began"),
)

RAW = Table(
    "raw",
    METADATA,
    Column("run_id", Integer, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    *_required_columns(LargeBinary, "steps", "losses", "documents"),
)

ASIDE = Table(
    "aside",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required_columns(Text, "run_id", "content"),
    *_required_columns(LargeBinary, "document"),
    Index("aside_once", "run_id", "content", unique=True),
)

EVENT = Table(
    "event",
    METADATA,
    Column("id", Text, primary_key=True),
    *_required_columns(Text, "kind"),
    Column("series", Text, nullable=False, index=True),
    *_required_columns(Text, "at", "who", "why"),
    Column("until", Text),
    *_required_columns(Text, "document"),
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
    *_required_columns(Text, "document"),
)


# The columns that follow from a run's result. A store that was made before one of them gets it.
RESULT_COLUMN_TYPES = {**dict.fromkeys(STORED_FIGURES, "DOUBLE PRECISION"), "disturbance": "TEXT"}

STORE_VERSION = Table("store_version", MetaData(), Column("version", Text, primary_key=True))

_BEGAN_SECONDS = {
    "sqlite": "CAST(strftime('%s', run.began) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM CAST(run.began AS timestamptz)) AS bigint)",
}
_RESULT_VIEW = """
CREATE VIEW v_result AS
SELECT run.run_id, run.began, {seconds} AS began_seconds, run.purpose, run.night, run.entry,
       series.label, series.case_name, series.scale, series.framework, series.vendor, series.chip, series.device_is,
       series.nodes, series.devices, series.precision, series.layout, series.micro_batch, series.recompute,
       series.runtime, subject.framework_version, subject.commit_hash, subject.platform_version,
       run.evidence, run.word, run.failure, run.reason, run.verdict,
       {figures}, run.disturbance,
       run.window_first, run.window_last,
       series.digest AS series, condition.digest AS conditions, subject.digest AS subject, node.digest AS node
FROM run
JOIN series ON series.id = run.series_id
JOIN condition ON condition.id = run.condition_id
JOIN subject ON subject.id = run.subject_id
JOIN node ON node.id = run.node_id
WHERE run.is_aside = 0
"""
_LABELS = """series.label, series.case_name, series.scale, series.framework, series.vendor, series.chip, series.nodes,
       series.devices, series.precision, series.layout, series.runtime"""
# Half of the runs of pairs are of an older build: the view counts the runs of the trend alone.
_SERIES_VIEW = f"""
CREATE VIEW v_series AS
SELECT series.digest AS series, {_LABELS},
       COUNT(*) AS runs, SUM(CASE WHEN run.word = 'valid' THEN 1 ELSE 0 END) AS valid_runs,
       MIN(run.began) AS first_began, MAX(run.began) AS last_began,
       AVG(run.tokens_per_second_per_device) AS mean_tokens_per_second_per_device,
       MAX(run.tokens_per_second_per_device) AS best_tokens_per_second_per_device,
       MAX(run.memory_bytes) AS most_memory_bytes
FROM run
JOIN series ON series.id = run.series_id
WHERE run.is_aside = 0 AND run.purpose IN ('manual', 'nightly')
GROUP BY series.digest, {_LABELS}
"""


def make_tables(engine: Engine, address: StoreAddress, read_only: bool) -> None:
    """Make the tables of a new store, and the columns of figures that an older one lacks, with the figures of its runs.

    Raises UsageError for another version, and for a store that lacks any of these and is opened to read.
    """
    with read_transaction(engine, address) as connection:
        version = _table_version(connection)
        missing_columns = _missing_columns(connection) if version in (SCHEMA_VERSION, FORMER_SCHEMA_VERSION) else []
    if version is None and not read_only:
        with write_transaction(engine, address) as connection:
            version = _table_version(connection)  # another process may have been first
            if version is None:  # all in one transaction; a table of another program with such a name fails
                STORE_VERSION.create(connection)
                METADATA.create_all(connection, checkfirst=False)
                _make_result_view(connection)
                connection.execute(text(_SERIES_VIEW))
                connection.execute(insert(STORE_VERSION).values(version=SCHEMA_VERSION))
                version = SCHEMA_VERSION
    if version is None:
        raise UsageError(f"store {address.text}: has no tables; a run makes them, or `store import RUNS`")
    if version not in (SCHEMA_VERSION, FORMER_SCHEMA_VERSION):
        raise UsageError(
            f"store {address.text}: has the tables of version {version}, expected {SCHEMA_VERSION}. Export it by the "
            "Levelfield that made it (`store export`), and import the export or the run directories into a new store: "
            "`store import FILE --store NEW`"
        )
    if missing_columns and read_only:
        raise UsageError(f"store {address.text}: has no column {missing_columns[0]}; open it for writing: `store info`")
    if missing_columns:  # columns that came after the store was made
        from levelfield.store.new_figures import fill_figures

        with write_transaction(engine, address) as connection:
            present_columns, missing_columns = (
                figure_columns(connection),
                _missing_columns(connection),
            )  # another may have been first
            for name in missing_columns:
                connection.execute(text(f"ALTER TABLE run ADD COLUMN {name} {RESULT_COLUMN_TYPES[name]}"))
            connection.execute(text("DROP VIEW IF EXISTS v_result"))
            if missing_columns:
                fill_figures(connection, present_columns)
            for name in (name for name in FORMER_COLUMNS if name in present_columns):
                connection.execute(text(f"ALTER TABLE run DROP COLUMN {name}"))
            _make_result_view(connection)
            connection.execute(update(STORE_VERSION).values(version=SCHEMA_VERSION))


def figure_columns(connection: Connection) -> list[str]:
    """Return the columns from results that the table of runs has, also former ones, in their order."""
    present = [column["name"] for column in inspect(connection).get_columns(RUN.name)]
    return [name for name in present if name in RESULT_COLUMN_TYPES or name in FORMER_COLUMNS]


def _missing_columns(connection: Connection) -> list[str]:
    if not connection.dialect.has_table(connection, RUN.name):
        return []  # what reads the runs says that they are gone
    present = figure_columns(connection)
    return [name for name in RESULT_COLUMN_TYPES if name not in present]


def _make_result_view(connection: Connection) -> None:
    figures = ", ".join(f"run.{name}" for name in STORED_FIGURES)
    connection.execute(text(_RESULT_VIEW.format(seconds=_BEGAN_SECONDS[connection.dialect.name], figures=figures)))


def _table_version(connection: Connection) -> str | None:
    """Return the version of the tables; None for a database without them."""
    has_table = connection.dialect.has_table
    if has_table(connection, STORE_VERSION.name):
        return connection.execute(select(STORE_VERSION)).scalar() or "unknown"
    return "0.1.0" if has_table(connection, "alembic_version") and has_table(connection, RAW.name) else None
