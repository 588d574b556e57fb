"""Removes runs from a store. A run that a baseline or another event names stays: it is evidence."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from levelfield.store import statements
from levelfield.store.database import Store
from levelfield.store.schema import ASIDE, RUN, SERIES

_BATCH = 500


class Pruned(NamedTuple):
    """Runs that were removed, or would be, and those that stay because an event names them."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]


def prune(
    store: Store,
    keep_days: int | None,
    case: str | None,
    run_id: str | None,
    dry_run: bool,
    now: datetime | None = None,
) -> Pruned:
    """Remove the runs that match all conditions that are given. A run that was put aside goes with all its copies.

    keep_days: only runs that began earlier. dry_run: remove nothing.
    """
    before = None if keep_days is None else _text((now or datetime.now(timezone.utc)) - timedelta(days=keep_days))

    def change(connection: Connection) -> Pruned:
        matching = _matching(connection, before, case, run_id)
        named = {run for event in statements.events(connection, None, None) for run in event.runs}
        found = Pruned(tuple(r for r in matching if r not in named), tuple(r for r in matching if r in named))
        if not dry_run:
            _remove(connection, found.removed)
        return found

    if dry_run:
        return store.read(change)
    found = store.written(change)
    if found.removed:
        store.give_space_back()
    return found


def _matching(connection: Connection, before: str | None, case: str | None, run_id: str | None) -> list[str]:
    query = select(RUN.c.run_id).select_from(RUN.join(SERIES)).order_by(RUN.c.began, RUN.c.run_id)
    query = query if before is None else query.where(RUN.c.began < before)
    query = query if case is None else query.where(SERIES.c.case_name == case)
    query = query if run_id is None else query.where(RUN.c.run_id == run_id)
    return list(connection.execute(query).scalars())


def _remove(connection: Connection, run_ids: tuple[str, ...]) -> None:
    for start in range(0, len(run_ids), _BATCH):
        batch = run_ids[start : start + _BATCH]
        connection.execute(delete(RUN).where(RUN.c.run_id.in_(batch)))
        connection.execute(delete(ASIDE).where(ASIDE.c.run_id.in_(batch)))


def _text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")
