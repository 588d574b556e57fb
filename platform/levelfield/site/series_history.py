"""The history of a series as columns, for the charts of its case: one value of each column is one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from levelfield.specs.record import Point, RunRecord, Series

FIGURES = ("tokens", "mfu", "memory", "energy", "loss")


@dataclass(frozen=True)
class SeriesRuns:
    """A series with its points in order of time. slug: the name of its files; case_slug: of its case's."""

    digest: str
    slug: str
    case_slug: str
    series: Series
    points: Sequence[Point]


class DistinctValues:
    """Values that repeat, each kept once. `index` returns the place of a value, by its key."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self.values: list[Any] = []

    def index(self, key: Any, value: Any = None) -> int:
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(key if value is None else value)
        return self._places[key]


def seconds_of(began: str) -> int:
    """Return seconds since 1970 of a time in UTC; a time without a zone is one in UTC."""
    at = datetime.fromisoformat(began.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp())


def month_of(began: str) -> str:
    """Return `2026-11`: the runs of a series are kept in one file for each month."""
    return datetime.fromtimestamp(seconds_of(began), timezone.utc).strftime("%Y-%m")


def history(runs: SeriesRuns, records: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return the columns, what they refer to, and the segments."""
    words, nodes, verdicts, purposes = (DistinctValues() for _ in range(4))
    conditions, subjects = DistinctValues(), DistinctValues()
    columns: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *FIGURES)}
    for point in runs.points:
        record = records[point.run_id]
        row = {
            "run": point.run_id,
            "time": seconds_of(point.began),
            "word": words.index(point.word),
            "node": nodes.index(point.node),
            "verdict": verdicts.index(point.verdict),
            "purpose": purposes.index(point.purpose),
            "counts": int(record.is_comparable),
            "conditions": _place(conditions, point.conditions, record.conditions),
            "subject": _place(subjects, point.subject, record.subject),
            **_figures(record),
        }
        for name, value in row.items():
            columns[name].append(value)
    kept = {
        "words": words.values,
        "nodes": nodes.values,
        "verdicts": verdicts.values,
        "purposes": purposes.values,
        "conditions": conditions.values,
        "subjects": subjects.values,
    }
    return {
        "label": runs.series.label,
        "case": runs.series.case,
        "case_file": runs.case_slug,
        "digest": runs.digest,
        "columns": columns,
        "kept": kept,
        "segments": segments(columns["conditions"], conditions.values),
    }


_COLUMNS = ("run", "time", "word", "node", "verdict", "purpose", "counts", "conditions", "subject")


def segments(places: Sequence[int], conditions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return where the conditions change: the index of the first run under new ones, and the fields that differ."""
    steps = [(i, before, after) for i, (before, after) in enumerate(pairwise(places), start=1) if before != after]
    return [{"at": i, "fields": differences(conditions[before], conditions[after])} for i, before, after in steps]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[list[str]]:
    """Return [field, value before, value after] of each field that differs; an absent value is an empty text."""
    old, new = dict(_flat(before)), dict(_flat(after))
    names = dict.fromkeys([*old, *new])
    return [[n, old.get(n, ""), new.get(n, "")] for n in names if old.get(n, "") != new.get(n, "")]


def _flat(value: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{above}{name}.")
        elif inner is not None:
            yield f"{above}{name}", str(inner)


def _place(kept: DistinctValues, digest: str, value: Any) -> int:
    known = len(kept.values)
    place = kept.index(digest)
    if place == known:  # the first of its digest
        kept.values[place] = value.model_dump(mode="json")
    return place


def _figures(record: RunRecord) -> dict[str, float | None]:
    """Return the figures, rounded to what a chart and its table can show."""
    return {
        "tokens": rounded(record.tokens_per_second_per_device, 2),
        "mfu": rounded(record.mfu, 5),
        "memory": rounded(record.memory_bytes, 0),
        "energy": rounded(record.joules_per_token, 6),
        "loss": rounded(record.loss_tail, 5),
    }


def rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
