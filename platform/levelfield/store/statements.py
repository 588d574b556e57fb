"""What people and nightlies stated: events, the expected entries of a night, and the findings of a gate.

Events and findings are never changed. An expected entry may get its series later. Each is also a document of its own,
so that an export holds the whole store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue
from sqlalchemy import Connection, and_, func, insert, not_, select, update

from levelfield.errors import UsageError
from levelfield.specs.base import Document
from levelfield.specs.record import BRANCH_MARK, StoreEvent
from levelfield.store.schema import EVENT, EXPECTATION, FINDING

if TYPE_CHECKING:
    from levelfield.store.database import Store


def add_event(connection: Connection, event: StoreEvent) -> None:
    """Add an event. Raises UsageError where another one has its id; the same one again changes nothing."""
    stored = connection.execute(select(EVENT.c.document).where(EVENT.c.id == event.id)).scalar()
    if stored is not None and StoreEvent.model_validate_json(stored) != event:
        raise UsageError(f"event '{event.id}': found another event of this id; events are never changed, add a new one")
    if stored is None:
        columns = ("id", "kind", "series", "at", "who", "why", "until")
        row = {name: getattr(event, name) for name in columns}
        connection.execute(insert(EVENT).values(**row, document=event.model_dump_json()))


def events(connection: Connection, series: str | None) -> list[StoreEvent]:
    query = select(EVENT.c.document).order_by(EVENT.c.at, EVENT.c.id)
    query = query if series is None else query.where(EVENT.c.series == series)
    return [StoreEvent.model_validate_json(text) for text in connection.execute(query).scalars()]


def add_expected_entries(connection: Connection, night: str, suite: str, entries: Mapping[str, str | None]) -> None:
    """Add the entries that the night does not have yet. A stored entry gets its series where it is known now."""
    condition = (EXPECTATION.c.night == night) & (EXPECTATION.c.suite == suite)
    stored = set(connection.execute(select(EXPECTATION.c.entry).where(condition)).scalars())
    added = [
        {"night": night, "suite": suite, "entry": entry, "series": series}
        for entry, series in entries.items()
        if entry not in stored
    ]
    if added:
        connection.execute(insert(EXPECTATION), added)
    for entry in stored & {entry for entry, series in entries.items() if series is not None}:
        change = update(EXPECTATION).where(condition, EXPECTATION.c.entry == entry).values(series=entries[entry])
        connection.execute(change)


def add_finding(connection: Connection, night: str, finding: Mapping[str, Any]) -> None:
    document = json.dumps(finding, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    connection.execute(insert(FINDING).values(night=night, document=document))


def findings(connection: Connection, night: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the findings with their nights, in the order in which they were added."""
    query = select(FINDING.c.night, FINDING.c.document).order_by(FINDING.c.id)
    query = query if night is None else query.where(FINDING.c.night == night)
    return [(night, json.loads(text)) for night, text in connection.execute(query)]


def changed_findings(connection: Connection, since: str) -> list[tuple[str, dict[str, Any]]]:
    """Return findings of the default branch from the night `since` on, in the order of nights and of their making.

    A plain `no change`, without pairs, is left out where the finding before it on the same subject is plain, too.
    """
    position_of = func.strpos if connection.dialect.name == "postgresql" else func.instr
    # add_finding wrote the texts: what is before the word names the series and the figure
    subject = func.substr(FINDING.c.document, 1, position_of(FINDING.c.document, '"word":'))
    is_plain = and_(
        position_of(FINDING.c.document, '"word":"no change"') > 0, position_of(FINDING.c.document, '"pairs":0,') > 0
    )
    was_plain = func.lag(is_plain).over(partition_by=subject, order_by=(FINDING.c.night, FINDING.c.id))
    marks = select(FINDING.c.id, is_plain.label("is_plain"), was_plain.label("was_plain"))
    marked = marks.where(FINDING.c.night >= since, FINDING.c.night.not_like(f"%{BRANCH_MARK}%")).subquery()
    changed = select(marked.c.id).where(
        not_(and_(marked.c.is_plain, func.coalesce(marked.c.was_plain, marked.c.is_plain)))
    )
    query = select(FINDING.c.night, FINDING.c.document).where(FINDING.c.id.in_(changed))
    rows = connection.execute(query.order_by(FINDING.c.night, FINDING.c.id))
    return [(night, json.loads(text)) for night, text in rows]


class StatedExpectation(Document):
    """An entry that a night is to run. series: its digest, null where it was not known."""

    KIND: ClassVar[str] = "expectation"

    night: str
    suite: str
    entry: str
    series: str | None


class StatedFinding(Document):
    """What a gate found in a night."""

    KIND: ClassVar[str] = "finding"

    night: str
    finding: dict[str, JsonValue]


Statement = StoreEvent | StatedExpectation | StatedFinding


def stored_statements(store: Store) -> Iterator[Statement]:
    """Yield every statement of a store."""
    yield from store.events()
    query = select(EXPECTATION).order_by(EXPECTATION.c.night, EXPECTATION.c.suite, EXPECTATION.c.entry)
    for row in store.read(lambda connection: connection.execute(query).all()):
        yield StatedExpectation(night=row.night, suite=row.suite, entry=row.entry, series=row.series)
    for night, finding in store.read(lambda connection: findings(connection, None)):
        yield StatedFinding(night=night, finding=finding)


def add_statements(store: Store, statements: Iterable[Statement]) -> None:
    """Add statements in one transaction. What the store has already changes nothing.

    Raises UsageError for an event whose id belongs to another one.
    """
    store.write(lambda connection: _add_missing(connection, statements))


def _add_missing(connection: Connection, statements: Iterable[Statement]) -> None:
    stored = {(night, json.dumps(finding, sort_keys=True)) for night, finding in findings(connection, None)}
    for statement in statements:
        if isinstance(statement, StoreEvent):
            add_event(connection, statement)
        elif isinstance(statement, StatedExpectation):
            add_expected_entries(connection, statement.night, statement.suite, {statement.entry: statement.series})
        elif (statement.night, json.dumps(statement.finding, sort_keys=True)) not in stored:
            add_finding(connection, statement.night, statement.finding)
