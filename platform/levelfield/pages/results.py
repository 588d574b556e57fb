"""What the pages read: a store, or runs that are given by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from levelfield.specs.record import Conditions, Point, RunRecord, StoreEvent, Subject
from levelfield.store.database import Store, StoredSeries
from levelfield.store.rows import Digests


class GivenRuns:
    """Records in memory, read as a store is. They have no findings of a gate and no expected entries unless given."""

    def __init__(
        self,
        records: Iterable[RunRecord],
        events: Sequence[StoreEvent] = (),
        findings: Mapping[str, Sequence[dict[str, Any]]] | None = None,
        expected: Mapping[str, Mapping[str, str | None]] | None = None,
    ) -> None:
        self._records = {record.run_id: record for record in sorted(records, key=lambda record: record.began)}
        self._events, self._findings, self._expected = events, findings or {}, expected or {}
        self._of: dict[str, list[RunRecord]] = defaultdict(list)
        self._points: dict[str, list[Point]] = defaultdict(list)
        self._conditions: dict[str, Conditions] = {}
        self._subjects: dict[str, Subject] = {}
        digests = Digests()
        own = Point.model_fields.keys() - {"conditions", "subject"}
        for record in self._records.values():
            digest = digests.of(record.series)
            around = {"conditions": digests.of(record.conditions), "subject": digests.of(record.subject)}
            self._of[digest].append(record)
            self._conditions[around["conditions"]] = record.conditions
            self._subjects[around["subject"]] = record.subject
            self._points[digest].append(Point(**{name: getattr(record, name) for name in own}, **around))

    def series(self) -> list[StoredSeries]:
        return [
            StoredSeries(digest, runs[0].series, len(runs), runs[0].began, runs[-1].began)
            for digest, runs in self._of.items()
        ]

    def points(self) -> Mapping[str, Sequence[Point]]:
        """Return the points by series digest, in order of time."""
        return self._points

    def records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]:
        return (self._records[run_id] for run_id in run_ids)

    def conditions(self, digest: str) -> Conditions:
        return self._conditions[digest]

    def subject(self, digest: str) -> Subject:
        return self._subjects[digest]

    def events(self) -> Sequence[StoreEvent]:
        return self._events

    def nights(self) -> list[str]:
        return sorted({*self._expected, *self._findings, *(r.night for r in self._records.values() if r.night)})

    def expected(self, night: str) -> Mapping[str, str | None]:
        return self._expected.get(night, {})

    def findings(self, night: str) -> Sequence[dict[str, Any]]:
        return self._findings.get(night, ())


StoredResults = Store | GivenRuns
