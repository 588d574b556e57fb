"""What the pages read, and the history of a series: columns for its charts, and its latest state in a few figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from levelfield.compare.sides import excess_use
from levelfield.series.segments import segments_of
from levelfield.specs.record import Conditions, Point, RunRecord, Series, StoreEvent, Subject, branch_of
from levelfield.specs.run_figures import STORED_FIGURES
from levelfield.store.database import Store, StoredSeries
from levelfield.store.rows import DigestCache


class InMemoryStore:
    """Records in memory, read as a store is. Without findings and expected entries there was no gate."""

    def __init__(
        self,
        records: Iterable[RunRecord],
        events: Sequence[StoreEvent] = (),
        findings: Mapping[str, Sequence[dict[str, Any]]] | None = None,
        expected: Mapping[str, Mapping[str, str | None]] | None = None,
    ) -> None:
        self._records = {record.run_id: record for record in sorted(records, key=lambda record: record.began)}
        self._events, self._findings, self._expected = events, findings or {}, expected or {}
        self._series: dict[str, list[RunRecord]] = defaultdict(list)
        self._points: dict[str, list[Point]] = defaultdict(list)
        self._surroundings: dict[str, Conditions | Subject] = {}
        digests, names = DigestCache(), Point.model_fields.keys() - {"conditions", "subject", "disturbance"}
        for record in self._records.values():
            digest, conditions, subject = map(digests.digest, (record.series, record.conditions, record.subject))
            values = {name: getattr(record, name) for name in names}
            values["disturbance"] = excess_use(record)[1] or None
            self._series[digest].append(record)
            self._surroundings |= {conditions: record.conditions, subject: record.subject}
            self._points[digest].append(Point(**values, conditions=conditions, subject=subject))

    def series(self) -> list[StoredSeries]:
        return [
            StoredSeries(digest, runs[0].series, len(runs), runs[0].began, runs[-1].began)
            for digest, runs in self._series.items()
        ]

    def points(self) -> Mapping[str, Sequence[Point]]:
        """Return the points by series digest, in order of time."""
        return self._points

    def records(self, run_ids: Sequence[str]) -> Iterator[RunRecord]:
        return (self._records[run_id] for run_id in run_ids)

    def conditions(self, digest: str) -> Conditions:
        return cast("Conditions", self._surroundings[digest])

    def subject(self, digest: str) -> Subject:
        return cast("Subject", self._surroundings[digest])

    def events(self) -> Sequence[StoreEvent]:
        return self._events

    def nights(self) -> list[str]:
        """Return the nights of the default branch."""
        nights = {*self._expected, *self._findings, *(r.night for r in self._records.values() if r.night)}
        return sorted(night for night in nights if branch_of(night) is None)

    def expected_entries(self, night: str) -> Mapping[str, str | None]:
        return self._expected.get(night, {})

    def findings(self, night: str) -> Sequence[dict[str, Any]]:
        return self._findings.get(night, ())


class CheckoutRuns:
    """The runs of a store that belong to a checkout: those of its folder of runs, and all nights of the suites that it
    ran. Read as a store is."""

    def __init__(self, store: Store, run_ids: Collection[str]) -> None:
        points = store.points()
        nightly = [p for runs in points.values() for p in runs if p.run_id in run_ids and p.night and p.entry]
        suites = tuple(sorted({f"{(p.entry or '').split('/')[0]}/" for p in nightly}))

        def belongs(point: Point) -> bool:
            return point.run_id in run_ids or bool(point.night and (point.entry or "").startswith(suites))

        series = {digest for digest, runs in points.items() if any(map(belongs, runs))}
        self._points = {  # a run of a pair names no entry
            digest: [p for p in points[digest] if belongs(p) or (suites and p.night and not p.is_trend_point)]
            for digest in points
            if digest in series
        }
        self.left_out = sum(map(len, points.values())) - sum(map(len, self._points.values()))
        self._store, self._suites = store, suites
        self.records, self.conditions, self.subject = store.records, store.conditions, store.subject

    def series(self) -> list[StoredSeries]:
        return [stored for stored in self._store.series() if stored.digest in self._points]

    def points(self) -> Mapping[str, Sequence[Point]]:
        return self._points

    def events(self) -> Sequence[StoreEvent]:
        return [event for event in self._store.events() if event.series in self._points]

    def nights(self) -> list[str]:
        ran = {point.night for runs in self._points.values() for point in runs}
        return [night for night in self._store.nights() if night in ran or self.expected_entries(night)]

    def expected_entries(self, night: str) -> Mapping[str, str | None]:
        return {
            e: series
            for e, series in self._store.expected_entries(night).items()
            if self._suites and e.startswith(self._suites)
        }

    def findings(self, night: str) -> Sequence[dict[str, Any]]:
        """Return the findings about its series and entries, and those about no series, such as a slow node."""
        digests = {"", *self._points, *self.expected_entries(night).values()}
        return [finding for finding in self._store.findings(night) if finding.get("series", "") in digests]


StoredResults = Store | InMemoryStore | CheckoutRuns


T = TypeVar("T")
K = TypeVar("K")


def group_by(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the values by a key, in their order."""
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


