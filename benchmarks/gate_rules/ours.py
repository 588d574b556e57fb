"""The gate of this project on simulated nights, by its own code: levelfield.nights.gate and levelfield.series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from gate_rules.worlds import Nights
from levelfield.nights.baselines import LevelEvidence, accepted_baseline
from levelfield.nights.gate import MOST_PAIRS_OF_A_NIGHT, GateReport, compared, suspects
from levelfield.nights.gate_input import GateInput
from levelfield.series.findings import Finding
from levelfield.series.judgement import Pairs
from levelfield.series.pairs import MOST_NULLS_OF_A_NIGHT, MOST_PAIRS
from levelfield.series.trigger import MANY_SERIES
from levelfield.specs.record import Conditions, Gated, Point, StoreEvent

FIGURE: Gated = "memory_bytes"  # a figure of which more is worse, as of a step time
FLEET_NODES = 10
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
    return _reports(nights, names, points, random, True, MOST_PAIRS_OF_A_NIGHT)


def _reports(
    nights: Nights, names: dict[str, int], points: dict[str, list[Point]], random: np.random.Generator,
    has_pairs: bool, most_pairs: int | None = None,
) -> Iterator[GateReport]:  # fmt: skip
    past: list[Finding] = []
    start = nights.kind.start
    events = [_acceptance(name, of, start) for name, of in points.items()] if nights.kind.is_accepted else []
    for night in range(nights.kind.start, nights.observed.shape[1]):
        points_so_far = {name: _until(of, night) for name, of in points.items()}
        gate_input = GateInput(_day(night), points_so_far, {}, events, past=past, conditions=_conditions)
        first_builds = _first_builds(gate_input)

        def run(series: str, is_null: bool, night: int = night, builds: dict[str, int] = first_builds) -> Pairs:
            first, most = builds[series], MOST_NULLS_OF_A_NIGHT if is_null else MOST_PAIRS
            return nights.pairs(names[series], night, (first, first if is_null else night), most, random)

        def confirm(series: str, figure: Gated, run: Callable[[str, bool], Pairs] = run) -> Pairs | None:
            return run(series, False) if has_pairs else None

        def nulls(series: str, figure: Gated, run: Callable[[str, bool], Pairs] = run) -> Pairs:
            return run(series, True) if has_pairs else ()

        report = compared(gate_input, confirm, nulls, most_pairs)
        yield report
        past += report.findings


def _first_builds(gate_input: GateInput) -> dict[str, int]:
    """Return the night that first ran the A of each suspect's pairs, by the gate's own choice of it."""
    builds = {suspect.series: suspect.examination.against for suspect in suspects(gate_input)}
    return {series: int(run.partition("-")[2]) for series, run in builds.items()}


def _acceptance(series: str, points: list[Point], start: int) -> StoreEvent:
    """Return the event of somebody who accepts the level in the morning before the night `start`."""
    evidence = LevelEvidence(series, tuple(_until(points, start - 1)))
    return accepted_baseline(evidence, "somebody", "the first level", f"{_day(start - 1)}T09:00:00Z")


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
