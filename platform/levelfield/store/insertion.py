"""Adds runs to a store within one transaction. A run that is there already changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from levelfield.specs.record import RunRecord
from levelfield.store.compression import inflated, packed_json
from levelfield.store.rows import Digests, documents_of, raw_row, row_digest, run_row, series_row, subject_row
from levelfield.store.schema import ASIDE, CONDITION, NODE, RAW, RUN, SERIES, SUBJECT

REPORTED = "reported"


@dataclass(frozen=True)
class Added:
    """What became of records. conflicts: ids of runs that are there with other content, and are aside now."""

    new: int = 0
    known: int = 0
    conflicts: tuple[str, ...] = ()

    def __add__(self, other: Added) -> Added:
        conflicts = tuple(dict.fromkeys((*self.conflicts, *other.conflicts)))
        return Added(self.new + other.new, self.known + other.known, conflicts)


class RunInsertion:
    """Adds batches of records. It remembers which series, conditions, subjects and nodes the store has."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._samples: dict[int, bytes] = {}
        self._digests = Digests()

    def forget(self) -> None:
        """Forget what the store has: a transaction that failed took its rows back."""
        self._ids.clear()
        self._samples.clear()

    def add(self, connection: Connection, records: Sequence[RunRecord]) -> Added:
        """Add the records in the connection's transaction."""
        # Those with raw files first: nobody's statement of the same run comes before them.
        records = sorted(records, key=lambda record: record.evidence == REPORTED)
        stored = _stored(connection, [record.run_id for record in records])
        fresh, others, conflicts, known = [], [], [], 0
        for record in records:
            content, is_aside, evidence = stored.get(record.run_id, (None, 0, None))
            if content is None:
                fresh.append(record)
                stored[record.run_id] = (record.content, 0, record.evidence)
            elif _shows_more(record, content, evidence) and not is_aside:
                connection.execute(delete(RUN).where(RUN.c.run_id == record.run_id))
                fresh.append(record)
                stored[record.run_id] = (record.content, 0, record.evidence)
            elif content == record.content and not is_aside:
                known += 1
            else:
                conflicts.append(record.run_id)
                others += [record] if content != record.content else []
        self._insert(connection, fresh)
        for record in others:
            _put_aside(connection, record)
        return Added(len(fresh), known, tuple(conflicts))

    def _insert(self, connection: Connection, records: Sequence[RunRecord]) -> None:
        if not records:
            return
        first = connection.execute(select(func.coalesce(func.max(RUN.c.id), 0))).scalar_one() + 1
        runs, raws = [], []
        for number, record in enumerate(records, first):
            places = self._places(connection, record)
            run, raw = run_row(record, number, places), raw_row(record, number, self._samples[places["series"]])
            runs.append({**run, "row_digest": row_digest(run, raw)})
            raws.append(raw)
        connection.execute(insert(RUN), runs)
        connection.execute(insert(RAW), raws)

    def _places(self, connection: Connection, record: RunRecord) -> dict[str, int]:
        """Return the ids of what the record's row refers to. What is not there yet is added."""
        conditions, subject = self._digests.of(record.conditions), self._digests.of(record.subject)
        return {
            "series": self._series(connection, record),
            "condition": self._id(
                connection, CONDITION, conditions, lambda: {"document": record.conditions.model_dump_json()}
            ),
            "subject": self._id(connection, SUBJECT, subject, lambda: subject_row(record.subject, subject)),
            "node": self._id(connection, NODE, record.node, dict),
        }

    def _series(self, connection: Connection, record: RunRecord) -> int:
        """Return the id of the record's series. The documents of its first run are the dictionary of all later ones."""
        digest = self._digests.of(record.series)

        def row() -> dict[str, Any]:
            return series_row(record.series, digest, packed_json(documents_of(record)))

        number = self._id(connection, SERIES, digest, row)
        if number not in self._samples:
            sample = connection.execute(select(SERIES.c.sample).where(SERIES.c.id == number)).scalar_one()
            self._samples[number] = inflated(sample)
        return number

    def _id(self, connection: Connection, table: Table, digest: str, row: Callable[[], dict[str, Any]]) -> int:
        key = (table.name, digest)
        if key not in self._ids:
            found = connection.execute(select(table.c.id).where(table.c.digest == digest)).scalar()
            if found is None:
                added = insert(table).values(**{**row(), "digest": digest}).returning(table.c.id)
                found = connection.execute(added).scalar_one()
            self._ids[key] = found
        return self._ids[key]


def _stored(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[str, int, str]]:
    query = select(RUN.c.run_id, RUN.c.content, RUN.c.is_aside, RUN.c.evidence).where(RUN.c.run_id.in_(run_ids))
    return {run_id: (content, is_aside, evidence) for run_id, content, is_aside, evidence in connection.execute(query)}


def _shows_more(record: RunRecord, content: str, evidence: str | None) -> bool:
    """Return whether a record comes with the raw files of a run whose figures were only stated so far."""
    return content == record.content and evidence == REPORTED and record.evidence != REPORTED


def _put_aside(connection: Connection, record: RunRecord) -> None:
    """Keep the record beside the stored run of the same id, and take that run out of all histories."""
    connection.execute(update(RUN).where(RUN.c.run_id == record.run_id).values(is_aside=1))
    known = select(ASIDE.c.id).where(ASIDE.c.run_id == record.run_id, ASIDE.c.content == record.content)
    if connection.execute(known).scalar() is None:
        document = packed_json(record.model_dump(mode="json"))
        connection.execute(insert(ASIDE).values(run_id=record.run_id, content=record.content, document=document))