@dataclass(frozen=True)
class SeriesRuns:
    """A series with its points in order of time."""

    digest: str
    slug: str  # the name of its files
    case_slug: str  # of its case's files
    series: Series
    points: Sequence[Point]
    disturbed_ids: tuple[str, ...] = ()  # ids of its newest runs that other programs disturbed
    is_disturbed: bool = False  # whether there is no quiet run before them, so that they are shown, with a mark

    @property
    def counted_points(self) -> list[Point]:
        """The runs of the trend that may stand in a comparison, without disturbed ones after a quiet one."""
        left_out = () if self.is_disturbed else self.disturbed_ids
        return [p for p in self.points if p.is_trend_point and p.is_comparable and p.run_id not in left_out]


class DistinctValues:
    """Values that repeat, each stored once. A value with a key is known by its key."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self.values: list[Any] = []

    def add(self, value: Any, key: Any = None) -> int:
        """Return the index of the value, which is added if it is new."""
        key = value if key is None else key
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


class CachedDocuments:
    """Conditions and subjects by their digests, each read once for all series."""

    def __init__(self, results: StoredResults) -> None:
        self.conditions = cache(lambda digest: results.conditions(digest).model_dump(mode="json"))
        self.subject = cache(lambda digest: results.subject(digest).model_dump(mode="json"))


@lru_cache(maxsize=2**18)  # each time of a large store is needed four times
def epoch_seconds(began: str) -> int:
    """Return seconds since 1970 of a time in UTC; a time without a zone is one in UTC."""
    at = datetime.fromisoformat(began.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp())


def month_of(began: str) -> str:
    """Return `2026-11`: the runs of a series are kept in one file for each month."""
    return datetime.fromtimestamp(epoch_seconds(began), timezone.utc).strftime("%Y-%m")


def history_data(runs: SeriesRuns, documents: CachedDocuments) -> dict[str, Any]:
    """Return the data of a series: columns with a value for each run, what they refer to, segments, pairs of builds."""
    distinct_values = {
        name: DistinctValues() for name in ("words", "nodes", "verdicts", "purposes", "conditions", "subjects")
    }
    rows = []
    for point in runs.points:  # a value for each column; what repeats is a place among the distinct values
        conditions, subject = documents.conditions(point.conditions), documents.subject(point.subject)
        row = {
            "run": point.run_id,
            "time": epoch_seconds(point.began),
            "word": distinct_values["words"].add(point.displayed_status),
            "node": distinct_values["nodes"].add(point.node),
            "verdict": distinct_values["verdicts"].add(point.verdict),
            "purpose": distinct_values["purposes"].add(point.purpose),
            "counts": int(point.is_comparable),
            "trend": int(point.is_trend_point),
            "conditions": distinct_values["conditions"].add(conditions, point.conditions),
            "subject": distinct_values["subjects"].add(subject, point.subject),
        }
        for column, figure in STORED_FIGURES.items():  # as exact as a chart and its table can show
            value = getattr(point, column)
            row[figure.page_key] = None if value is None else round(value, figure.decimals)
        rows.append(row)
    return {
        "label": runs.series.label,
        "case_file": runs.case_slug,
        "digest": runs.digest,
        "columns": {name: [row[name] for row in rows] for name in rows[0]} if rows else {},
        "kept": {name: values.values for name, values in distinct_values.items()},
        "segments": condition_changes(runs.points, documents),
        "pairs": pair_indexes(runs.points),
    }


def pair_indexes(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the pairs of builds by night: the places of the accepted build's run (a) and of the new one's (b)."""
    arms: dict[str | None, dict[str, list[int]]] = defaultdict(lambda: {"confirm-a": [], "confirm-b": []})
    for place, point in enumerate(points):
        if point.purpose in ("confirm-a", "confirm-b"):
            arms[point.night][point.purpose].append(place)
    return [
        {"night": night, "a": a, "b": b}
        for night, places in arms.items()
        for a, b in zip(places["confirm-a"], places["confirm-b"], strict=False)
    ]


