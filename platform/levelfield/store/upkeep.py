"""Keeps a store whole and small: checks it, measures its size, and removes runs.

The check is the database's own, and compares every row with its digest. A run that a baseline or another event names
is never removed: it is evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, text
from sqlalchemy.exc import NoResultFound, StatementError

from levelfield.specs.record import StoreEvent
from levelfield.store import statements
from levelfield.store.connections import explaining_errors
from levelfield.store.database import RECORDS_PER_BATCH, Store
from levelfield.store.rows import DOCUMENTS, RecordReader, row_digest
from levelfield.store.schema import ASIDE, EVENT, EXPECTATION, FINDING, METADATA, RAW, RUN, SERIES

_CHANGED_ROW = "run {}: its row was changed or is damaged; prune it, and import its run directory again"
# Reading a damaged value raises one of these. SQLAlchemy wraps errors of its own conversions.
_DAMAGE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StatementError, NoResultFound)
_MAX_FAULTS = 20  # faults that are listed


def row_counts(store: Store) -> dict[str, int]:
    """Return the number of rows of each table."""
    queries = {table.name: select(func.count()).select_from(table) for table in METADATA.sorted_tables}
    return store.read(lambda connection: {n: connection.execute(query).scalar_one() for n, query in queries.items()})


def size_bytes(store: Store) -> int:
    """Return the bytes of the database on disk, without SQLite's log."""
    queries = {
        "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
        "postgresql": "SELECT pg_database_size(current_database())",
    }
    return store.read(lambda connection: int(connection.execute(text(queries[store.address.kind])).scalar_one()))


