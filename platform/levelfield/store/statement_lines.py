"""Events, expectations and findings as documents of their own, so that an export holds the whole store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import JsonValue
from sqlalchemy import Connection

from levelfield.specs.base import Document
from levelfield.specs.record import StoreEvent
from levelfield.store import statements
from levelfield.store.database import Store


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


def statements_of(store: Store) -> Iterator[Statement]:
    """Yield every statement of a store."""
    yield from store.events()
    for night, suite, entry, series in store.read(statements.expectations):
        yield StatedExpectation(night=night, suite=suite, entry=entry, series=series)
    for night, finding in store.read(lambda connection: statements.findings(connection, None)):
        yield StatedFinding(night=night, finding=finding)


def add_statements(store: Store, found: Iterable[Statement]) -> None:
    """Add statements in one transaction. What the store has already changes nothing.

    Raises UsageError for an event whose id belongs to another one.
    """
    store.written(lambda connection: _add(connection, found))


def _add(connection: Connection, found: Iterable[Statement]) -> None:
    stored = statements.findings(connection, None)
    for each in found:
        if isinstance(each, StoreEvent):
            statements.add_event(connection, each)
        elif isinstance(each, StatedExpectation):
            statements.expect(connection, each.night, each.suite, {each.entry: each.series})
        elif (each.night, each.finding) not in stored:
            statements.add_finding(connection, each.night, each.finding)
