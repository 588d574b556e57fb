"""Processor time of a whole gate: points as a store returns them, to findings."""

from __future__ import annotations

import time

import numpy as np
from levelfield.nights.gate import judge_night
from levelfield.nights.gate_input import GateInput
from levelfield.specs.record import Point

NIGHTS = 61


def seconds_of_gate(series: int) -> dict[str, float]:
    """Return the seconds of one gate over this many series, without the store."""
    random = np.random.default_rng(1)
    points = {f"series{i}": _points(i, random) for i in range(series)}
    gate_input = GateInput(_night(NIGHTS - 1), points, {})
    start = time.process_time()
    report = judge_night(gate_input)
    seconds = time.process_time() - start
    return {"series": series, "nights": NIGHTS, "seconds": seconds, "findings": len(report.findings)}


def _points(series: int, random: np.random.Generator) -> list[Point]:
    values = np.exp(random.normal(0, 0.01, (NIGHTS, 3)))
    return [
        Point(
            run_id=f"{series}-{night}",
            began=f"{_night(night)}T02:00:00Z",
            purpose="nightly",
            night=_night(night),
            node=f"node{night % 2}",
            conditions="conditions",
            subject=f"subject{night}",
            word="valid",
            evidence="sealed",
            verdict="aligned",
            tokens_per_second_per_device=1e4 * float(value[0]),
            memory_bytes=1e9 * float(value[1]),
            joules_per_token=0.1 * float(value[2]),
        )
        for night, value in enumerate(values)
    ]


def _night(index: int) -> str:
    return f"2026-{1 + index // 28:02d}-{1 + index % 28:02d}"