def condition_changes(points: Sequence[Point], documents: CachedDocuments) -> list[dict[str, Any]]:
    """Return where the conditions of a node change: the index of the first run under new ones, and what differs."""
    parts = segments_of([point for point in points if point.is_trend_point])
    places = {id(point): index for index, point in enumerate(points)}
    return [
        {
            "at": places[id(part.points[0])],
            "fields": field_differences(
                documents.conditions(parts[part.previous_index].conditions), documents.conditions(part.conditions)
            ),
        }
        for part in parts
        if part.previous_index is not None
    ]


def field_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[list[str]]:
    """Return [field, value before, value after] of each field that differs; an absent value is an empty text."""
    old, new = flatten(before), flatten(after)
    names = dict.fromkeys([*old, *new])
    return [[n, old.get(n, ""), new.get(n, "")] for n in names if old.get(n, "") != new.get(n, "")]


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values that are not null of nested fields by their dotted names."""
    fields: dict[str, str] = {}
    for name, nested in value.items():
        if isinstance(nested, Mapping):
            fields |= flatten(nested, f"{prefix}{name}.")
        elif nested is not None:
            fields[f"{prefix}{name}"] = str(nested)
    return fields


@dataclass(frozen=True)
class SeriesSummary:
    """The latest state of a series."""

    run_count: int
    valid_count: int  # runs that may stand in a comparison
    node_count: int
    last_began: str  # when the last run of the trend began
    last_word: str
    exclusion_reason: str | None  # why the last run may not stand in a comparison; None where it may
    latest: Point | None  # the last run of the trend that may stand in a comparison
    tokens_per_second_per_device: float | None  # of the latest figures
    disturbed_left_out: int = 0  # newer runs that are left out, as other programs disturbed them


def summary_of(runs: SeriesRuns) -> SeriesSummary:
    """Return the summary of a series, which has at least one run."""
    trend = [point for point in runs.points if point.is_trend_point]
    comparable, last = runs.counted_points, (trend or runs.points)[-1]
    reason = next(
        (text for text, required in ((last.word, "valid"), (last.evidence, "sealed")) if text != required), last.verdict
    )
    return SeriesSummary(
        run_count=len(runs.points),
        valid_count=sum(point.is_comparable for point in runs.points),
        node_count=len({point.node for point in runs.points}),
        last_began=last.began,
        last_word=last.word,
        exclusion_reason=None if last.is_comparable else reason,
        latest=comparable[-1] if comparable else None,
        tokens_per_second_per_device=comparable[-1].tokens_per_second_per_device if comparable else None,
        disturbed_left_out=0 if runs.is_disturbed else len(runs.disturbed_ids),
    )
