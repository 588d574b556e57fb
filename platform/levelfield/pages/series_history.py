"""The history of a series: as columns, for the charts of its case, and its latest state in a few figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeVar

from levelfield.pages.results import StoredResults
from levelfield.series.segments import segments_of
from levelfield.specs.base import Value
from levelfield.specs.record import Point, Series
from levelfield.specs.run_figures import STORED

T = TypeVar("T")
K = TypeVar("K")


def grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the values by a key, in their order."""
    found: dict[K, list[T]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found


@dataclass(frozen=True)
class SeriesRuns:
    """A series with its points in order of time. slug: the name of its files; case_slug: of its case's.

    disturbed: its newest runs that other programs disturbed, by their ids. is_disturbed: whether there is no quiet run
    before them, so that they are shown, with a mark.
    """

    digest: str
    slug: str
    case_slug: str
    series: Series
    points: Sequence[Point]
    disturbed: tuple[str, ...] = ()
    is_disturbed: bool = False

    @property
    def counted(self) -> list[Point]:
        """The runs of the trend that may stand in a comparison, without disturbed ones after a quiet one."""
        left_out = () if self.is_disturbed else self.disturbed
        return [p for p in self.points if p.is_of_trend and p.is_comparable and p.run_id not in left_out]


class DistinctValues:
    """Values that repeat, each kept once. `index` returns the place of a value, by its key."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self.values: list[Any] = []

    def index(self, key: Any, value_of: Callable[[], Any] | None = None) -> int:
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value_of() if value_of else key)
        return self._places[key]


class SurroundingDocuments:
    """Conditions and subjects by their digests, each read once for all series."""

    def __init__(self, results: StoredResults) -> None:
        self._results = results
        self._known: dict[str, dict[str, Any]] = {}

    def conditions(self, digest: str) -> dict[str, Any]:
        return self._once(digest, self._results.conditions)

    def subject(self, digest: str) -> dict[str, Any]:
        return self._once(digest, self._results.subject)

    def _once(self, digest: str, read: Callable[[str], Value]) -> dict[str, Any]:
        if digest not in self._known:
            self._known[digest] = read(digest).model_dump(mode="json")
        return self._known[digest]


@lru_cache(maxsize=2**18)  # each time of a large store is needed four times
def seconds_of(began: str) -> int:
    """Return seconds since 1970 of a time in UTC; a time without a zone is one in UTC."""
    at = datetime.fromisoformat(began.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp())


def month_of(began: str) -> str:
    """Return `2026-11`: the runs of a series are kept in one file for each month."""
    return datetime.fromtimestamp(seconds_of(began), timezone.utc).strftime("%Y-%m")


def history(runs: SeriesRuns, surroundings: SurroundingDocuments) -> dict[str, Any]:
    """Return the columns, one value of each a run; what they refer to; the segments; and the pairs of builds."""
    kept = {name: DistinctValues() for name in ("words", "nodes", "verdicts", "purposes", "conditions", "subjects")}
    rows = [_row(point, kept, surroundings) for point in runs.points]
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return {
        "label": runs.series.label,
        "case_file": runs.case_slug,
        "digest": runs.digest,
        "columns": columns,
        "kept": {name: each.values for name, each in kept.items()},
        "segments": segments(runs.points, surroundings),
        "pairs": pairs(runs.points),
    }


def pairs(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the pairs of builds by night: the places of the accepted build's run (a) and of the new one's (b)."""
    arms: dict[str | None, dict[str, list[int]]] = defaultdict(lambda: {"confirm-a": [], "confirm-b": []})
    for place, point in enumerate(points):
        if point.purpose in ("confirm-a", "confirm-b"):
            arms[point.night][point.purpose].append(place)
    return [
        {"night": night, "a": a, "b": b}
        for night, of in arms.items()
        for a, b in zip(of["confirm-a"], of["confirm-b"], strict=False)
    ]


def _row(point: Point, kept: Mapping[str, DistinctValues], surroundings: SurroundingDocuments) -> dict[str, Any]:
    """Return a value for each column. What repeats is a place in `kept`."""
    return {
        "run": point.run_id,
        "time": seconds_of(point.began),
        "word": kept["words"].index(point.word),
        "node": kept["nodes"].index(point.node),
        "verdict": kept["verdicts"].index(point.verdict),
        "purpose": kept["purposes"].index(point.purpose),
        "counts": int(point.is_comparable),
        "trend": int(point.is_of_trend),
        "conditions": kept["conditions"].index(point.conditions, lambda: surroundings.conditions(point.conditions)),
        "subject": kept["subjects"].index(point.subject, lambda: surroundings.subject(point.subject)),
        # As exact as a chart and its table can show.
        **{figure.page: rounded(getattr(point, column), figure.decimals) for column, figure in STORED.items()},
    }


def segments(points: Sequence[Point], surroundings: SurroundingDocuments) -> list[dict[str, Any]]:
    """Return where the conditions of a node change: the index of the first run under new ones, and what differs."""
    found = segments_of([point for point in points if point.is_of_trend])
    place = {id(point): index for index, point in enumerate(points)}
    return [
        {
            "at": place[id(segment.points[0])],
            "fields": differences(
                surroundings.conditions(found[segment.before].conditions), surroundings.conditions(segment.conditions)
            ),
        }
        for segment in found
        if segment.before is not None
    ]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[list[str]]:
    """Return [field, value before, value after] of each field that differs; an absent value is an empty text."""
    old, new = flat(before), flat(after)
    names = dict.fromkeys([*old, *new])
    return [[n, old.get(n, ""), new.get(n, "")] for n in names if old.get(n, "") != new.get(n, "")]


def flat(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the known values of nested fields by their dotted names."""
    return dict(_flat(value))


def _flat(value: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{name}.")
        elif inner is not None:
            yield f"{above}{name}", str(inner)


def rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


@dataclass(frozen=True)
class SeriesSummary:
    """The latest state of a series. valid: runs that may stand in a comparison. last: of the trend.

    latest: the last of the trend that may stand in a comparison. why_not: why the last may not; None where it may.
    disturbed: how many newer runs are left out, as other programs disturbed them.
    """

    runs: int
    valid: int
    nodes: int
    last: str
    last_word: str
    why_not: str | None
    latest: Point | None
    disturbed: int = 0

    @property
    def tokens(self) -> float | None:
        """The tokens/s/device of the latest figures."""
        return self.latest.tokens_per_second_per_device if self.latest else None


def summary_of(runs: SeriesRuns) -> SeriesSummary:
    """Return the summary of a series, which has at least one run."""
    trend = [point for point in runs.points if point.is_of_trend]
    counted, last = runs.counted, (trend or runs.points)[-1]
    return SeriesSummary(
        runs=len(runs.points),
        valid=sum(point.is_comparable for point in runs.points),
        nodes=len({point.node for point in runs.points}),
        last=last.began,
        last_word=last.word,
        why_not=None if last.is_comparable else _why_not(last),
        latest=counted[-1] if counted else None,
        disturbed=0 if runs.is_disturbed else len(runs.disturbed),
    )


def _why_not(point: Point) -> str:
    if point.word != "valid":
        return point.word
    return point.evidence if point.evidence != "sealed" else point.verdict
