"""A run's record as rows of the tables, and back. A run that is there already changes nothing.

Runs that were put aside are never read back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, func, insert, select, update

from levelfield.measure.other_use import use_beyond_limits
from levelfield.specs.base import Value
from levelfield.specs.record import Conditions, RunRecord, Series, Subject
from levelfield.specs.result import OtherUse
from levelfield.specs.run_figures import STORED
from levelfield.store.compression import inflated, packed_json, packed_numbers, unpacked_json, unpacked_numbers
from levelfield.store.schema import ASIDE, CONDITION, NODE, RAW, RUN, SERIES, SUBJECT

HERE = RUN.c.is_aside == 0
DOCUMENTS: dict[type[Value], Table] = {Series: SERIES, Conditions: CONDITION, Subject: SUBJECT}
_WHOLE = (
    select(*(column for column in RUN.c if column.name != "node_id"))
    .add_columns(RAW.c.steps, RAW.c.losses, RAW.c.documents, NODE.c.digest.label("node"))
    .select_from(RUN.join(RAW, RAW.c.run_id == RUN.c.id).join(NODE))
    .where(HERE)
)
PLAIN = (
    *("run_id", "content", "began", "purpose", "night", "entry", "evidence", "evidence_reason"),
    *("word", "failure", "reason", "verdict", *STORED),
)
_NUMBERS = ("window_first", "window_last", "series_id", "condition_id", "subject_id", "node_id")
_OF_SERIES = (
    *("label", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is", "precision", "runtime"),
    *("nodes", "devices", "micro_batch", "accumulation", "recompute"),
)
REPORTED = "reported"


def raw_row(record: RunRecord, number: int, sample: bytes) -> dict[str, Any]:
    """Return the row of `raw`. sample: the documents of the first run of the series."""
    return {
        "run_id": number,
        "steps": packed_numbers(record.step_seconds),
        "losses": packed_numbers(record.losses),
        "documents": packed_json(documents_of(record), sample),
    }


def row_digest(run: Mapping[str, Any], raw: Mapping[str, Any], plain: Sequence[str] = PLAIN) -> bytes:
    """Return the digest of both rows of a run, by which `store check` finds one that was changed.

    A null counts as no value. plain: the columns of texts and figures, in their order.
    """
    values = {name: run[name] for name in (*plain, *_NUMBERS, "disturbance") if run[name] is not None}
    digest = hashlib.blake2b(json.dumps(values).encode(), digest_size=16)
    for name in ("steps", "losses", "documents"):
        digest.update(hashlib.blake2b(raw[name], digest_size=16).digest())
    return digest.digest()


def documents_of(record: RunRecord) -> list[Any]:
    """Return what is stored as JSON: the result, the telemetry, and the traces where there are any."""
    traces = [record.traces.model_dump(mode="json", exclude_defaults=True)] if record.traces else []
    return [record.stored_result.content, record.telemetry, *traces]


class Digests:
    """Digests of values that come again with most runs: each is computed once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, value: Value) -> str:
        key = value.model_dump_json()
        if key not in self._known:
            self._known[key] = value.fingerprint()
        return self._known[key]


@dataclass(frozen=True)
class Added:
    """What became of records."""

    new: int = 0
    existing: int = 0
    conflicts: tuple[str, ...] = ()  # ids of runs that are there with other content, and are aside now


