"""A run's record as rows of the tables, and back. Runs that were put aside are never read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from levelfield.specs.base import Value
from levelfield.specs.record import Conditions, Point, RunRecord, Series, Subject
from levelfield.specs.run_figures import STORED
from levelfield.store.compression import inflated, packed_json, packed_numbers, unpacked_json, unpacked_numbers
from levelfield.store.schema import CONDITION, NODE, RAW, RUN, SERIES, SUBJECT

HERE = RUN.c.is_aside == 0
DOCUMENTS: dict[type[Value], Table] = {Series: SERIES, Conditions: CONDITION, Subject: SUBJECT}
_WHOLE = (
    select(*(column for column in RUN.c if column.name != "node_id"))
    .add_columns(RAW.c.steps, RAW.c.losses, RAW.c.documents, NODE.c.digest.label("node"))
    .select_from(RUN.join(RAW, RAW.c.run_id == RUN.c.id).join(NODE))
    .where(HERE)
)
_PLAIN = (
    *("run_id", "content", "began", "purpose", "night", "entry", "evidence", "evidence_reason"),
    *("word", "failure", "reason", "verdict", *STORED),
)
_NUMBERS = ("window_first", "window_last", "series_id", "condition_id", "subject_id", "node_id")
_NAMES = tuple(Point.model_fields)
_FIELDS = {*_NAMES}
_OF_SERIES = (
    *("label", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is", "precision", "runtime"),
    *("nodes", "devices", "micro_batch", "accumulation", "recompute"),
)
_MOST_RECENT = 1000  # values that are known by identity


def run_row(record: RunRecord, number: int, places: Mapping[str, int]) -> dict[str, Any]:
    """Return the row of `run`, without its digest. places: the ids of series, condition, subject and node."""
    found: dict[str, Any] = {name: getattr(record, name) for name in _PLAIN}
    first, last = record.window
    own = {"id": number, "is_aside": 0, "window_first": first, "window_last": last}
    return {**found, **own, **{f"{table}_id": place for table, place in places.items()}}


def raw_row(record: RunRecord, number: int, sample: bytes) -> dict[str, Any]:
    """Return the row of `raw`. sample: the documents of the first run of the series."""
    return {
        "run_id": number,
        "steps": packed_numbers(record.step_seconds),
        "losses": packed_numbers(record.losses),
        "documents": packed_json(documents_of(record), sample),
    }


def row_digest(run: Mapping[str, Any], raw: Mapping[str, Any]) -> bytes:
    """Return the digest of both rows of a run, by which `store check` finds one that was changed."""
    values = [run[name] for name in (*_PLAIN, *_NUMBERS)]
    digest = hashlib.blake2b(json.dumps(values).encode(), digest_size=16)
    for name in ("steps", "losses", "documents"):
        digest.update(hashlib.blake2b(raw[name], digest_size=16).digest())
    return digest.digest()


def documents_of(record: RunRecord) -> list[Any]:
    """Return what is stored as JSON: the result, the telemetry, and the traces where there are any."""
    traces = [record.traces.model_dump(mode="json", exclude_defaults=True)] if record.traces else []
    return [record.result, record.telemetry, *traces]


def series_row(series: Series, digest: str, sample: bytes) -> dict[str, Any]:
    named = {name: getattr(series, name) for name in _OF_SERIES}
    own = {"digest": digest, "case_name": series.case, "layout": str(series.layout), "sample": sample}
    return {**named, **own, "document": series.model_dump_json()}


def subject_row(subject: Subject, digest: str) -> dict[str, Any]:
    versions = {"framework_version": subject.framework_version, "platform_version": subject.platform_version}
    own = {"digest": digest, "commit_hash": subject.commit, "document": subject.model_dump_json()}
    return {**versions, **own}


def point_from(values: Iterable[Any]) -> Point:
    """Return the point of values in the order of its fields, from columns of the same types.

    They are not validated again: a history has a hundred thousand of them.
    """
    return Point.model_construct(_FIELDS, **dict(zip(_NAMES, values, strict=True)))


class Digests:
    """Digests of values that come again with most runs: each is computed once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._recent: dict[int, tuple[Value, str]] = {}

    def of(self, value: Value) -> str:
        recent = self._recent.get(id(value))
        return recent[1] if recent and recent[0] is value else self._remembered(value)

    def _remembered(self, value: Value) -> str:
        key = value.model_dump_json()
        if key not in self._known:
            self._known[key] = value.fingerprint()
        if len(self._recent) >= _MOST_RECENT:
            self._recent.clear()
        self._recent[id(value)] = value, self._known[key]
        return self._known[key]


class RecordReader:
    """Reads whole records. It remembers the series, conditions and subjects that come again."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], Value] = {}
        self._samples: dict[int, bytes] = {}

    def records(self, connection: Connection, run_ids: Sequence[str]) -> list[RunRecord]:
        """Return the records of these ids, in their order. An unknown id is left out."""
        rows = connection.execute(_WHOLE.where(RUN.c.run_id.in_(run_ids))).all()
        found = {row._mapping["run_id"]: self.record(connection, row) for row in rows}
        return [found[run_id] for run_id in run_ids if run_id in found]

    def record(self, connection: Connection, row: Row[Any]) -> RunRecord:
        """Return the record of a row of `run` joined with `raw`.

        The result was read from JSON, so it is JSON: it is not validated value by value, which takes longest.
        """
        found = row._mapping
        around = {
            "series": self._value(connection, Series, found["series_id"]),
            "conditions": self._value(connection, Conditions, found["condition_id"]),
            "subject": self._value(connection, Subject, found["subject_id"]),
        }
        result, telemetry, *traces = unpacked_json(found["documents"], self._samples[found["series_id"]])
        record = RunRecord(
            **{name: found[name] for name in _PLAIN},
            **around,
            node=found["node"],
            window=(found["window_first"], found["window_last"]),
            step_seconds=unpacked_numbers(found["steps"]),
            losses=unpacked_numbers(found["losses"]),
            telemetry=telemetry,
            traces=traces[0] if traces else None,
            result={} if isinstance(result, dict) else result,
        )
        return record.model_copy(update={"result": result})

    def _value(self, connection: Connection, cls: type[Value], number: int) -> Value:
        key = (cls.__name__, number)
        if key not in self._values:
            table = DOCUMENTS[cls]
            row = connection.execute(select(table).where(table.c.id == number)).one()
            self._values[key] = cls.model_validate_json(row.document)
            if cls is Series:
                self._samples[number] = inflated(row.sample)
        return self._values[key]
