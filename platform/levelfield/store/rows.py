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
from levelfield.specs.run_figures import STORED_FIGURES
from levelfield.store.compression import inflate, pack_json, pack_numbers, unpack_json, unpack_numbers
from levelfield.store.schema import ASIDE, CONDITION, NODE, RAW, RUN, SERIES, SUBJECT

NOT_ASIDE = RUN.c.is_aside == 0
DOCUMENTS: dict[type[Value], Table] = {Series: SERIES, Conditions: CONDITION, Subject: SUBJECT}
_RECORD_QUERY = (
    select(*(column for column in RUN.c if column.name != "node_id"))
    .add_columns(RAW.c.steps, RAW.c.losses, RAW.c.documents, NODE.c.digest.label("node"))
    .select_from(RUN.join(RAW, RAW.c.run_id == RUN.c.id).join(NODE))
    .where(NOT_ASIDE)
)
COPIED_COLUMNS = (
    *("run_id", "content", "began", "purpose", "night", "entry", "evidence", "evidence_reason"),
    *("word", "failure", "reason", "verdict", *STORED_FIGURES),
)
_NUMBER_COLUMNS = ("window_first", "window_last", "series_id", "condition_id", "subject_id", "node_id")
_SERIES_COLUMNS = (
    *("label", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is", "precision", "runtime"),
    *("nodes", "devices", "micro_batch", "accumulation", "recompute"),
)
REPORTED = "reported"


def raw_row(record: RunRecord, run_number: int, sample: bytes) -> dict[str, Any]:
    """Return the row of `raw`. run_number: the id of its run. sample: the documents of the first run of the series."""
    return {
        "run_id": run_number,
        "steps": pack_numbers(record.step_seconds),
        "losses": pack_numbers(record.losses),
        "documents": pack_json(stored_documents(record), sample),
    }


def row_digest(run: Mapping[str, Any], raw: Mapping[str, Any], copied_columns: Sequence[str] = COPIED_COLUMNS) -> bytes:
    """Return the digest of both rows of a run, by which `store check` finds a changed row.

    A null counts as no value. copied_columns: the columns that are copied from the record, in their order.
    """
    values = {name: run[name] for name in (*copied_columns, *_NUMBER_COLUMNS, "disturbance") if run[name] is not None}
    digest = hashlib.blake2b(json.dumps(values).encode(), digest_size=16)
    for name in ("steps", "losses", "documents"):
        digest.update(hashlib.blake2b(raw[name], digest_size=16).digest())
    return digest.digest()


def stored_documents(record: RunRecord) -> list[Any]:
    """Return what the column `documents` stores: the result, the telemetry, and the traces where there are any."""
    traces = [record.traces.model_dump(mode="json", exclude_defaults=True)] if record.traces else []
    return [record.stored_result.content, record.telemetry, *traces]


class DigestCache:
    """Computes each digest once, because most runs share their series, conditions and subject."""

    def __init__(self) -> None:
        self._by_json: dict[str, str] = {}

    def digest(self, value: Value) -> str:
        key = value.model_dump_json()
        if key not in self._by_json:
            self._by_json[key] = value.fingerprint()
        return self._by_json[key]


@dataclass(frozen=True)
class AddedRuns:
    """How many records were added, and which were not."""

    new_count: int = 0
    existing_count: int = 0
    conflicting_runs: tuple[str, ...] = ()  # ids of runs that are there with other content, and are aside now


class RunInsertion:
    """Adds batches of records. It remembers which series, conditions, subjects and nodes the store has."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._samples: dict[int, bytes] = {}
        self._digests = DigestCache()

    def add(self, connection: Connection, records: Sequence[RunRecord]) -> AddedRuns:
        """Add the records in the connection's transaction."""
        # Those with raw files first: nobody's statement of the same run comes before them.
        records = sorted(records, key=lambda record: record.evidence == REPORTED)
        run_ids = [record.run_id for record in records]
        query = select(RUN.c.run_id, RUN.c.content, RUN.c.is_aside, RUN.c.evidence).where(RUN.c.run_id.in_(run_ids))
        stored_runs = {run_id: rest for run_id, *rest in connection.execute(query)}
        new_records, aside_records, conflicts, duplicates = [], [], [], 0
        for record in records:
            content, is_aside, evidence = stored_runs.get(record.run_id, (None, 0, None))
            is_same = content == record.content and not is_aside
            # a record may come with the raw files of a run whose figures were only stated so far
            adds_raw_files = is_same and evidence == REPORTED and record.evidence != REPORTED
            if content is None or adds_raw_files:
                if adds_raw_files:
                    connection.execute(delete(RUN).where(RUN.c.run_id == record.run_id))
                new_records.append(record)
                stored_runs[record.run_id] = [record.content, 0, record.evidence]
            elif is_same:
                duplicates += 1
            else:
                conflicts.append(record.run_id)
                aside_records += [record] if content != record.content else []
        self._insert(connection, new_records)
        for record in aside_records:  # beside the stored run of the same id, which is then in no history
            connection.execute(update(RUN).where(RUN.c.run_id == record.run_id).values(is_aside=1))
            same_content = select(ASIDE.c.id).where(ASIDE.c.run_id == record.run_id, ASIDE.c.content == record.content)
            if connection.execute(same_content).scalar() is None:
                aside = {"run_id": record.run_id, "content": record.content}
                document = pack_json(record.model_dump(mode="json"))
                connection.execute(insert(ASIDE).values(**aside, document=document))
        return AddedRuns(len(new_records), duplicates, tuple(conflicts))

    def _insert(self, connection: Connection, records: Sequence[RunRecord]) -> None:
        if not records:
            return
        first_number = connection.execute(select(func.coalesce(func.max(RUN.c.id), 0))).scalar_one() + 1
        runs, raws = [], []
        for number, record in enumerate(records, first_number):
            row_ids = self._row_ids(connection, record)
            first_step, last_step = record.window
            run: dict[str, Any] = {
                **{name: getattr(record, name) for name in COPIED_COLUMNS},
                "disturbance": disturbance_in(record.stored_result.content),
                **{"id": number, "is_aside": 0, "window_first": first_step, "window_last": last_step},
                **{f"{table}_id": row_id for table, row_id in row_ids.items()},
            }
            raw = raw_row(record, number, self._samples[row_ids["series"]])
            runs.append({**run, "row_digest": row_digest(run, raw)})
            raws.append(raw)
        connection.execute(insert(RUN), runs)
        connection.execute(insert(RAW), raws)

    def _row_ids(self, connection: Connection, record: RunRecord) -> dict[str, int]:
        """Return the ids of what the record's row refers to. What is not there yet is added."""
        series, conditions, subject = record.series, record.conditions, record.subject
        series_id = self._row_id(
            connection,
            SERIES,
            self._digests.digest(series),
            lambda: {
                **{name: getattr(series, name) for name in _SERIES_COLUMNS},
                **{"case_name": series.case, "layout": str(series.layout), "document": series.model_dump_json()},
                "sample": pack_json(stored_documents(record)),  # the dictionary of the documents of all later runs
            },
        )
        if series_id not in self._samples:
            sample = connection.execute(select(SERIES.c.sample).where(SERIES.c.id == series_id)).scalar_one()
            self._samples[series_id] = inflate(sample)
        versions = {"framework_version": subject.framework_version, "platform_version": subject.platform_version}
        return {
            "series": series_id,
            "condition": self._row_id(
                connection,
                CONDITION,
                self._digests.digest(conditions),
                lambda: {"document": conditions.model_dump_json()},
            ),
            "subject": self._row_id(
                connection,
                SUBJECT,
                self._digests.digest(subject),
                lambda: {**versions, "commit_hash": subject.commit, "document": subject.model_dump_json()},
            ),
            "node": self._row_id(connection, NODE, record.node, dict),
        }

    def _row_id(self, connection: Connection, table: Table, digest: str, row: Callable[[], dict[str, Any]]) -> int:
        key = (table.name, digest)
        if key not in self._ids:
            number = connection.execute(select(table.c.id).where(table.c.digest == digest)).scalar()
            if number is None:
                added = insert(table).values(**{**row(), "digest": digest}).returning(table.c.id)
                number = connection.execute(added).scalar_one()
            self._ids[key] = number
        return self._ids[key]


def disturbance_in(result: Mapping[str, Any]) -> str | None:
    """Return what other programs used beyond the limits, in words; None for a quiet run.

    Only this section of the result is parsed, which takes less time.
    """
    content = result.get("other_use")
    return use_beyond_limits(OtherUse.model_validate(content))[1] or None if content else None


class RecordReader:
    """Reads whole records. It remembers the series, conditions and subjects that come again."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, int], Value] = {}
        self._samples: dict[int, bytes] = {}

    def records(self, connection: Connection, run_ids: Sequence[str]) -> list[RunRecord]:
        """Return the records of these ids, in their order. An unknown id is left out."""
        rows = connection.execute(_RECORD_QUERY.where(RUN.c.run_id.in_(run_ids))).all()
        records = {row._mapping["run_id"]: self.record(connection, row) for row in rows}
        return [records[run_id] for run_id in run_ids if run_id in records]

    def record(self, connection: Connection, row: Row[Any]) -> RunRecord:
        """Return the record of a row of `run` joined with `raw`."""
        values = row._mapping
        references = {
            "series": self._value(connection, Series, values["series_id"]),
            "conditions": self._value(connection, Conditions, values["condition_id"]),
            "subject": self._value(connection, Subject, values["subject_id"]),
        }
        result, telemetry, *traces = unpack_json(values["documents"], self._samples[values["series_id"]])
        return RunRecord(
            **{name: values[name] for name in COPIED_COLUMNS},
            **references,
            node=values["node"],
            window=(values["window_first"], values["window_last"]),
            step_seconds=unpack_numbers(values["steps"]),
            losses=unpack_numbers(values["losses"]),
            telemetry=telemetry,
            traces=traces[0] if traces else None,
            result=result,
        )

    def _value(self, connection: Connection, value_type: type[Value], row_id: int) -> Value:
        key = (value_type.__name__, row_id)
        if key not in self._values:
            table = DOCUMENTS[value_type]
            row = connection.execute(select(table).where(table.c.id == row_id)).one()
            self._values[key] = value_type.model_validate_json(row.document)
            if value_type is Series:
                self._samples[row_id] = inflate(row.sample)
        return self._values[key]
