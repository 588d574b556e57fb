"""Questions to a store: its series, their histories, and whole records. Runs that were put aside are in no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from levelfield.errors import UnknownName, UsageError
from levelfield.specs.base import Value
from levelfield.specs.record import OF_TREND, Conditions, Point, RunRecord, Series, Subject, first_future_date
from levelfield.store.compression import inflated
from levelfield.store.rows import document_from, point_from, record_from
from levelfield.store.schema import CONDITION, NODE, RAW, RUN, SERIES, SUBJECT

T = TypeVar("T", bound=Value)
_TABLES = {Series: SERIES, Conditions: CONDITION, Subject: SUBJECT}
_HERE = RUN.c.is_aside == 0
_JOINED = RUN.join(SERIES).join(CONDITION).join(SUBJECT).join(NODE)
_AROUND = {"node": NODE.c.digest, "conditions": CONDITION.c.digest, "subject": SUBJECT.c.digest}
_OF_POINT = [_AROUND[name] if name in _AROUND else RUN.c[name] for name in Point.model_fields]
MOST_POINTS = 5000  # of a series: thirteen years of nights; runs that began at the same second as the oldest are added
BATCH = 200  # records of one query: an export holds no more of them in memory


@dataclass(frozen=True)
class StoredSeries:
    """A series of the store. first, last: when its earliest and its latest run began."""

    digest: str
    series: Series
    runs: int
    first: str
    last: str


def series(connection: Connection, case: str | None) -> list[StoredSeries]:
    """Return the series in the order of their labels."""
    counts = (func.count().label("runs"), func.min(RUN.c.began).label("first"), func.max(RUN.c.began).label("last"))
    counted = select(RUN.c.series_id, *counts).where(_HERE).group_by(RUN.c.series_id).subquery()  # of an index alone
    columns = (SERIES.c.digest, SERIES.c.document, counted.c.runs, counted.c.first, counted.c.last)
    query = select(*columns).join(counted, counted.c.series_id == SERIES.c.id)
    query = query if case is None else query.where(SERIES.c.case_name == case)
    query = query.order_by(SERIES.c.label, SERIES.c.digest)
    return [
        StoredSeries(digest, document_from(Series, document), *rest)
        for digest, document, *rest in connection.execute(query)
    ]


def points(connection: Connection, digests: Sequence[str] | None, since: str | None) -> dict[str, list[Point]]:
    """Return the newest MOST_POINTS points of each series, in the order of time."""
    query = (
        select(SERIES.c.digest, *_OF_POINT)
        .select_from(_JOINED)
        .where(_HERE)
        .order_by(RUN.c.series_id, RUN.c.began, RUN.c.run_id)
    )
    query = query if digests is None else query.where(SERIES.c.digest.in_(digests))
    query = query if since is None else query.where(RUN.c.began >= since)
    if cuts := _cuts(connection):
        newest = (and_(RUN.c.series_id == number, RUN.c.began >= began) for number, began in cuts.items())
        query = query.where(or_(RUN.c.series_id.not_in(cuts), *newest))
    found: dict[str, list[Point]] = {digest: [] for digest in digests or ()}
    for digest, *values in connection.execute(query):
        found.setdefault(digest, []).append(point_from(values))
    return found


def _cuts(connection: Connection) -> dict[int, str]:
    """Return by series with more than MOST_POINTS runs when the first of those began that are read."""
    counted = select(RUN.c.series_id).where(_HERE).group_by(RUN.c.series_id).having(func.count() > MOST_POINTS)
    began = select(RUN.c.began).where(_HERE).order_by(RUN.c.began.desc()).offset(MOST_POINTS - 1).limit(1)
    return {
        number: connection.execute(began.where(RUN.c.series_id == number)).scalar_one()
        for number in connection.execute(counted).scalars().all()
    }


def document(connection: Connection, cls: type[T], digest: str) -> T:
    """Return a series, conditions or subject by its digest. Raises UnknownName."""
    table = _TABLES[cls]
    text = connection.execute(select(table.c.document).where(table.c.digest == digest)).scalar()
    if text is None:
        raise UnknownName(cls.__name__.lower(), digest, [])
    return document_from(cls, text)


def find(connection: Connection, name: str) -> str:
    """Return the id of a run by its id, a unique part of it, or `latest`. Raises UnknownName or UsageError."""
    is_ahead = RUN.c.began >= first_future_date().isoformat()
    newest = select(RUN.c.run_id).where(_HERE).order_by(is_ahead, RUN.c.began.desc(), RUN.c.run_id.desc())
    of_trend = newest.where(RUN.c.purpose.in_(OF_TREND))
    if name == "latest" and (latest := connection.execute(of_trend.limit(1)).scalar()):
        return str(latest)
    if exact := connection.execute(newest.where(RUN.c.run_id == name)).scalar():
        return str(exact)
    matching = connection.execute(newest.where(RUN.c.run_id.contains(name, autoescape=True)).limit(5)).scalars().all()
    if len(matching) == 1:
        return str(matching[0])
    if matching:
        raise UsageError(f"run '{name}': found several runs: {', '.join(matching[:4])}; give more of the id")
    raise UnknownName("run", name, connection.execute(newest.limit(20)).scalars(), hint="`latest` is the newest run.")


def run_ids(connection: Connection, case: str | None = None, since: str | None = None) -> list[str]:
    """Return the ids of runs in the order of time."""
    query = select(RUN.c.run_id).select_from(RUN.join(SERIES)).where(_HERE).order_by(RUN.c.began, RUN.c.run_id)
    query = query if case is None else query.where(SERIES.c.case_name == case)
    query = query if since is None else query.where(RUN.c.began >= since)
    return list(connection.execute(query).scalars())


class RecordReader:
    """Reads whole records. It remembers the series, conditions and subjects that come again."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], Value] = {}
        self._samples: dict[int, bytes] = {}

    def records(self, connection: Connection, run_ids: Sequence[str]) -> list[RunRecord]:
        """Return the records of these ids, in their order. An unknown id is left out."""
        rows = connection.execute(self._query().where(RUN.c.run_id.in_(run_ids))).all()
        found = {row._mapping["run_id"]: self.record(connection, row) for row in rows}
        return [found[run_id] for run_id in run_ids if run_id in found]

    def record(self, connection: Connection, row: Row[Any]) -> RunRecord:
        found = row._mapping
        around = {
            "series": self._value(connection, Series, found["series_id"]),
            "conditions": self._value(connection, Conditions, found["condition_id"]),
            "subject": self._value(connection, Subject, found["subject_id"]),
        }
        return record_from(row, around, self._samples[found["series_id"]])

    def _query(self) -> Select[Any]:
        columns = [column for column in RUN.c if column.name != "node_id"]
        raw = (RAW.c.steps, RAW.c.losses, RAW.c.documents)
        joined = RUN.join(RAW, RAW.c.run_id == RUN.c.id).join(NODE)
        return select(*columns, *raw, NODE.c.digest.label("node")).select_from(joined).where(_HERE)

    def _value(self, connection: Connection, cls: type[Value], number: int) -> Value:
        key = (cls.__name__, number)
        if key not in self._values:
            table = _TABLES[cls]
            row = connection.execute(select(table).where(table.c.id == number)).one()
            self._values[key] = document_from(cls, row.document)
            if cls is Series:
                self._samples[number] = inflated(row.sample)
        return self._values[key]