class RunInsertion:
    """Adds batches of records. It remembers which series, conditions, subjects and nodes the store has."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._samples: dict[int, bytes] = {}
        self._digests = Digests()

    def add(self, connection: Connection, records: Sequence[RunRecord]) -> Added:
        """Add the records in the connection's transaction."""
        # Those with raw files first: nobody's statement of the same run comes before them.
        records = sorted(records, key=lambda record: record.evidence == REPORTED)
        run_ids = [record.run_id for record in records]
        query = select(RUN.c.run_id, RUN.c.content, RUN.c.is_aside, RUN.c.evidence).where(RUN.c.run_id.in_(run_ids))
        stored = {run_id: rest for run_id, *rest in connection.execute(query)}
        fresh, others, conflicts, duplicates = [], [], [], 0
        for record in records:
            content, is_aside, evidence = stored.get(record.run_id, (None, 0, None))
            is_same = content == record.content and not is_aside
            # a record may come with the raw files of a run whose figures were only stated so far
            shows_more = is_same and evidence == REPORTED and record.evidence != REPORTED
            if content is None or shows_more:
                if shows_more:
                    connection.execute(delete(RUN).where(RUN.c.run_id == record.run_id))
                fresh.append(record)
                stored[record.run_id] = [record.content, 0, record.evidence]
            elif is_same:
                duplicates += 1
            else:
                conflicts.append(record.run_id)
                others += [record] if content != record.content else []
        self._insert(connection, fresh)
        for record in others:  # beside the stored run of the same id, which is then in no history
            connection.execute(update(RUN).where(RUN.c.run_id == record.run_id).values(is_aside=1))
            same = select(ASIDE.c.id).where(ASIDE.c.run_id == record.run_id, ASIDE.c.content == record.content)
            if connection.execute(same).scalar() is None:
                aside = {"run_id": record.run_id, "content": record.content}
                document = packed_json(record.model_dump(mode="json"))
                connection.execute(insert(ASIDE).values(**aside, document=document))
        return Added(len(fresh), duplicates, tuple(conflicts))

    def _insert(self, connection: Connection, records: Sequence[RunRecord]) -> None:
        if not records:
            return
        first = connection.execute(select(func.coalesce(func.max(RUN.c.id), 0))).scalar_one() + 1
        runs, raws = [], []
        for number, record in enumerate(records, first):
            places = self._places(connection, record)
            first_step, last_step = record.window
            run: dict[str, Any] = {
                **{name: getattr(record, name) for name in PLAIN},
                "disturbance": disturbance_in(record.stored_result.content),
                **{"id": number, "is_aside": 0, "window_first": first_step, "window_last": last_step},
                **{f"{table}_id": place for table, place in places.items()},
            }
            raw = raw_row(record, number, self._samples[places["series"]])
            runs.append({**run, "row_digest": row_digest(run, raw)})
            raws.append(raw)
        connection.execute(insert(RUN), runs)
        connection.execute(insert(RAW), raws)

    def _places(self, connection: Connection, record: RunRecord) -> dict[str, int]:
        """Return the ids of what the record's row refers to. What is not there yet is added."""
        series, conditions, subject = record.series, record.conditions, record.subject
        number = self._id(
            connection,
            SERIES,
            self._digests.of(series),
            lambda: {
                **{name: getattr(series, name) for name in _OF_SERIES},
                **{"case_name": series.case, "layout": str(series.layout), "document": series.model_dump_json()},
                "sample": packed_json(documents_of(record)),  # the dictionary of the documents of all later runs
            },
        )
        if number not in self._samples:
            sample = connection.execute(select(SERIES.c.sample).where(SERIES.c.id == number)).scalar_one()
            self._samples[number] = inflated(sample)
        versions = {"framework_version": subject.framework_version, "platform_version": subject.platform_version}
        return {
            "series": number,
            "condition": self._id(
                connection,
                CONDITION,
                self._digests.of(conditions),
                lambda: {"document": conditions.model_dump_json()},
            ),
            "subject": self._id(
                connection,
                SUBJECT,
                self._digests.of(subject),
                lambda: {**versions, "commit_hash": subject.commit, "document": subject.model_dump_json()},
            ),
            "node": self._id(connection, NODE, record.node, dict),
        }

    def _id(self, connection: Connection, table: Table, digest: str, row: Callable[[], dict[str, Any]]) -> int:
        key = (table.name, digest)
        if key not in self._ids:
            number = connection.execute(select(table.c.id).where(table.c.digest == digest)).scalar()
            if number is None:
                added = insert(table).values(**{**row(), "digest": digest}).returning(table.c.id)
                number = connection.execute(added).scalar_one()
            self._ids[key] = number
        return self._ids[key]


def disturbance_in(result: Mapping[str, Any]) -> str | None:
    """Return what others used beyond the limits. Only this section of the result is parsed, which takes less time."""
    content = result.get("other_use")
    return use_beyond_limits(OtherUse.model_validate(content))[1] or None if content else None


class RecordReader:
    """Reads whole records. It remembers the series, conditions and subjects that come again."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], Value] = {}
        self._samples: dict[int, bytes] = {}

    def records(self, connection: Connection, run_ids: Sequence[str]) -> list[RunRecord]:
        """Return the records of these ids, in their order. An unknown id is left out."""
        rows = connection.execute(_WHOLE.where(RUN.c.run_id.in_(run_ids))).all()
        records = {row._mapping["run_id"]: self.record(connection, row) for row in rows}
        return [records[run_id] for run_id in run_ids if run_id in records]

    def record(self, connection: Connection, row: Row[Any]) -> RunRecord:
        """Return the record of a row of `run` joined with `raw`."""
        values = row._mapping
        around = {
            "series": self._value(connection, Series, values["series_id"]),
            "conditions": self._value(connection, Conditions, values["condition_id"]),
            "subject": self._value(connection, Subject, values["subject_id"]),
        }
        result, telemetry, *traces = unpacked_json(values["documents"], self._samples[values["series_id"]])
        return RunRecord(
            **{name: values[name] for name in PLAIN},
            **around,
            node=values["node"],
            window=(values["window_first"], values["window_last"]),
            step_seconds=unpacked_numbers(values["steps"]),
            losses=unpacked_numbers(values["losses"]),
            telemetry=telemetry,
            traces=traces[0] if traces else None,
            result=result,
        )

    def _value(self, connection: Connection, cls: type[Value], number: int) -> Value:
        key = (cls.__name__, number)
        if key not in self._values:
            table = DOCUMENTS[cls]
            row = connection.execute(select(table).where(table.c.id == number)).one()
            self._values[key] = cls.model_validate_json(row.document)
            if cls is Series:
                self._samples[number] = inflated(row.sample)
        return self._values[key]
