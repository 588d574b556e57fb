"""Points of an invented series, as a store returns them, for the tests of the gate."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from levelfield.series.segments import Observation
from levelfield.specs.record import Conditions, Point, Series, StoreEvent

FIRST = date(2026, 3, 1)


def day(night: int) -> str:
    return (FIRST + timedelta(days=night)).isoformat()


def at(night: int, hour: int = 2) -> str:
    return f"{day(night)}T{hour:02d}:00:00Z"


def point(index: int, tokens: float | None = 1000.0, **changes: Any) -> Point:
    """A valid run of the night. Other figures move with the tokens only where they are given."""
    values: dict[str, Any] = {
        "run_id": f"run{index:03d}",
        "began": at(index),
        "purpose": "nightly",
        "night": day(index),
        "node": "n1",
        "conditions": "c1",
        "subject": f"s{index}",
        "word": "valid",
        "evidence": "sealed",
        "verdict": "aligned",
        "tokens_per_second_per_device": tokens,
        "memory_bytes": 2.0e9,
        "joules_per_token": None,
    }
    return Point(**{**values, **changes})


def noise(count: int, deviation: float = 0.01, seed: int = 1) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, deviation) for _ in range(count)]


def nights(count: int, deviation: float = 0.01, seed: int = 2, first: int = 0, **changes: Any) -> list[Point]:
    """A quiet series of `count` nights, at 1,000 tokens/s."""
    values = noise(count, deviation, seed)
    return [point(first + i, 1000 * math.exp(value), **changes) for i, value in enumerate(values)]


def costs(values: Sequence[float], node: str = "n1") -> list[Observation]:
    """Nights of these costs, in order."""
    return [Observation(day(i), at(i), node, f"run{i:03d}", value) for i, value in enumerate(values)]


def series(**changes: Any) -> Series:
    values: dict[str, Any] = {
        "case": "tiny", "work": "w", "corpus": "c", "scale": "smoke", "framework": "torch", "vendor": "cpu",
        "chip": "cpu", "device_is": "share", "nodes": 1, "devices": 1, "precision": "fp32",
        "layout": {"data": 1, "tensor": 1, "pipeline": 1}, "micro_batch": 8, "accumulation": 1,
        "virtual_pipeline": 1, "recompute": "none", "compile": False, "attention": "sdpa", "threads": 2,
        "runtime": "process",
    }  # fmt: skip
    return Series.model_validate({**values, **changes})


def conditions(**changes: Any) -> Conditions:
    values: dict[str, Any] = {
        "software": {"driver": "550"}, "kernel": "6.1", "os": "Debian 12", "processor": "EPYC", "cores": 2,
        "memory_gib": 24, "engine": None, "variables": {},
    }  # fmt: skip
    return Conditions.model_validate({**values, **changes})


def event(kind: str, night: int, **changes: Any) -> StoreEvent:
    values: dict[str, Any] = {
        "id": f"{kind}{night}", "kind": kind, "series": "S", "at": at(night, 9), "who": "ann", "why": "because",
    }  # fmt: skip
    return StoreEvent.model_validate({**values, **changes})
