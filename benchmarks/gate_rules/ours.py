"""The gate of this project on simulated nights, by its own code: levelfield.nights.gate and levelfield.series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

import numpy as np
from gate_rules.worlds import Nights
from levelfield.nights.baselines import LevelEvidence, baseline_event
from levelfield.nights.gate import MAX_PAIRS_PER_NIGHT, Confirmation, GateReport, PairRuns, judge_night, suspects
from levelfield.nights.gate_input import GateInput
from levelfield.series.findings import Finding
from levelfield.series.pairs import MAX_NULL_PAIRS_PER_NIGHT, Pair
from levelfield.series.trigger import MANY_SERIES
from levelfield.specs.record import NULL_PURPOSES, Conditions, GatedFigure, Point, Purpose, StoreEvent

FIGURE: GatedFigure = "memory_bytes"  # a figure of which more is worse, as of a step time
FLEET_NODES = 10
Arms = tuple[Purpose, ...]
CONFIRMING: Arms = ("confirm-a", "confirm-b")
_FIRST = date(2026, 1, 1)
_FORMAT = {"os": "Debian", "processor": "P", "cores": 8, "memory_gib": 64, "engine": None, "variables": {}}


@dataclass(frozen=True)
class Night:
    """night: its index. word: of the finding; empty where there was no run. pairs: how many the test used."""

    night: int
    word: str
    pairs: int


def judged_nights(nights: Nights, random: np.random.Generator, has_pairs: bool = True) -> list[list[Night]]:
    """Return the gate's word about every series in every night from the kind's start on.

    Each series has nodes of its own, and few series are judged together: none explains another. Under a new driver each
    is judged alone.
    """
    judged_series: list[list[Night]] = []
    count, last = nights.observed.shape
    together = MANY_SERIES if nights.kind.driver is None else 1
    for first in range(0, count, together):
        names = {f"s{i}": i for i in range(first, min(first + together, count))}
        points = {name: _points(nights, i, f"{name}.") for name, i in names.items()}
        rows: dict[str, list[Night]] = {name: [] for name in names}
        for night, report in enumerate(_reports(nights, names, points, random, has_pairs), nights.kind.start):
            words = {finding.series: finding for finding in report.findings if finding.figure == FIGURE}
            for name, row in rows.items():
                finding = words.get(name)
                row.append(Night(night, finding.word if finding else "", finding.pairs if finding else 0))
        judged_series += rows.values()
    assert all(len(row) == last - nights.kind.start for row in judged_series)
    return judged_series


def fleet_reports(nights: Nights, random: np.random.Generator) -> Iterator[GateReport]:
    """Yield the gate's report of every night from the kind's start on, of all series together on shared nodes."""
    names = {f"s{i}": i for i in range(len(nights.observed))}
    points = {name: _points(nights, i, f"n{i % (FLEET_NODES // nights.kind.nodes)}.") for name, i in names.items()}
    return _reports(nights, names, points, random, True, MAX_PAIRS_PER_NIGHT)


def _reports(
    nights: Nights, names: dict[str, int], points: dict[str, list[Point]], random: np.random.Generator,
    has_pairs: bool, most_pairs: int | None = None,
) -> Iterator[GateReport]:  # fmt: skip
    past: list[Finding] = []
    start = nights.kind.start
    events = [_acceptance(name, of, start) for name, of in points.items()] if nights.kind.is_accepted else []
    for night in range(start, nights.observed.shape[1]):
        points_so_far = {name: _until(of, night) for name, of in points.items()}
        gate_input = GateInput(_day(night), points_so_far, {}, events, past_findings=past, find_conditions=_conditions)
        if not has_pairs:
            report = judge_night(gate_input)
        else:
            by_name = {(suspect.series, suspect.figure): suspect for suspect in suspects(gate_input)}
            first_builds = {suspect.series: _night_of(suspect.examination.baseline_run) for suspect in by_name.values()}

            def start_pairs(
                series: str, arms: Arms = CONFIRMING, night: int = night, builds: dict[str, int] = first_builds
            ) -> Iterator[tuple[Point, Point]]:
                """Yield pairs of runs of a suspect. Those that are taken are stored, as nights store their runs."""
                first = builds[series]
                sides = (first, first if arms == NULL_PURPOSES else night)
                costs = nights.pairs(names[series], night, sides, MAX_NULL_PAIRS_PER_NIGHT, random)
                trend = next(p for p in points[series] if p.night == _day(night) and p.is_trend_point)
                for number, (cost_a, cost_b) in enumerate(costs):
                    pair = _run_of_arm(trend, arms[0], cost_a, number), _run_of_arm(trend, arms[1], cost_b, number)
                    points[series] += pair
                    yield pair

            nulls = PairRuns(partial(start_pairs, arms=NULL_PURPOSES), lambda series: True, print, "null pairs")
            confirm = Confirmation(by_name, PairRuns(start_pairs, lambda series: True, print))
            report = judge_night(gate_input, confirm, partial(_null_values, nulls), most_pairs)
        yield report
        past += report.findings


def _null_values(nulls: PairRuns, series: str, figure: GatedFigure) -> Iterator[Pair]:
    return ((getattr(a, figure), getattr(b, figure)) for a, b in nulls.pairs(series))


def _run_of_arm(trend: Point, arm: Purpose, cost: float, number: int) -> Point:
    """Return a run of one arm of a pair in the night of `trend`."""
    return trend.model_copy(update={"run_id": f"{trend.run_id}-{arm}-{number}", "purpose": arm, "memory_bytes": cost})


def _night_of(run_id: str) -> int:
    """Return the night that first ran a run's build."""
    return int(run_id.split("-")[1])


def _acceptance(series: str, points: list[Point], start: int) -> StoreEvent:
    """Return the event of somebody who accepts the level in the morning before the night `start`."""
    evidence = LevelEvidence(series, tuple(_until(points, start - 1)))
    return baseline_event(evidence, "somebody", "the first level", f"{_day(start - 1)}T09:00:00Z")


def _until(points: list[Point], night: int) -> list[Point]:
    """Return what a gate reads of a series: its nights up to this one."""
    return [point for point in points if point.began[:10] <= _day(night)]


def _points(nights: Nights, series: int, nodes: str) -> list[Point]:
    kind = nights.kind
    return [
        Point(
            run_id=f"s{series}-{night}",
            began=f"{_day(night)}T02:00:00Z",
            purpose="nightly",
            night=_day(night),
            node=f"{nodes}{nights.node[series, night]}",
            conditions="560" if kind.driver is not None and night >= kind.start else "550",
            subject=f"build{night}",
            word="valid",
            evidence="sealed",
            verdict="aligned",
            tokens_per_second_per_device=None,
            memory_bytes=float(np.exp(cost)),
            joules_per_token=None,
        )
        for night, cost in enumerate(nights.observed[series])
        if not np.isnan(cost)
    ]


def _conditions(digest: str) -> Conditions:
    return Conditions.model_validate({**_FORMAT, "software": {"driver": digest}, "kernel": "6.1"})


def _day(night: int) -> str:
    return (_FIRST + timedelta(days=night)).isoformat()