def find_faults(store: Store, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Return a sentence for each fault, at most _MAX_FAULTS. progress: takes the runs done, and their total."""
    sentences: list[str] = []
    for read in (_database_faults, _document_faults, _statement_faults, _row_faults):
        sentences += store.read(read) if len(sentences) < _MAX_FAULTS else []
    run_ids = store.run_ids()
    for start in range(0, len(run_ids), RECORDS_PER_BATCH):
        batch = run_ids[start : start + RECORDS_PER_BATCH]
        sentences += store.read(lambda connection, ids=batch: _changed_rows(connection, ids))  # type: ignore[misc]
        if len(sentences) >= _MAX_FAULTS:
            break
        progress(start + len(batch), len(run_ids))
    return (
        sentences
        if len(sentences) < _MAX_FAULTS
        else [*sentences[:_MAX_FAULTS], "and possibly more: these are the first"]
    )


def _database_faults(connection: Connection) -> list[str]:
    if connection.engine.dialect.name != "sqlite":
        return []  # PostgreSQL checks keys at every write, and pages by its own checksums
    lines = connection.execute(text("PRAGMA integrity_check(20)")).scalars().all()
    keys = connection.execute(text("PRAGMA foreign_key_check")).all()
    return [
        *(f"the database says: {' '.join(str(line).split())}" for line in lines if line != "ok"),
        *(f"table {row[0]}, row {row[1]}: refers to a missing row of {row[2]}" for row in keys),
    ]


def _document_faults(connection: Connection) -> list[str]:
    sentences = []
    for cls, table in DOCUMENTS.items():
        for digest, document in connection.execute(select(table.c.digest, table.c.document)):
            try:
                is_intact = cls.model_validate_json(document).fingerprint() == digest
            except _DAMAGE_ERRORS:
                is_intact = False
            if not is_intact:
                sentences.append(f"table {table.name}: the row {digest} is not what its digest says")
    return sentences


def _statement_faults(connection: Connection) -> list[str]:
    """Return the events, expectations and findings that cannot be read. They have no digests."""
    sentences = []
    for table in (EVENT, EXPECTATION, FINDING):
        for row in connection.execute(select(table)):
            values = dict(row._mapping)
            try:
                if table is EVENT:
                    event = StoreEvent.model_validate_json(values["document"])
                    is_intact = all(values[name] == getattr(event, name) for name in values.keys() - {"document"})
                elif table is FINDING:
                    is_intact = isinstance(values["night"], str) and isinstance(json.loads(values["document"]), dict)
                else:
                    texts = [value for name, value in values.items() if name != "series" or value is not None]
                    is_intact = all(isinstance(value, str) for value in texts)
            except _DAMAGE_ERRORS:
                is_intact = False
            if not is_intact:
                first_values = ", ".join(f"{name} {value!r:.40}" for name, value in list(values.items())[:2])
                sentences.append(f"table {table.name}: the row with {first_values} is damaged")
    return sentences


def _row_faults(connection: Connection) -> list[str]:
    without_raw = select(RUN.c.run_id).where(~select(RAW.c.run_id).where(RAW.c.run_id == RUN.c.id).exists())
    aside = select(ASIDE.c.run_id).distinct()
    return [
        *(
            f"run {run_id}: its steps and its result are missing"
            for run_id in connection.execute(without_raw).scalars()
        ),
        *(
            f"run {run_id}: was imported with different contents; `store prune --run {run_id}` removes all of them"
            for run_id in connection.execute(aside).scalars()
        ),
    ]


def _changed_rows(connection: Connection, run_ids: list[str]) -> list[str]:
    """Return a sentence for each run whose row is not what its digest says. After an error they are read one by one."""
    joined = select(RUN, RAW.c.steps, RAW.c.losses, RAW.c.documents).join(RAW, RAW.c.run_id == RUN.c.id)
    try:
        rows = [dict(row._mapping) for row in connection.execute(joined.where(RUN.c.run_id.in_(run_ids)))]
        changed = [row["run_id"] for row in rows if row_digest(row, row) != bytes(row["row_digest"])]
        unreadable = _unreadable_runs(connection, [row["run_id"] for row in rows if row["run_id"] not in changed])
        return [_CHANGED_ROW.format(run_id) for run_id in (*changed, *unreadable)]
    except _DAMAGE_ERRORS:  # of a value of another type than its column's
        if len(run_ids) == 1:
            return [_CHANGED_ROW.format(*run_ids)]
        return [fault for run in run_ids for fault in _changed_rows(connection, [run])]


def _unreadable_runs(connection: Connection, run_ids: list[str]) -> list[str]:
    """Return the runs that cannot be read back. After an error they are read one by one."""
    try:
        RecordReader().records(connection, run_ids)
    except _DAMAGE_ERRORS:  # of damaged bytes, or of a value that no record may have
        return run_ids if len(run_ids) == 1 else [bad for run in run_ids for bad in _unreadable_runs(connection, [run])]
    return []


class PruneResult(NamedTuple):
    """Runs that were removed, or would be, and those that stay because an event names them."""

    removed: tuple[str, ...]
    remaining: tuple[str, ...]


def prune(
    store: Store,
    keep_days: int | None,
    case: str | None,
    run_id: str | None,
    dry_run: bool,
    now: datetime | None = None,
) -> PruneResult:
    """Remove the runs that match all given conditions. A run that was put aside is removed with all its copies.

    keep_days: only runs that began earlier. dry_run: remove nothing.
    """
    latest_begin = None
    if keep_days is not None:
        oldest_time = (now or datetime.now(timezone.utc)) - timedelta(days=keep_days)
        latest_begin = oldest_time.astimezone(timezone.utc).isoformat(timespec="seconds")

    def change(connection: Connection) -> PruneResult:
        query = select(RUN.c.run_id).select_from(RUN.join(SERIES)).order_by(RUN.c.began, RUN.c.run_id)
        query = query if latest_begin is None else query.where(RUN.c.began < latest_begin)
        query = query if case is None else query.where(SERIES.c.case_name == case)
        query = query if run_id is None else query.where(RUN.c.run_id == run_id)
        matching = connection.execute(query).scalars().all()
        evidence = {run for event in statements.events(connection, None) for run in event.runs}
        pruned = PruneResult(
            tuple(r for r in matching if r not in evidence), tuple(r for r in matching if r in evidence)
        )
        for start in range(0, 0 if dry_run else len(pruned.removed), RECORDS_PER_BATCH):
            batch = pruned.removed[start : start + RECORDS_PER_BATCH]
            connection.execute(delete(RUN).where(RUN.c.run_id.in_(batch)))
            connection.execute(delete(ASIDE).where(ASIDE.c.run_id.in_(batch)))
        return pruned

    if dry_run:
        return store.read(change)
    pruned = store.write(change)
    if pruned.removed and store.address.kind == "sqlite":  # PostgreSQL gives the space of removed rows back by itself
        with explaining_errors(store.address), closing(store.engine.raw_connection()) as connection:
            connection.cursor().execute("VACUUM")  # in no transaction
    return pruned
