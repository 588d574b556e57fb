"""What the pages need of a store, and the same of runs that are given by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from levelfield.specs.record import Conditions, Point, RunRecord, Series, StoreEvent, Subject


class SeriesEntry(Protocol):
    """A series with its digest, its number of runs, and when the first and the last began."""

    @property
    def digest(self) -> str: ...
    @property
    def series(self) -> Series: ...
    @property
    def runs(self) -> int: ...
    @property
    def first(self) -> str: ...
    @property
    def last(self) -> str: ...


class StoredResults(Protocol):
    """The part of a store that pages read. points: by series digest, in order of time."""

    def series(self) -> Sequence[SeriesEntry]: ...
    def points(self) -> Mapping[str, Sequence[Point]]: ...
    def records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]: ...
    def conditions(self, digest: str) -> Conditions: ...
    def subject(self, digest: str) -> Subject: ...
    def events(self) -> Sequence[StoreEvent]: ...
    def nights(self) -> Sequence[str]: ...
    def expected(self, night: str) -> Mapping[str, str | None]: ...
    def findings(self, night: str | None = None) -> Sequence[dict[str, Any]]: ...


@dataclass(frozen=True)
class GivenSeries:
    digest: str
    series: Series
    runs: int
    first: str
    last: str


class GivenRuns:
    """Records in memory as StoredResults. They have no findings of a gate and no expected entries unless given."""

    def __init__(
        self,
        records: Iterable[RunRecord],
        events: Sequence[StoreEvent] = (),
        findings: Mapping[str, Sequence[dict[str, Any]]] | None = None,
        expected: Mapping[str, Mapping[str, str | None]] | None = None,
    ) -> None:
        self._records = {record.run_id: record for record in sorted(records, key=lambda record: record.began)}
        self._events, self._findings, self._expected = events, findings or {}, expected or {}
        digests = _Digests()
        self._of: dict[str, list[RunRecord]] = defaultdict(list)
        self._points: dict[str, list[Point]] = defaultdict(list)
        self._around: dict[str, Any] = {}
        for record in self._records.values():
            digest = digests.of(record.series)
            self._of[digest].append(record)
            around = [digests.of(value) for value in (record.conditions, record.subject)]
            self._around |= zip(around, (record.conditions, record.subject), strict=True)
            self._points[digest].append(point_of(record, *around))

    def series(self) -> list[GivenSeries]:
        return [
            GivenSeries(digest, runs[0].series, len(runs), runs[0].began, runs[-1].began)
            for digest, runs in self._of.items()
        ]

    def points(self) -> Mapping[str, Sequence[Point]]:
        return self._points

    def records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]:
        return (self._records[run_id] for run_id in run_ids)

    def conditions(self, digest: str) -> Conditions:
        found: Conditions = self._around[digest]
        return found

    def subject(self, digest: str) -> Subject:
        found: Subject = self._around[digest]
        return found

    def events(self) -> Sequence[StoreEvent]:
        return self._events

    def nights(self) -> list[str]:
        return sorted({*self._expected, *self._findings, *(r.night for r in self._records.values() if r.night)})

    def expected(self, night: str) -> Mapping[str, str | None]:
        return self._expected.get(night, {})

    def findings(self, night: str | None = None) -> Sequence[dict[str, Any]]:
        if night is not None:
            return self._findings.get(night, ())
        return [finding for each in sorted(self._findings) for finding in self._findings[each]]


def point_of(record: RunRecord, conditions: str, subject: str) -> Point:
    """Return what a chart needs of a run. conditions, subject: their digests."""
    own = {name: getattr(record, name) for name in Point.model_fields if name not in ("conditions", "subject")}
    return Point(**own, conditions=conditions, subject=subject)


class _Digests:
    """Fingerprints, each computed once for values that many records share."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        if id(value) not in self._known:
            self._known[id(value)] = (value, value.fingerprint())  # holds the value, so that its id stays its own
        return self._known[id(value)][1]
