"""The store of results: what the rest of the platform calls. Every method is one transaction, or one for each batch.

Many processes may use one store at a time. What `add` has returned is stored, whatever happens to the process then.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, and_, func, or_, select

from levelfield.errors import DocumentError, LevelfieldError, UnknownName, UsageError
from levelfield.specs.base import Value
from levelfield.specs.record import (
    BRANCH_MARK,
    TREND_PURPOSES,
    Conditions,
    Point,
    RunRecord,
    Series,
    StoreEvent,
    Subject,
    branch_of,
    first_future_date,
    nights_in_order,
)
from levelfield.specs.short_names import refuse_empty_name
from levelfield.store import statements
from levelfield.store.address import StoreAddress, parse_address
from levelfield.store.connections import explaining_errors, make_engine, read_transaction, write_transaction
from levelfield.store.rows import DOCUMENTS, NOT_ASIDE, AddedRuns, RecordReader, RunInsertion
from levelfield.store.schema import CONDITION, EXPECTATION, NODE, RUN, SERIES, SUBJECT, make_tables

_MAX_FAULTS_SHOWN = 3  # damaged rows in a message
# Records of one transaction: others wait for a fifth of a second, and an export holds no more of them in memory.
RECORDS_PER_BATCH = 200
_JOINED = RUN.join(SERIES).join(CONDITION).join(SUBJECT).join(NODE)
_DIGEST_COLUMNS = {"node": NODE.c.digest, "conditions": CONDITION.c.digest, "subject": SUBJECT.c.digest}
_POINT_COLUMNS = [_DIGEST_COLUMNS[name] if name in _DIGEST_COLUMNS else RUN.c[name] for name in Point.model_fields]
MAX_POINTS = 5000  # of a series: thirteen years of nights; runs that began at the same second as the oldest are added
T = TypeVar("T")
V = TypeVar("V", bound=Value)


@dataclass(frozen=True)
class StoredSeries:
    """A series of the store."""

    digest: str
    series: Series
    run_count: int
    first_began: str  # when its earliest run began
    last_began: str  # when its latest run began


class Store(AbstractContextManager["Store"]):
    """An open store. Use it in a `with` block."""

    def __init__(self, engine: Engine, address: StoreAddress) -> None:
        self.engine, self.address = engine, address
        self._insertion = RunInsertion()

    @classmethod
    def open(cls, url: str | None = None, read_only: bool = False) -> Store:
        """Return the store of a URL or path, by default of default_url. The tables of a new one are made.

        Raises UsageError, in words, for a store that is missing, damaged, locked, of another version or read-only.
        """
        address = parse_address(url)
        store = cls(make_engine(address, read_only), address)
        try:
            with explaining_errors(address):
                make_tables(store.engine, address, read_only)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self.engine.dispose()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception) and not isinstance(error, (LevelfieldError, OSError)):
                from levelfield.store.upkeep import find_faults

                # Where a row is not what was written, any code that reads it may fail in any way.
                if not os.environ.get("LEVELFIELD_DEBUG") and (damage := find_faults(self)):
                    listing = "; ".join(damage[:_MAX_FAULTS_SHOWN])
                    raise DocumentError(f"store {self.address.text}: {listing}. `store check` lists every damaged row")
        finally:
            self.close()

    def add(self, records: Iterable[RunRecord]) -> AddedRuns:
        """Add records in batches, each in a transaction of its own. A run that is stored already changes nothing."""
        new_count, existing_count, conflicting_runs, remaining = 0, 0, dict[str, None](), iter(records)
        with infrequent_gc():
            while batch := list(islice(remaining, RECORDS_PER_BATCH)):
                try:
                    with write_transaction(self.engine, self.address) as connection:
                        added = self._insertion.add(connection, batch)
                except BaseException:
                    self._insertion = RunInsertion()  # its rows were taken back
                    raise
                new_count, existing_count = new_count + added.new_count, existing_count + added.existing_count
                conflicting_runs |= dict.fromkeys(added.conflicting_runs)
        return AddedRuns(new_count, existing_count, tuple(conflicting_runs))

    def series(self, case: str | None = None) -> list[StoredSeries]:
        """Return the series with their numbers of runs, in the order of their labels."""
        aggregates = (
            func.count().label("runs"),
            func.min(RUN.c.began).label("first"),
            func.max(RUN.c.began).label("last"),
        )
        # this query reads an index alone
        run_counts = select(RUN.c.series_id, *aggregates).where(NOT_ASIDE).group_by(RUN.c.series_id).subquery()
        columns = (SERIES.c.digest, SERIES.c.document, run_counts.c.runs, run_counts.c.first, run_counts.c.last)
        query = select(*columns).join(run_counts, run_counts.c.series_id == SERIES.c.id)
        query = query if case is None else query.where(SERIES.c.case_name == case)
        with read_transaction(self.engine, self.address) as connection:
            rows = connection.execute(query.order_by(SERIES.c.label, SERIES.c.digest))
            return [StoredSeries(digest, Series.model_validate_json(text), *rest) for digest, text, *rest in rows]

    def points(self, digests: Sequence[str] | None = None, since: str | None = None) -> dict[str, list[Point]]:
        """Return the newest 5,000 runs of each series in the order of time; older ones are read by their ids alone.

        digests: of the series; by default of all. since: the earliest time, or the beginning of its text.
        """
        query = (
            select(SERIES.c.digest, *_POINT_COLUMNS)
            .select_from(_JOINED)
            .where(NOT_ASIDE)
            .order_by(RUN.c.series_id, RUN.c.began, RUN.c.run_id)
        )
        query = query if digests is None else query.where(SERIES.c.digest.in_(digests))
        query = query if since is None else query.where(RUN.c.began >= since)
        points: dict[str, list[Point]] = {digest: [] for digest in digests or ()}
        field_names = {*Point.model_fields}
        with read_transaction(self.engine, self.address) as connection:
            # by id of a series with more than MAX_POINTS runs: when the oldest run that is read began
            long_series = (
                select(RUN.c.series_id).where(NOT_ASIDE).group_by(RUN.c.series_id).having(func.count() > MAX_POINTS)
            )
            oldest_began = (
                select(RUN.c.began).where(NOT_ASIDE).order_by(RUN.c.began.desc()).offset(MAX_POINTS - 1).limit(1)
            )
            first_begins = {
                series_id: connection.execute(oldest_began.where(RUN.c.series_id == series_id)).scalar_one()
                for series_id in connection.execute(long_series).scalars().all()
            }
            if first_begins:
                newest = (
                    and_(RUN.c.series_id == series_id, RUN.c.began >= first_begin)
                    for series_id, first_begin in first_begins.items()
                )
                query = query.where(or_(RUN.c.series_id.not_in(first_begins), *newest))
            for digest, *values in connection.execute(query):
                # not validated again: a history has a hundred thousand of them, from columns of the same types
                fields = dict(zip(Point.model_fields, values, strict=True))
                points.setdefault(digest, []).append(Point.model_construct(field_names, **fields))
        return points

    def run_ids(self, case: str | None = None, since: str | None = None, trend_only: bool = False) -> list[str]:
        """Return the ids of runs in the order of time. trend_only: without runs of pairs."""
        query = select(RUN.c.run_id).select_from(RUN.join(SERIES)).where(NOT_ASIDE).order_by(RUN.c.began, RUN.c.run_id)
        query = query if case is None else query.where(SERIES.c.case_name == case)
        query = query if since is None else query.where(RUN.c.began >= since)
        query = query.where(RUN.c.purpose.in_(TREND_PURPOSES)) if trend_only else query
        with read_transaction(self.engine, self.address) as connection:
            return list(connection.execute(query).scalars())

    def record(self, run_id: str) -> RunRecord:
        """Return a whole record. Raises UnknownName."""
        for record in self.records([run_id]):
            return record
        raise UnknownName("run", run_id, self.run_ids()[-20:])

    def records(self, run_ids: Sequence[str] | None = None) -> Iterator[RunRecord]:
        """Yield whole records of these ids, in their order; by default of all runs, in the order of time.

        An unknown id is left out.
        """
        ids, reader = iter(self.run_ids() if run_ids is None else run_ids), RecordReader()
        while batch := list(islice(ids, RECORDS_PER_BATCH)):
            yield from self.read(lambda connection, ids=batch: reader.records(connection, ids))  # type: ignore[misc]

    def find(self, name: str) -> str:
        """Return the id of a run by its id, a unique part of it, or `latest`. Raises UnknownName or UsageError."""
        refuse_empty_name("run", name)
        is_in_future = RUN.c.began >= first_future_date().isoformat()
        newest = select(RUN.c.run_id).where(NOT_ASIDE).order_by(is_in_future, RUN.c.began.desc(), RUN.c.run_id.desc())
        trend = newest.where(RUN.c.purpose.in_(TREND_PURPOSES))
        partial = newest.where(RUN.c.run_id.contains(name, autoescape=True)).limit(5)
        with read_transaction(self.engine, self.address) as connection:
            if name == "latest" and (latest := connection.execute(trend.limit(1)).scalar()):
                return str(latest)
            if exact := connection.execute(newest.where(RUN.c.run_id == name)).scalar():
                return str(exact)
            matching = connection.execute(partial).scalars().all()
            if len(matching) == 1:
                return str(matching[0])
            if matching:
                raise UsageError(f"run '{name}': found several runs: {', '.join(matching[:4])}; give more of the id")
            newest_ids = connection.execute(newest.limit(20)).scalars().all()
        raise UnknownName("run", name, newest_ids, hint="`latest` is the newest run.")

    def conditions(self, digest: str) -> Conditions:
        return self._document(Conditions, digest)

    def subject(self, digest: str) -> Subject:
        return self._document(Subject, digest)

    def _document(self, cls: type[V], digest: str) -> V:
        """Return conditions or a subject. Raises UnknownName."""
        table = DOCUMENTS[cls]
        with read_transaction(self.engine, self.address) as connection:
            text = connection.execute(select(table.c.document).where(table.c.digest == digest)).scalar()
        if text is None:
            raise UnknownName(cls.__name__.lower(), digest, [])
        return cls.model_validate_json(text)

    def add_event(self, event: StoreEvent) -> None:
        """Add an event. Raises UsageError where another one has its id."""
        self.write(lambda connection: statements.add_event(connection, event))

    def events(self, series: str | None = None) -> list[StoreEvent]:
        """Return the events, by default all, in the order of time."""
        return self.read(lambda connection: statements.events(connection, series))

    def add_expected_entries(self, night: str, suite: str, entries: Mapping[str, str | None]) -> None:
        """Store which entries a night is to run: by entry the digest of its series, null where it is not known yet."""
        self.write(lambda connection: statements.add_expected_entries(connection, night, suite, entries))

    def expected_entries(self, night: str) -> dict[str, str | None]:
        """Return the series of each expected entry by `suite/entry`, which is how a record names its entry."""
        columns = (EXPECTATION.c.suite, EXPECTATION.c.entry, EXPECTATION.c.series)
        query = select(*columns).where(EXPECTATION.c.night == night).order_by(*columns[:2])
        with read_transaction(self.engine, self.address) as connection:
            return {f"{suite}/{entry}": series for suite, entry, series in connection.execute(query)}

    def nights(self, suite: str | None = None, include_branches: bool = False) -> list[str]:
        """Return the nights of runs and of expectations, in the order of `nights_in_order`.

        suite: only those of this suite. include_branches: also those of branches.
        """
        run_nights = select(RUN.c.night).where(RUN.c.night.is_not(None)).distinct()
        expected_nights = select(EXPECTATION.c.night).distinct()
        if suite is not None:
            run_nights = run_nights.where(RUN.c.entry.startswith(f"{suite}/", autoescape=True))
            expected_nights = expected_nights.where(EXPECTATION.c.suite == suite)
        with read_transaction(self.engine, self.address) as connection:
            nights = {*connection.execute(run_nights).scalars(), *connection.execute(expected_nights).scalars()}
        return nights_in_order(night for night in nights if include_branches or branch_of(night) is None)

    def newest_run_night(self) -> str | None:
        """Return the night of the default branch with the latest name that has runs; None without any."""
        query = select(func.max(RUN.c.night)).where(RUN.c.night.not_like(f"%{BRANCH_MARK}%"))
        with read_transaction(self.engine, self.address) as connection:
            return connection.execute(query).scalar()

    def add_finding(self, night: str, finding: Mapping[str, Any]) -> None:
        self.write(lambda connection: statements.add_finding(connection, night, finding))

    def findings(self, night: str | None = None) -> list[dict[str, Any]]:
        """Return the findings in the order in which they were added."""
        return [finding for _, finding in self.read(lambda connection: statements.findings(connection, night))]

    def changed_findings(self, since: str) -> list[dict[str, Any]]:
        """Return the findings from the night `since` on, without repeated `no change`, in the order of the nights.

        Nights of branches are left out.
        """
        return [finding for _, finding in self.read(lambda connection: statements.changed_findings(connection, since))]

    def read(self, query: Callable[[Connection], T]) -> T:
        """Return what a query function returns. It sees one state of the store."""
        with read_transaction(self.engine, self.address) as connection:
            return query(connection)

    def write(self, change: Callable[[Connection], T]) -> T:
        """Make a change in a transaction of its own and return what it returns."""
        with write_transaction(self.engine, self.address) as connection:
            return change(connection)


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Let Python search for cycles seldom. Among records the search took a sixth of the time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
